// Short convolutions equal their definition, with documents, carried tails and decoding steps.
// rows/row_operations_test.cc has their other properties.
#include "ops/convolution/short_conv.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kSeqLen = 9, kDim = 5, kTaps = 4;

ShortConvInputs Inputs() {
  return {.x = Normal({kBatch, kSeqLen, kDim}, 1),
          .weight = Normal({kDim, 1, kTaps}, 2),
          .tail = Normal({kBatch, kTaps - 1, kDim}, 3),
          .documents = {},
          .starts = {}};
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(ShortConvTest, IsTheDefinitionWithDocuments) {
  ShortConvInputs in = Inputs();
  in.bias = Normal({kDim}, 4);
  in.starts = at::empty({kBatch, kSeqLen}, at::kBool).fill_(false);
  in.starts[0][0] = true;  // Hides the tail.
  in.starts[0][4] = true;
  in.starts[1][2] = true;
  in.documents = in.starts.to(at::kLong).cumsum(1);
  const at::Tensor y = ShortConv(in);
  in.silu = false;
  const at::Tensor sums = ShortConv(in);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t t = 0; t < kSeqLen; ++t) {
      double sum = in.bias[1].item<double>();
      for (int64_t back = 0; back < kTaps; ++back) {
        const int64_t from = t - back;
        const at::Tensor source = from >= 0 ? in.x[b][from] : in.tail[b][kTaps - 1 + from];
        sum += in.weight[1][0][kTaps - 1 - back].item<double>() * source[1].item<double>();
        if (from >= 0 && in.starts[b][from].item<bool>()) break;
      }
      EXPECT_NEAR(y[b][t][1].item<double>(), Silu(sum), 1e-14) << b << ", " << t;
      EXPECT_NEAR(sums[b][t][1].item<double>(), sum, 1e-14) << b << ", " << t;
    }
  }
}

TEST(ShortConvTest, SplitAnywhereIsTheWhole) {
  ShortConvInputs whole = Inputs();
  whole.starts = at::empty({kBatch, kSeqLen}, at::kBool).fill_(false);
  whole.starts[1][3] = true;
  whole.documents = whole.starts.to(at::kLong).cumsum(1);
  const at::Tensor want = ShortConv(whole);
  for (int64_t cut = 1; cut < kSeqLen; ++cut) {  // Includes parts that are shorter than the tail.
    ShortConvInputs first = whole, second = whole;
    for (const auto member :
         {&ShortConvInputs::x, &ShortConvInputs::documents, &ShortConvInputs::starts}) {
      first.*member = (whole.*member).narrow(1, 0, cut);
      second.*member = (whole.*member).narrow(1, cut, kSeqLen - cut);
    }
    second.tail = ShortConvTail(first);
    EXPECT_TRUE(Close(at::cat({ShortConv(first), ShortConv(second)}, 1), want, 1e-14)) << cut;
    EXPECT_TRUE(Close(ShortConvTail(second), ShortConvTail(whole), 1e-14)) << cut;
  }
}

// A case's fp32 and bf16 inputs. The loops are compared with LibTorch calls in fp64.
struct Case {
  int64_t seq_len, dim, taps;
  bool tail = true, documents = true;
  bool bias = false, silu = true;
};

at::Tensor Starts(const Case& c) {
  at::Tensor starts = at::empty({kBatch, c.seq_len}, at::kBool).fill_(false);
  starts[0][0] = true;  // Hides the tail.
  for (int64_t t = 3; t < c.seq_len; t += 11) starts[1][t] = true;
  for (int64_t t = 62; t < std::min<int64_t>(c.seq_len, 67); ++t) starts[0][t] = true;
  return starts;
}

at::Tensor RunCase(const Case& c, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& tail, const at::Tensor& bias = {}) {
  ShortConvInputs in = {.x = x,
                        .weight = weight,
                        .bias = bias,
                        .tail = {},
                        .documents = {},
                        .starts = {},
                        .silu = c.silu};
  if (c.tail) in.tail = tail;
  if (c.documents) in.starts = Starts(c), in.documents = in.starts.to(at::kLong).cumsum(1);
  return ShortConv(in);
}

// Covers lengths around blocks of 64 tokens and below the number of taps, and every number of taps,
// each with and without bias and SiLU.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t seq_len : {1, 2, 5, 63, 64, 65, 67, 150})
    for (const bool documents : {false, true})
      for (const bool tail : {false, true}) cases.push_back({seq_len, 21, 4, tail, documents});
  for (int64_t taps = 2; taps <= 8; ++taps) cases.push_back({70, 5, taps});
  cases.push_back({3, 300, 8});
  for (const bool bias : {false, true}) {
    for (const bool silu : {false, true}) {
      if (!bias && silu) continue;  // Covered above.
      for (int64_t taps = 1; taps <= 8; ++taps)
        cases.push_back({70, 21, taps, taps > 1, true, bias, silu});
      cases.push_back({2, 5, 4, /*tail=*/false, /*documents=*/false, bias, silu});
    }
  }
  return cases;
}

