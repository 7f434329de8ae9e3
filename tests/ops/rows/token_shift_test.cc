// Token shift equals a convolution with two taps, with documents and splits.
#include "ops/rows/token_shift.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "ops/convolution/short_conv.h"
#include "ops/gradient_check.h"
#include "ops/rows/row_operations.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::ShiftForm;
using test::Tensors;

// Computes a convolution with two taps for each mix.
at::Tensor Convolved(const ShiftForm& form, const Tensors& in) {
  const TokenShiftInputs shift = test::ShiftInputs(form, in);
  Tensors outs;
  for (const at::Tensor& mix : shift.mixes) {
    ShortConvInputs conv = {.x = shift.x,
                            .weight = at::stack({1 - mix, mix}, 1).unsqueeze(1),
                            .tail = shift.tail,
                            .documents = {},
                            .starts = shift.starts,
                            .silu = false};
    if (form.documents) conv.documents = conv.starts.to(at::kLong).cumsum(1);
    outs.push_back(ShortConv(conv));
  }
  return at::cat(outs, -1) + 0 * in[1].sum();
}

TEST(TokenShiftTest, IsAConvolutionOfTwoTaps) {
  for (const int64_t seq_len : {1, 2, 5, 63, 64, 65, 150})  // Around blocks of 64 tokens.
    for (const ShiftForm& form : {ShiftForm{3, false, false},
                                  {3, false, true},
                                  {3, true, false},
                                  {3, true, true},
                                  {1},
                                  {2}}) {
      SCOPED_TRACE(testing::Message()
                   << "T " << seq_len << ", " << form.num_mixes << " mixes, tail " << form.tail
                   << ", documents " << form.documents);
      test::ExpectSameFunction([&](const auto& in) { return test::Shifted(form, in); },
                               [&](const auto& in) { return Convolved(form, in); },
                               test::To(at::kDouble, test::ShiftOperands(form, 2 * seq_len, 21)),
                               1e-12);
    }
}

TEST(TokenShiftTest, SplitAnywhereIsTheWhole) {
  constexpr int64_t kSeqLen = 9;
  const TokenShiftInputs whole =
      test::ShiftInputs({}, test::To(at::kFloat, test::ShiftOperands({}, 2 * kSeqLen, 5)));
  const Tensors want = TokenShift(whole);
  for (int64_t cut = 0; cut <= kSeqLen; ++cut) {
    TokenShiftInputs first = whole, second = whole;
    first.x = whole.x.narrow(1, 0, cut), first.starts = whole.starts.narrow(1, 0, cut);
    second.x = whole.x.narrow(1, cut, kSeqLen - cut);
    second.starts = whole.starts.narrow(1, cut, kSeqLen - cut);
    second.tail = TokenShiftTail(first);
    const Tensors before = TokenShift(first), after = TokenShift(second);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(BitEqual(at::cat({before[i], after[i]}, 1), want[i])) << cut;
    EXPECT_TRUE(BitEqual(TokenShiftTail(second), TokenShiftTail(whole))) << cut;
  }
  TokenShiftInputs none = whole;
  none.x = whole.x.narrow(1, 0, 0), none.starts = at::Tensor(), none.tail = at::Tensor();
  EXPECT_TRUE(BitEqual(TokenShiftTail(none), at::zeros({2, 1, 5})));
}

// A NaN stays within its document, in outputs and in the gradients that later tokens send back.
TEST(TokenShiftTest, NansDoNotCrossADocumentsStart) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Tensors in = test::To(at::kDouble, test::ShiftOperands({}, 40, 8));
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = in[i].to(i < 2 || dtype == at::kDouble ? dtype : at::kFloat);
    in[0][1][13].fill_(std::numeric_limits<double>::quiet_NaN());  // Documents start at 3 and 14.
    in[0].requires_grad_();
    const at::Tensor y = test::Shifted({}, in);
    at::Tensor dy = at::zeros(y.sizes(), y.options());
    dy[1][14].fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor dx = torch::autograd::grad({y}, {in[0]}, {dy})[0];
    EXPECT_TRUE(y[1][13].isnan().all().item<bool>());
    EXPECT_FALSE(y[1].narrow(0, 14, 6).isnan().any().item<bool>());
    EXPECT_TRUE((dx[1][13] == 0).all().item<bool>());
  }
}

TEST(TokenShiftTest, BadInput) {
  const auto expect = [&](const auto& change, ExitCode code, const char* message) {
    TokenShiftInputs inputs =
        test::ShiftInputs({}, test::To(at::kDouble, test::ShiftOperands({}, 8, 6)));
    change(inputs);
    EXPECT_HL_ERROR(TokenShift(inputs), code, message);
  };
  const ExitCode internal = ExitCode::kInternal;
  expect([](auto& in) { in.x = in.x.to(at::kHalf); }, ExitCode::kUsage,
         "TokenShift does not support fp16. Use fp32, bf16 or fp64.");
  expect([](auto& in) { in.x = in.x[0]; }, internal,
         "TokenShift got x [4, 6] fp64 on cpu. Use [B, T, D].");
  expect([](auto& in) { in.mixes.clear(); }, internal, "TokenShift by 0 mixes. Use 1 to 3.");
  expect([](auto& in) { in.mixes[1] = in.mixes[1].narrow(0, 0, 5); }, internal,
         "by a mix [5] fp64 on cpu. Use [D] on the same device.");
  expect([](auto& in) { in.tail = in.tail.narrow(2, 0, 5); }, internal,
         "with tail [2, 1, 5] fp64 on cpu. Use [B, 1, D] on the same device, or none.");
  expect([](auto& in) { in.starts = in.starts.to(at::kByte); }, internal,
         "with starts [2, 4] uint8 on cpu. Use [B, T] bool on the same device, or none.");
}

}  // namespace
}  // namespace halflife::ops
