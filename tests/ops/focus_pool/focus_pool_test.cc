// Focus pooling as mixers call it: gradients by autograd, states, documents, and error messages.
#include "ops/focus_pool/focus_pool.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kHeads = 2, kDim = 3;
const std::vector<int64_t> kWindows = {0, 1, 2, 5, 13, 70};

struct Operands {
  at::Tensor log_weight, u;
};
Operands Make(int64_t seq_len, at::ScalarType dtype = at::kDouble) {
  return {
      .log_weight =
          Normal({kBatch, seq_len, kHeads}, 1, dtype == at::kDouble ? at::kDouble : at::kFloat) * 3,
      .u = Normal({kBatch, seq_len, kHeads, kDim}, 2, dtype)};
}
FocusPoolState Nothing(int64_t window, at::ScalarType dtype = at::kDouble) {
  const auto zeros = [&](std::vector<int64_t> shape) { return at::zeros(shape, dtype); };
  if (window == 0)
    return {.log_scale = zeros({kBatch, kHeads}),
            .mass = zeros({kBatch, kHeads}),
            .sum = zeros({kBatch, kHeads, kDim})};
  return {.tail_present = zeros({kBatch, window - 1}),
          .tail_log_weight = zeros({kBatch, window - 1, kHeads}),
          .tail_u = zeros({kBatch, window - 1, kHeads, kDim})};
}
// Rows 0 and 1 with documents from tokens 0, 4 and 11 on; `seq_len` is above 11.
std::shared_ptr<const SequenceChunks> Documents(int64_t seq_len) {
  const std::vector<int32_t> starts = {0, 4, static_cast<int32_t>(seq_len + 11)};
  return MakeSequenceChunks({.batch = kBatch, .seq_len = seq_len, .document_starts = starts},
                            at::kCPU);
}
// Returns the values of the state that do not depend on its scale.
std::vector<at::Tensor> TrueValues(const FocusPoolState& s) {
  if (!s.mass.defined()) return {s.tail_present, s.tail_log_weight, s.tail_u};
  const at::Tensor scale = s.log_scale.exp();
  return {s.mass * scale, s.sum * scale.unsqueeze(2)};
}

// Number 1: through both parts of a row, the state between them and the final state.
TEST(FocusPoolTest, GradientsAreFiniteDifferences) {
  constexpr int64_t kSeqLen = 15, kCut = 9;
  for (const int64_t window : kWindows) {
    for (const double eps : {0.0, 0.3}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", eps " << eps);
      const Operands x = Make(kSeqLen);
      const at::Tensor weights = Normal({kBatch, kSeqLen, kHeads, kDim}, 3);
      const auto loss = [&](const std::vector<at::Tensor>& in) {
        const FocusPoolConfig config = {.window = window, .eps = eps, .want_state = true};
        const auto part = [&](int64_t begin, int64_t length, const FocusPoolState& state) {
          return FocusPool({.log_weight = in[0].narrow(1, begin, length),
                            .u = in[1].narrow(1, begin, length),
                            .initial_state = state},
                           config);
        };
        const FocusPoolOutput first = part(0, kCut, {});
        const FocusPoolOutput second = part(kCut, kSeqLen - kCut, first.final_state);
        at::Tensor sum = (at::cat({first.out, second.out}, 1) * weights).sum();
        for (const at::Tensor& value : TrueValues(second.final_state))
          sum = sum + value.square().sum();
        return sum;
      };
      test::ExpectFiniteDifferences(loss, {x.log_weight, x.u}, 1e-5, /*stride=*/7);
    }
  }
}

// Numbers 1 and 9 through tensors, including strided ones.
TEST(FocusPoolTest, FloatAndBf16MatchFp64) {
  for (const int64_t window : kWindows) {
    SCOPED_TRACE(window);
    const auto function = [&](const std::vector<at::Tensor>& in) {
      const at::ScalarType wide = in[1].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      return FocusPool({.log_weight = in[0].to(wide).transpose(0, 1),
                        .u = in[1].transpose(0, 1),
                        .chunks = nullptr},
                       {.window = window})
          .out;
    };
    const at::Tensor log_weight = Normal({90, kBatch, kHeads}, 1),
                     u = Normal({90, kBatch, kHeads, kDim}, 2);
    test::ExpectFloatMatchesDouble(function, {log_weight, u}, 1e-5);
    // With bf16 log weights, their gradient is computed from the rounded output, and rounded.
    test::ExpectBf16MatchesDouble(function, {log_weight, u}, 2);
  }
}