std::string Name(const Case& c) {
  return Concat("T ", c.seq_len, ", D ", c.dim, ", W ", c.taps, c.tail ? ", tail" : "",
                c.documents ? ", documents" : "", c.bias ? ", bias" : "",
                c.silu ? "" : ", no SiLU");
}

// fp32: up to 8 products and a sigmoid in forward, sums over 300 tokens for the weight.
TEST(ShortConvTest, FusedLoopsMatchFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const auto function = [&](const auto& in) {
      const at::Tensor y =
          RunCase(c, in[0], in[1], c.tail ? in[2] : at::Tensor(), c.bias ? in[3] : at::Tensor());
      // So that all have a gradient.
      return y + 0 * (in[2].sum() + in[3].sum()).to(y.scalar_type());
    };
    const std::vector<at::Tensor> inputs = {
        Normal({kBatch, c.seq_len, c.dim}, 1), Normal({c.dim, 1, c.taps}, 2),
        Normal({kBatch, c.taps - 1, c.dim}, 3), Normal({c.dim}, 4)};
    test::ExpectFloatMatchesDouble(function, inputs, 2e-6);
    test::ExpectBf16MatchesDouble(
        function, {inputs[0], inputs[1].to(at::kFloat), inputs[2], inputs[3].to(at::kFloat)});
  }
}

// Rows of x that are columns of a matrix are read in place, with the same bits as a copy.
TEST(ShortConvTest, ColumnsOfAMatrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c = {70, 21, 4};
    const auto run = [&](bool copied) {
      const at::Tensor all = Normal({kBatch, c.seq_len, 50}, 1, dtype).requires_grad_(),
                       weight = Normal({c.dim, 1, c.taps}, 2, at::kFloat).requires_grad_();
      const at::Tensor x = all.narrow(2, 8, c.dim), tail = Normal({kBatch, 3, c.dim}, 3, dtype);
      const at::Tensor y = RunCase(c, copied ? x.contiguous() : x, weight, tail);
      auto results =
          torch::autograd::grad({y}, {all, weight}, {Normal({kBatch, c.seq_len, c.dim}, 4, dtype)});
      results.push_back(y);
      return results;
    };
    const auto got = run(false), want = run(true);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(BitEqual(got[i], want[i])) << i;
  }
}

// The convolutions of q, k and v in one pass have the bits of three calls, with their gradients:
// of different widths, one without a SiLU, with documents and tails. Convolutions that differ in
// their taps, and those in fp64, are computed one by one.
TEST(ShortConvTest, SeveralInOnePassEqualSingleCallsInBits) {
  const at::Tensor starts = at::zeros({kBatch, 70}, at::kBool);
  starts[0][0] = true, starts[1][33] = true;
  const at::Tensor documents = starts.to(at::kLong).cumsum(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const bool with_bias : {false, true}) {
      for (const int64_t other_taps : {4, 3}) {
        SCOPED_TRACE(testing::Message() << dtype << ", bias " << with_bias << ", " << other_taps);
        std::vector<ShortConvInputs> inputs;
        std::vector<at::Tensor> leaves, douts;
        const auto leaf = [&](std::vector<int64_t> shape, at::ScalarType type) {
          const uint64_t seed = leaves.size() + 1;
          return leaves.emplace_back(Normal(std::move(shape), seed, type).requires_grad_());
        };
        const at::ScalarType weight = dtype == at::kDouble ? at::kDouble : at::kFloat;
        for (const int64_t dim : {21, 64, 7}) {
          const int64_t taps = dim == 7 ? other_taps : 4;
          ShortConvInputs in = {.x = leaf({kBatch, 70, dim}, dtype),
                                .weight = leaf({dim, 1, taps}, weight),
                                .tail = leaf({kBatch, taps - 1, dim}, dtype),
                                .documents = documents,
                                .starts = starts,
                                .silu = dim != 64};
          if (with_bias) in.bias = leaf({dim}, weight);
          inputs.push_back(in);
          douts.push_back(Normal({kBatch, 70, dim}, 50 + dim, dtype));
        }
        const std::vector<at::Tensor> together = ShortConvs(inputs);
        std::vector<at::Tensor> alone;
        for (const ShortConvInputs& in : inputs) alone.push_back(ShortConv(in));
        for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(BitEqual(together[i], alone[i])) << i;
        const auto got = torch::autograd::grad(together, leaves, douts),
                   want = torch::autograd::grad(alone, leaves, douts);
        for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(BitEqual(got[i], want[i])) << i;
      }
    }
  }
}

