// Token shift equals a convolution with two taps, with documents and splits.
#include "ops/rows/token_shift.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "ops/convolution/short_conv.h"
#include "ops/gradient_check.h"
#include "ops/recording_sink.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::Close;
using test::Normal;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 2;

struct Case {
  int64_t seq_len, dim;
  size_t num_mixes = 3;
  bool tail = true, documents = true;
};

// Lengths around blocks of 64 tokens, and channels with whole and partial vectors.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t seq_len : {1, 2, 5, 63, 64, 65, 150})
    for (const bool documents : {false, true})
      for (const bool tail : {false, true}) cases.push_back({seq_len, 21, 3, tail, documents});
  for (const size_t num_mixes : {1, 2}) cases.push_back({70, 32, num_mixes});
  return cases;
}

// Documents that start with the slice (and hide the tail), inside it, at neighbouring tokens and at
// the first token of a block.
at::Tensor Starts(const Case& c) {
  at::Tensor starts = at::zeros({kBatch, c.seq_len}, at::kBool);
  starts[0][0] = true;
  for (int64_t t = 3; t < c.seq_len; t += 11) starts[1][t] = true;
  for (int64_t t = 63; t < std::min<int64_t>(c.seq_len, 66); ++t) starts[0][t] = true;
  return starts;
}

// x, the tail, and mixes within and beyond [0, 1].
Tensors Operands(const Case& c) {
  Tensors operands = {Normal({kBatch, c.seq_len, c.dim}, 1), Normal({kBatch, 1, c.dim}, 2)};
  for (size_t i = 0; i < c.num_mixes; ++i) operands.push_back(Normal({c.dim}, 3 + i));
  return operands;
}

TokenShiftInputs InputsOf(const Case& c, const Tensors& in) {
  TokenShiftInputs inputs = {.x = in[0], .mixes = Tensors(in.begin() + 2, in.end())};
  if (c.tail) inputs.tail = in[1];
  if (c.documents) inputs.starts = Starts(c);
  return inputs;
}
// Returns all outputs, and an unread tail too, so that it has a gradient.
at::Tensor Shifted(const Case& c, const Tensors& in) {
  const at::Tensor y = at::cat(TokenShift(InputsOf(c, in)), -1);
  return c.tail ? y : y + 0 * in[1].repeat({1, 1, static_cast<int64_t>(c.num_mixes)});
}

// Computes a convolution with two taps for each mix.
at::Tensor Convolved(const Case& c, const Tensors& in) {
  Tensors outs;
  for (size_t i = 2; i < in.size(); ++i) {
    ShortConvInputs conv = {.x = in[0],
                            .weight = at::stack({1 - in[i], in[i]}, 1).unsqueeze(1),
                            .tail = c.tail ? in[1] : at::Tensor(),
                            .documents = {},
                            .starts = {},
                            .silu = false};
    if (c.documents) conv.starts = Starts(c), conv.documents = conv.starts.to(at::kLong).cumsum(1);
    outs.push_back(ShortConv(conv));
  }
  const at::Tensor y = at::cat(outs, -1);
  return c.tail ? y : y + 0 * in[1].repeat({1, 1, static_cast<int64_t>(c.num_mixes)});
}

TEST(TokenShiftTest, IsAConvolutionOfTwoTaps) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << "T " << c.seq_len << ", " << c.num_mixes << " mixes, tail "
                                    << c.tail << ", documents " << c.documents);
    const auto run = [&](const auto& function) {
      Tensors leaves;
      for (const at::Tensor& x : Operands(c)) leaves.push_back(x.detach().clone().requires_grad_());
      const at::Tensor y = function(c, leaves);
      Tensors results = torch::autograd::grad({y}, leaves, {Normal(y.sizes().vec(), 9)});
      results.push_back(y);
      return results;
    };
    const Tensors got = run(Shifted), want = run(Convolved);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(Close(got[i], want[i], 1e-12)) << i;
  }
}

// A few products of 2^-24. The mixes' gradients sum 300 tokens of either sign.
TEST(TokenShiftTest, FusedLoopsMatchFp64) {
  for (const Case& c : Cases())
    test::ExpectFloatMatchesDouble([&](const auto& in) { return Shifted(c, in); }, Operands(c),
                                   3e-6);
}