// Number 3: steps equal the whole and leave the same state.
TEST(FocusPoolTest, StepsAreTheWhole) {
  constexpr int64_t kSeqLen = 40;
  for (const int64_t window : kWindows) {
    SCOPED_TRACE(window);
    const Operands x = Make(kSeqLen);
    const FocusPoolConfig config = {.window = window, .eps = 1e-3, .want_state = true};
    const FocusPoolOutput want = FocusPool({.log_weight = x.log_weight, .u = x.u}, config);
    FocusPoolState state = Nothing(window);
    const void* const memory = (window == 0 ? state.sum : state.tail_u).const_data_ptr();
    for (int64_t t = 0; t < kSeqLen; ++t)
      EXPECT_TRUE(Close(FocusPoolStep(x.log_weight.select(1, t), x.u.select(1, t), config, state),
                        want.out.select(1, t), 1e-13))
          << t;
    EXPECT_EQ((window == 0 ? state.sum : state.tail_u).const_data_ptr(), memory);
    const auto got = TrueValues(state), wanted = TrueValues(want.final_state);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(Close(got[i], wanted[i], 1e-12)) << i;
  }
}

// Packed documents have the bits of separate sequences. The final state is that of the last
// document.
TEST(FocusPoolTest, DocumentsAreSeparate) {
  constexpr int64_t kSeqLen = 90;
  const Operands x = Make(kSeqLen, at::kFloat);
  for (const int64_t window : kWindows) {
    SCOPED_TRACE(window);
    const FocusPoolConfig config = {.window = window, .want_state = true};
    const FocusPoolOutput packed =
        FocusPool({.log_weight = x.log_weight, .u = x.u, .chunks = Documents(kSeqLen)}, config);
    const auto alone = [&](int64_t row, int64_t begin, int64_t length) {
      const auto cut = [&](const at::Tensor& y) {
        return y.narrow(0, row, 1).narrow(1, begin, length);
      };
      const FocusPoolOutput part =
          FocusPool({.log_weight = cut(x.log_weight), .u = cut(x.u)}, config);
      EXPECT_TRUE(BitEqual(part.out, cut(packed.out))) << row << ", " << begin;
      return part.final_state;
    };
    alone(0, 0, 4);
    const FocusPoolState first = alone(0, 4, kSeqLen - 4);
    alone(1, 0, 11);
    const FocusPoolState second = alone(1, 11, kSeqLen - 11);
    const auto got = TrueValues(packed.final_state), a = TrueValues(first), b = TrueValues(second);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(BitEqual(got[i], at::cat({a[i], b[i]})));
  }
}

// A state of zeros is the same as no state.
TEST(FocusPoolTest, ZerosAreNoState) {
  const Operands x = Make(30, at::kFloat);
  for (const int64_t window : kWindows) {
    const FocusPoolConfig config = {.window = window};
    const at::Tensor want = FocusPool({.log_weight = x.log_weight, .u = x.u}, config).out;
    const at::Tensor got =
        FocusPool(
            {.log_weight = x.log_weight, .u = x.u, .initial_state = Nothing(window, at::kFloat)},
            config)
            .out;
    EXPECT_TRUE(Close(got, want, 2e-6)) << window;
  }
}

// Number 10.
TEST(FocusPoolTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const int64_t window : kWindows) {
    test::ExpectSameBitsWithThreads([&] {
      const Operands x = Make(150, at::kFloat);
      const at::Tensor log_weight = x.log_weight.clone().requires_grad_(),
                       u = x.u.clone().requires_grad_();
      const at::Tensor out = FocusPool({.log_weight = log_weight, .u = u}, {.window = window}).out;
      std::vector<at::Tensor> results = {out.detach()};
      for (const at::Tensor& grad : torch::autograd::grad({out.square().sum()}, {log_weight, u}))
        results.push_back(grad);
      return results;
    });
  }
}

TEST(FocusPoolTest, NoTokensGiveNothing) {
  const FocusPoolOutput y =
      FocusPool({.log_weight = at::zeros({2, 0, 3}), .u = at::zeros({2, 0, 3, 4})},
                {.window = 5, .want_state = true});
  EXPECT_EQ(y.out.numel(), 0);
  EXPECT_EQ(y.final_state.tail_present.sum().item<float>(), 0);
}

TEST(FocusPoolTest, SaysWhatDoesNotFit) {
  const Operands x = Make(7, at::kFloat);
  EXPECT_HL_ERROR(FocusPool({.log_weight = x.log_weight.to(at::kDouble), .u = x.u}, {}),
                  ExitCode::kInternal, "log_weight [2, 7, 2] fp64", "log_weight [B, T, H] in fp32");
  EXPECT_HL_ERROR(FocusPool({.log_weight = x.log_weight, .u = x.u}, {.window = -1}),
                  ExitCode::kInternal, "window -1", "non-negative");
  EXPECT_HL_ERROR(
      FocusPool({.log_weight = x.log_weight, .u = x.u, .initial_state = Nothing(0, at::kFloat)},
                {.window = 3}),
      ExitCode::kInternal, "window 3, log_scale [2, 2]", "Without a window, use");
  EXPECT_HL_ERROR(
      FocusPool({.log_weight = x.log_weight, .u = x.u, .initial_state = Nothing(4, at::kFloat)},
                {.window = 3}),
      ExitCode::kInternal, "tail_present [2, 3]", "window - 1");
}

}  // namespace
}  // namespace halflife::ops
