// Our own kernel for weight gradients on the CPU: any size, reproducible bits, and when it is used.
#include "kernels/linear/linear_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/mm.h>
#include <omp.h>

#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "ops/linear/linear_internal.h"
#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Normal;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using cpu::InstructionSet;

// Returns this machine's instruction sets for which the kernel exists.
std::vector<InstructionSet> SetsWithKernel() {
  std::vector<InstructionSet> sets = cpu::UsableInstructionSets();
  sets.pop_back();  // The baseline.
  return sets;
}

class WeightGradientTest : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { cpu::UseInstructionSet(GetParam()); }
  void TearDown() override {
    omp_set_num_threads(threads_);
    cpu::UseInstructionSetOfEnvironment();
  }

 private:
  int threads_ = omp_get_max_threads();
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WeightGradientTest);
INSTANTIATE_TEST_SUITE_P(, WeightGradientTest, testing::ValuesIn(SetsWithKernel()),
                         [](const auto& form) {
                           return form.param == InstructionSet::kAvx512 ? "Avx512" : "Avx2";
                         });

// An output of NaN, followed by memory that must not change.
class Guarded {
 public:
  explicit Guarded(int64_t count)
      : count_(count), data_(at::full({count + kGuard}, kNaN, at::kFloat)) {
    data_.narrow(0, count, kGuard).fill_(7);
  }
  ~Guarded() {
    EXPECT_TRUE((data_.narrow(0, count_, kGuard) == 7).all().item<bool>()) << "written behind";
  }
  float* get() const { return data_.mutable_data_ptr<float>(); }
  at::Tensor Values(at::IntArrayRef sizes) const { return data_.narrow(0, 0, count_).view(sizes); }

 private:
  static constexpr int64_t kGuard = 1024;
  int64_t count_;
  at::Tensor data_;
};

at::Tensor Product(const at::Tensor& dy, const at::Tensor& x) {
  const Guarded dweight(dy.size(1) * x.size(1));
  WeightGradientArgs args = {.num_tokens = dy.size(0),
                             .out_features = dy.size(1),
                             .in_features = x.size(1),
                             .dy = dy.const_data_ptr<float>(),
                             .x = x.const_data_ptr<float>(),
                             .dweight = dweight.get()};
  const Guarded workspace(WeightGradientWorkspaceFloats(args));
  args.workspace = workspace.get();
  WeightGradient(args);
  return dweight.Values({dy.size(1), x.size(1)});
}

// Expects the product within the error of a sum of T products in blocks of 128: at most 128 + T /
// 128 roundings per element, each of half an ulp of the sum of the terms' magnitudes.
void ExpectProduct(int64_t tokens, int64_t outs, int64_t ins) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, [" << outs << ", " << ins << "], "
                                  << omp_get_max_threads() << " threads");
  const at::Tensor dy = Normal({tokens, outs}, 1, at::kFloat),
                   x = Normal({tokens, ins}, 2, at::kFloat);
  const at::Tensor wide_dy = dy.to(at::kDouble), wide_x = x.to(at::kDouble);
  const at::Tensor error = (Product(dy, x).to(at::kDouble) - at::mm(wide_dy.t(), wide_x)).abs();
  const at::Tensor bound = at::mm(wide_dy.abs().t(), wide_x.abs()) *
                           (static_cast<double>(128 + (tokens + 127) / 128) * 0x1p-24);
  const at::Tensor excess = (error / bound).flatten();
  EXPECT_TRUE((excess <= 1).all().item<bool>())
      << "element " << excess.argmax().item<int64_t>() << " is off by "
      << excess.max().item<double>() << " of its bound";
}

TEST_P(WeightGradientTest, AnySizes) {
  for (const int threads : {1, 16}) {
    omp_set_num_threads(threads);
    for (const int64_t tokens : {1, 127, 128, 129, 700}) ExpectProduct(tokens, 40, 70);
    for (const int64_t outs : {1, 5, 6, 7, 11, 12, 13, 481, 1000}) ExpectProduct(300, outs, 33);
    for (const int64_t ins : {1, 15, 16, 17, 31, 32, 257, 600}) ExpectProduct(300, 25, ins);
  }
}