// The contents of a token, a tail or a neighbouring document change no bit of outputs and gradients
// that they must not affect.
TEST(ShortConvTest, NothingLeaksInBits) {
  const Case c = {70, 21, 4};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const at::Tensor weight = Normal({c.dim, 1, c.taps}, 2, dtype);
    const at::Tensor tail = Normal({kBatch, c.taps - 1, c.dim}, 3, dtype);
    const at::Tensor x = Normal({kBatch, c.seq_len, c.dim}, 1, dtype);
    const at::Tensor want = RunCase(c, x, weight, tail);
    for (const int64_t token : {0, 13, 63, 64, 69}) {
      at::Tensor moved = x.clone();
      moved.narrow(1, token, c.seq_len - token).add_(1);
      const at::Tensor y = RunCase(c, moved, weight, tail);
      EXPECT_TRUE(test::BitEqual(y.narrow(1, 0, token), want.narrow(1, 0, token))) << token;
    }
    // Row 1 starts a document at token 14: NaN before it, and NaN gradients after it.
    at::Tensor poisoned = x.clone();
    poisoned.narrow(1, 0, 14).fill_(NAN);
    const at::Tensor y = RunCase(c, poisoned, weight, tail);
    EXPECT_TRUE(test::BitEqual(y[1].narrow(0, 14, 56), want[1].narrow(0, 14, 56)));
    const at::Tensor leaf = x.clone().requires_grad_();
    const at::Tensor part = RunCase(c, leaf, weight, tail).narrow(1, 14, 56);
    const at::Tensor dx = torch::autograd::grad({part.sum()}, {leaf})[0];
    EXPECT_TRUE((dx[1].narrow(0, 0, 14) == 0).all().item<bool>());
  }
}

TEST(ShortConvTest, PackedIsSeparate) {
  const Case c = {70, 21, 4};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weight = Normal({c.dim, 1, c.taps}, 2, dtype);
    const at::Tensor x = Normal({kBatch, c.seq_len, c.dim}, 1, dtype);
    const at::Tensor packed = RunCase(c, x, weight, {});
    for (int64_t first = 3; first + 11 <= c.seq_len; first += 11) {  // The documents of row 1.
      const Case whole = {11, c.dim, c.taps, false, false};
      const at::Tensor alone = RunCase(whole, x.narrow(1, first, 11), weight, {});
      EXPECT_TRUE(test::BitEqual(alone[1], packed[1].narrow(0, first, 11))) << first;
    }
  }
}

// Covers the loops for narrow filters, LibTorch's calls for wide ones, and the carried tail.
TEST(ShortConvTest, ANanStaysInItsDocument) {
  for (const int64_t taps : {4, 9}) {
    const at::Tensor clean = Normal({1, 20, 2}, 1, at::kFloat);
    const at::Tensor x = clean.clone();
    x.select(1, 17).fill_(std::nan(""));
    const at::Tensor starts = at::zeros({1, 20}, at::kBool);
    starts.select(1, 18).fill_(true);
    const auto conv = [&](const at::Tensor& of) {
      return ShortConvInputs{.x = of,
                             .weight = Normal({2, 1, taps}, 2, at::kFloat),
                             .bias = {},
                             .tail = {},
                             .documents = starts.to(at::kLong).cumsum(1),
                             .starts = starts};
    };
    const at::Tensor got = ShortConv(conv(x)), want = ShortConv(conv(clean));
    EXPECT_TRUE(test::BitEqual(got.narrow(1, 0, 17), want.narrow(1, 0, 17))) << taps;
    EXPECT_TRUE(test::BitEqual(got.narrow(1, 18, 2), want.narrow(1, 18, 2))) << taps;
    EXPECT_TRUE(test::BitEqual(ShortConvTail(conv(x)), ShortConvTail(conv(clean)))) << taps;
  }
}

TEST(ShortConvTest, SplitAndCarryInBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ShortConvInputs whole = Inputs();
    whole.x = whole.x.to(dtype), whole.weight = whole.weight.to(dtype);
    whole.tail = whole.tail.to(dtype);
    const at::Tensor want = ShortConv(whole);
    for (int64_t cut = 1; cut < kSeqLen; ++cut) {
      ShortConvInputs first = whole, second = whole;
      first.x = whole.x.narrow(1, 0, cut), second.x = whole.x.narrow(1, cut, kSeqLen - cut);
      second.tail = ShortConvTail(first).to(at::kFloat);  // As a decoding state stores it.
      EXPECT_TRUE(test::BitEqual(at::cat({ShortConv(first), ShortConv(second)}, 1), want)) << cut;
      EXPECT_TRUE(test::BitEqual(ShortConvTail(second), ShortConvTail(whole))) << cut;
    }
  }
}