TEST(TokenShiftTest, Bf16IsRoundedOnce) {
  for (const Case& c : Cases()) {
    Tensors operands = Operands(c);
    for (size_t i = 2; i < operands.size(); ++i) operands[i] = operands[i].to(at::kFloat);
    test::ExpectBf16MatchesDouble(
        [&](const auto& in) {
          Case with = c;
          with.tail = true;
          return Shifted(with, in);
        },
        operands);
  }
}

TEST(TokenShiftTest, GradientsAreFiniteDifferences) {
  const Case c = {7, 3};
  test::ExpectFiniteDifferences([&](const auto& in) { return Shifted(c, in).square().sum(); },
                                Operands(c));
}

TEST(TokenShiftTest, SplitAnywhereIsTheWhole) {
  const Case c = {9, 5};
  Tensors in = Operands(c);
  for (at::Tensor& x : in) x = x.to(at::kFloat);
  const TokenShiftInputs whole = InputsOf(c, in);
  const Tensors want = TokenShift(whole);
  for (int64_t cut = 0; cut <= c.seq_len; ++cut) {
    TokenShiftInputs first = whole, second = whole;
    first.x = whole.x.narrow(1, 0, cut), first.starts = whole.starts.narrow(1, 0, cut);
    second.x = whole.x.narrow(1, cut, c.seq_len - cut);
    second.starts = whole.starts.narrow(1, cut, c.seq_len - cut);
    second.tail = TokenShiftTail(first);
    const Tensors before = TokenShift(first), after = TokenShift(second);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(BitEqual(at::cat({before[i], after[i]}, 1), want[i])) << cut;
    EXPECT_TRUE(BitEqual(TokenShiftTail(second), TokenShiftTail(whole))) << cut;
  }
  TokenShiftInputs none = whole;
  none.x = whole.x.narrow(1, 0, 0), none.starts = at::Tensor(), none.tail = at::Tensor();
  EXPECT_TRUE(BitEqual(TokenShiftTail(none), at::zeros({kBatch, 1, c.dim})));
}

// A NaN stays within its document, in outputs and in the gradients that later tokens send back.
TEST(TokenShiftTest, NansDoNotCrossADocumentsStart) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Case c = {20, 8};
    Tensors in = Operands(c);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = in[i].to(i < 2 || dtype == at::kDouble ? dtype : at::kFloat);
    in[0][1][13].fill_(std::numeric_limits<double>::quiet_NaN());  // Documents start at 3 and 14.
    in[0].requires_grad_();
    const at::Tensor y = Shifted(c, in);
    at::Tensor dy = at::zeros(y.sizes(), y.options());
    dy[1][14].fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor dx = torch::autograd::grad({y}, {in[0]}, {dy})[0];
    EXPECT_TRUE(y[1][13].isnan().all().item<bool>());
    EXPECT_FALSE(y[1].narrow(0, 14, 6).isnan().any().item<bool>());
    EXPECT_TRUE((dx[1][13] == 0).all().item<bool>());
  }
}

TEST(TokenShiftTest, ASinkGetsAMixsGradient) {
  for (const bool added : {false, true}) {
    const Case c = {150, 21};
    Tensors in;
    for (const at::Tensor& x : Operands(c)) in.push_back(x.to(at::kFloat).requires_grad_());
    const at::Tensor y = Shifted(c, in), dy = Normal(y.sizes().vec(), 9, at::kFloat);
    const at::Tensor want = torch::autograd::grad({y}, {in[3]}, {dy}, true)[0];
    test::RecordingSink::Log log(in[3], /*before=*/0.5);
    log.added = added;
    log.Attach(in[3]);
    y.backward(dy);
    EXPECT_EQ(log.written, 1);
    EXPECT_FALSE(in[3].grad().defined());
    EXPECT_TRUE(in[2].grad().defined());
    EXPECT_TRUE(Close(log.sum, want + (added ? 0.5 : 0.0), 1e-5));
  }
}

TEST(TokenShiftTest, BitsDoNotDependOnTheNumberOfThreads) {
  const Case c = {300, 48};
  test::ExpectSameBitsWithThreads([&] {
    Tensors in;
    for (const at::Tensor& x : Operands(c)) in.push_back(x.to(at::kFloat).requires_grad_());
    const at::Tensor y = Shifted(c, in);
    return torch::autograd::grad({y}, in, {Normal(y.sizes().vec(), 9, at::kFloat)});
  });
}

TEST(TokenShiftTest, BadInput) {
  const Case c = {4, 6};
  const auto expect = [&](const auto& change, ExitCode code, const char* message) {
    TokenShiftInputs inputs = InputsOf(c, Operands(c));
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
