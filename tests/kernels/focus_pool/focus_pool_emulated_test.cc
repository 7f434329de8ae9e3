// The emulated CUDA kernels of focus pooling equal the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/focus_pool/focus_pool_plan.h"
#include "kernels/focus_pool/focus_pool_problem.h"

namespace halflife::kernels {
namespace {

using test::FocusCase;
using test::FocusOutput;
using test::FocusProblem;
using test::MakeFocusProblem;

// The schedule and its workspace, as in ops/focus_pool.
class Work {
 public:
  template <typename T>
  Work(const FocusPoolShape<T>& shape, bool backward)
      : runs_(shape.runs, shape.runs + shape.num_runs),
        plan_(MakeFocusPlan(runs_, {.window = shape.window,
                                    .has_tail = shape.tail_log_weight != nullptr,
                                    .backward = backward})),
        delta_(shape.batch * shape.seq_len * shape.num_heads, NAN) {
    const auto chunks = static_cast<int64_t>(plan_.chunks.size());
    const int64_t count =
        IsNarrow(shape.window) ? 0 : cuda::FocusTotalsFloats(chunks, shape.num_heads, shape.dim);
    totals_ = carry_ = rest_ = std::vector<float>(count, NAN);
  }
  cuda::FocusWork Args() {
    return {.runs = runs_.data(),
            .chunks = plan_.chunks.data(),
            .blocks = plan_.blocks.data(),
            .num_chunks = static_cast<int64_t>(plan_.chunks.size()),
            .num_blocks = static_cast<int64_t>(plan_.blocks.size()),
            .totals = totals_.data(),
            .carry = carry_.data(),
            .rest = rest_.data(),
            .delta = delta_.data()};
  }

 private:
  std::vector<FocusRun> runs_;
  FocusPlan plan_;
  std::vector<float> totals_, carry_, rest_, delta_;
};

struct CudaKernels {
  template <typename T>
  void forward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results) const {
    Work work(shape, /*backward=*/false);
    cuda::FocusPoolForward(shape, results, work.Args(), nullptr);
  }
  template <typename T>
  void backward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                const FocusPoolGrads<T>& grads) const {
    Work work(shape, /*backward=*/true);
    cuda::FocusPoolBackward(shape, results, grads, work.Args(), nullptr);
  }
};
template <typename T>
FocusOutput Pool(const FocusProblem& p) {
  return test::RunFocus<T>(p, CudaKernels(), std::nan(""));
}

// Sizes around all boundaries, in rotation. A case takes the emulator about 10 ms.
std::vector<FocusCase> Cases() {
  std::vector<FocusCase> cases;
  size_t turn = 0;
  for (const int64_t seq_len : {1, 3, 64, 65, 150, 230})
    for (const int64_t window : {0, 1, 2, 4, 5, 17, 64, 65, 100, 300}) {
      cases.push_back({.seq_len = seq_len,
                       .window = window,
                       .dim = std::vector<int64_t>{9, 1, 32, 130}[turn % 4],
                       .batch = 1 + static_cast<int64_t>(turn % 2),
                       .num_heads = 1 + static_cast<int64_t>(turn % 3),
                       .spread = turn % 5 == 4 ? 80.0 : 5.0,
                       .eps = turn % 3 == 2 ? 1e-2 : 0,
                       .documents = turn % 2 == 1,
                       .state = turn % 3 != 0,
                       .masked = turn % 4 == 3 ? 0.5 : 0});
      ++turn;
    }
  return cases;
}

template <typename T>
class FocusPoolKernel : public testing::Test {};
TYPED_TEST_SUITE(FocusPoolKernel, test::Storages);

TYPED_TEST(FocusPoolKernel, IsTheDefinition) {
  for (const FocusCase& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const FocusProblem p = MakeFocusProblem<TypeParam>(c);
    test::ExpectFocusClose<TypeParam>(p, Pool<TypeParam>(p), test::Oracle(p));
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(FocusPoolKernel, TwoRunsGiveTheSameBits) {
  for (const int64_t window : {0, 3, 40}) {
    const FocusProblem p = MakeFocusProblem<TypeParam>({.seq_len = 100, .window = window});
    const FocusOutput first = Pool<TypeParam>(p), second = Pool<TypeParam>(p);
    EXPECT_EQ(first.out, second.out);
    EXPECT_EQ(first.du, second.du);
    EXPECT_EQ(first.dlog_weight, second.dlog_weight);
  }
}

// A NaN only affects the windows that contain it.
TYPED_TEST(FocusPoolKernel, NansStayInTheirWindows) {
  constexpr int64_t kSeqLen = 150, kDim = 4, kToken = 70;
  for (const int64_t window : {0, 3, 40, 64, 70}) {
    FocusProblem p =
        MakeFocusProblem<TypeParam>({.seq_len = kSeqLen, .window = window, .dim = kDim});
    p.u[kToken * kDim] = std::nan("");
    const FocusOutput got = Pool<TypeParam>(p);
    for (int64_t t = 0; t < kSeqLen; ++t)
      ASSERT_EQ(std::isnan(got.out[t * kDim]), t >= kToken && (window == 0 || t < kToken + window))
          << "window " << window << ", token " << t;
  }
}

}  // namespace
}  // namespace halflife::kernels