TEST(ShortConvTest, StepsEqualTheWholeInBitsAndKeepTheirTail) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t taps : {1, 2, 4}) {
      SCOPED_TRACE(taps);
      ShortConvInputs whole = Inputs();
      if (taps == 2) whole.bias = Normal({kDim}, 4, at::kFloat), whole.silu = false;
      whole.x = whole.x.to(dtype);
      whole.weight = whole.weight.narrow(2, 0, taps).to(at::kFloat);
      whole.tail = whole.tail.narrow(1, 0, taps - 1).to(dtype);
      const at::Tensor want = ShortConv(whole);
      at::Tensor tail = whole.tail.to(at::kFloat).clone();
      const void* const memory = tail.const_data_ptr();
      for (int64_t t = 0; t < kSeqLen; ++t)
        EXPECT_TRUE(test::BitEqual(ShortConvStep({.x = whole.x.select(1, t),
                                                  .weight = whole.weight,
                                                  .bias = whole.bias,
                                                  .silu = whole.silu},
                                                 tail),
                                   want.select(1, t)))
            << t;
      EXPECT_EQ(tail.const_data_ptr(), memory);
      EXPECT_TRUE(test::BitEqual(tail, ShortConvTail(whole).to(at::kFloat)));
    }
  }
  at::Tensor none;
  EXPECT_HL_ERROR(ShortConvStep({.x = Inputs().x, .weight = Inputs().weight}, none),
                  ExitCode::kInternal, "ShortConvStep got x [2, 9, 5]", "tail undefined");
}

TEST(ShortConvTest, BadInput) {
  ShortConvInputs good = Inputs();
  for (at::Tensor* x : {&good.x, &good.weight, &good.tail}) *x = x->to(at::kFloat);
  good.bias = at::zeros({kDim}, at::kFloat);
  good.starts = at::zeros({kBatch, kSeqLen}, at::kBool);
  good.documents = at::zeros({kBatch, kSeqLen}, at::kLong);
  const auto expect = [&](const auto& change, ExitCode code, const std::string& message) {
    ShortConvInputs changed = good;
    change(changed);
    EXPECT_HL_ERROR(ShortConv(changed), code, message);
    EXPECT_HL_ERROR(ShortConvTail(changed), code, message);
  };
  const ExitCode internal = ExitCode::kInternal, usage = ExitCode::kUsage;
  expect(
      [](auto& in) { in.weight = in.weight.narrow(0, 0, kDim - 1); }, internal,
      "ShortConv got x [2, 9, 5] fp32 on cpu with weight [4, 1, 4] fp32 on cpu and tail [2, 3, 5] "
      "fp32 on cpu. Use x [B, T, D], weight [D, 1, W] and tail [B, W-1, D] or none");
  expect([](auto& in) { in.weight = in.weight.select(1, 0); }, internal, "weight [5, 4]");
  expect([](auto& in) { in.weight = in.weight.narrow(2, 0, 0); }, internal, "weight [5, 1, 0]");
  expect([](auto& in) { in.weight = in.weight.to(at::kMeta); }, internal, "fp32 on meta");
  expect([](auto& in) { in.bias = in.bias.narrow(0, 0, kDim - 1); }, internal,
         "ShortConv got x [2, 9, 5] fp32 on cpu with bias [4] fp32 on cpu. Use [D] on the same "
         "device");
  expect([](auto& in) { in.bias = in.bias.to(at::kMeta); }, internal, "fp32 on meta");
  expect([](auto& in) { in.bias = in.bias.to(at::kHalf); }, usage,
         "ShortConv does not support fp16");
  expect([](auto& in) { in.tail = in.tail.narrow(1, 0, kTaps - 2); }, internal, "tail [2, 2, 5]");
  expect([](auto& in) { in.tail = in.tail.narrow(0, 0, 1); }, internal, "tail [1, 3, 5]");
  expect([](auto& in) { in.tail = in.tail.to(at::kMeta); }, internal, "fp32 on meta");
  expect([](auto& in) { in.documents = in.documents.narrow(1, 0, kSeqLen - 1); }, internal,
         "documents [2, 8] int64 on cpu and starts [2, 9] bool on cpu. Use [B, T] int64 and [B, T] "
         "bool");
  expect([](auto& in) { in.documents = in.documents.to(at::kInt); }, internal, "int32");
  expect([](auto& in) { in.starts = at::Tensor(); }, internal, "starts undefined");
  expect([](auto& in) { in.x = in.x.to(at::kHalf); }, usage,
         "ShortConv does not support fp16. Use fp32, bf16 or fp64.");
  expect([](auto& in) { in.tail = in.tail.to(at::kHalf); }, usage,
         "ShortConv does not support fp16");
}

}  // namespace
}  // namespace halflife::ops