TEST_P(WeightGradientTest, BitsDoNotDependOnThreads) {
  const at::Tensor dy = Normal({300, 500}, 1, at::kFloat), x = Normal({300, 270}, 2, at::kFloat);
  omp_set_num_threads(1);
  const at::Tensor want = Product(dy, x);
  for (const int threads : {2, 3, 6, 16, 100}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(test::BitEqual(Product(dy, x), want)) << threads << " threads";
  }
}

TEST_P(WeightGradientTest, NaNStaysInItsRowOrColumn) {
  const at::Tensor dy = Normal({200, 30}, 1, at::kFloat), x = Normal({200, 50}, 2, at::kFloat);
  dy[150][7] = kNaN;
  x[3][40] = kNaN;
  const at::Tensor heard = at::isnan(Product(dy, x));
  EXPECT_TRUE(heard[7].all().item<bool>());
  EXPECT_TRUE(heard.select(1, 40).all().item<bool>());
  EXPECT_EQ(heard.sum().item<int64_t>(), 50 + 30 - 1);
}

// The sums have different orders, so the bits show which one ran.
TEST_P(WeightGradientTest, TakesManyTokensOfSmallWeights) {
  struct Choice {
    int64_t tokens, outs, ins;
    bool kernel;
  };
  // On AMD, BLAS runs its AVX2 kernels even if the CPU has AVX-512.
  const bool all = GetParam() == InstructionSet::kAvx2 || cpu::IsAmd();
  for (const Choice& c :
       {Choice{512, 64, 64, true}, Choice{512, 384, 700, true}, Choice{512, 700, 384, true},
        Choice{511, 64, 64, false}, Choice{512, 63, 64, all}, Choice{512, 16, 64, all},
        Choice{512, 15, 64, false}, Choice{512, 385, 385, all}}) {
    SCOPED_TRACE(testing::Message() << c.tokens << " tokens, [" << c.outs << ", " << c.ins << "]");
    const at::Tensor dy = Normal({c.tokens, c.outs}, 1, at::kFloat),
                     x = Normal({c.tokens, c.ins}, 2, at::kFloat);
    const at::Tensor by_kernel = Product(dy, x), by_blas = at::mm(dy.t(), x);
    EXPECT_FALSE(test::BitEqual(by_kernel, by_blas));
    EXPECT_TRUE(test::BitEqual(ops::WeightGradient(dy, x), c.kernel ? by_kernel : by_blas));
  }
}

TEST_P(WeightGradientTest, RowsLieAnywhereAndGradientsGoOn) {
  const at::Tensor dy = Normal({70, 600}, 1, at::kFloat).t(),
                   x = Normal({600, 90}, 2, at::kFloat).narrow(1, 10, 80).requires_grad_();
  EXPECT_TRUE(test::BitEqual(ops::WeightGradient(dy, x.detach()),
                             Product(dy.contiguous(), x.detach().contiguous())));
  EXPECT_TRUE(ops::WeightGradient(dy, x).requires_grad());
}

TEST(WeightGradient, TheBaselineTakesBlas) {
  cpu::UseInstructionSet(InstructionSet::kBaseline);
  const at::Tensor dy = Normal({600, 80}, 1, at::kFloat), x = Normal({600, 80}, 2, at::kFloat);
  const at::Tensor got = ops::WeightGradient(dy, x);
  EXPECT_FALSE(HasWeightGradient());
  cpu::UseInstructionSetOfEnvironment();
  EXPECT_TRUE(test::BitEqual(got, at::mm(dy.t(), x)));
}

TEST(WeightGradient, SaysWhatDoesNotFit) {
  const at::Tensor x = at::empty({600, 80});
  EXPECT_HL_ERROR(ops::WeightGradient(at::empty({599, 80}), x), ExitCode::kInternal, "[599, 80]",
                  "[600, 80]", "[tokens, out] and [tokens, D].");
  EXPECT_HL_ERROR(ops::WeightGradient(at::empty({1, 600, 80}), x), ExitCode::kInternal,
                  "[1, 600, 80]");
}

}  // namespace
}  // namespace halflife::kernels
