// RWKV-4's WKV scan equals the sum over pairs and the oracle, in loops and through tensors.
#include "ops/scans/wkv4.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "kernels/scans/wkv4_problem.h"
#include "ops/gradient_check.h"
#include "ops/sink_check.h"
#include "ops/torch/autograd.h"
#include "ops/torch/tensor_checks.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using ::halflife::test::BitEqual;
using ::halflife::test::Close;
using ::halflife::test::ExpectGradientsInSinks;
using ::halflife::test::Normal;
using ::halflife::test::ToTensor;
using ::halflife::test::ToValues;
using test::Values;
using test::WkvCase;

template <typename T>
test::WkvGot Run(const WkvCase& c, const test::WkvProblem<T>& p) {
  const at::ScalarType stored = sizeof(T) == 2 ? at::kBFloat16 : at::kFloat;
  const std::vector<int64_t> tokens = {test::kWkvBatch, c.seq_len, c.dim},
                             states = {test::kWkvBatch, c.dim};
  const auto leaf = [](const at::Tensor& x) { return x.requires_grad_(); };
  ops::WkvInputs in = {.k = leaf(ToTensor(p.oracle.k, tokens, stored)),
                       .v = leaf(ToTensor(p.oracle.v, tokens, stored)),
                       .log_decay = leaf(ToTensor(p.oracle.log_decay, {c.dim}, at::kFloat)),
                       .bonus = leaf(ToTensor(p.oracle.bonus, {c.dim}, at::kFloat)),
                       .starts = {},
                       .initial = {}};
  if (c.documents) {
    in.starts = at::zeros({test::kWkvBatch, c.seq_len}, at::kBool);
    std::copy(p.oracle.starts.begin(), p.oracle.starts.end(), in.starts.mutable_data_ptr<bool>());
  }
  ops::Tensors leaves = {in.k, in.v, in.log_decay, in.bonus};
  if (c.initial) {
    in.initial = {leaf(ToTensor(p.p, states, at::kFloat)), leaf(ToTensor(p.q, states, at::kFloat)),
                  ToTensor(p.o, states, at::kFloat)};
    leaves.insert(leaves.end(), {in.initial.numerator, in.initial.denominator});
  }
  const auto [out, final] = ops::Wkv4(in);
  EXPECT_EQ(out.scalar_type(), stored);
  EXPECT_FALSE(final.log_scale.requires_grad());
  auto grads = torch::autograd::grad(
      {out, final.numerator, final.denominator}, leaves,
      {ToTensor(p.oracle.dout, tokens, stored), ToTensor(p.dp, states, at::kFloat),
       ToTensor(p.dq, states, at::kFloat)});
  grads.resize(6, at::zeros({1}));
  return {ToValues(out),
          ToValues(final.numerator),
          ToValues(final.denominator),
          ToValues(final.log_scale),
          ToValues(grads[0]),
          ToValues(grads[1]),
          ToValues(grads[2]),
          ToValues(grads[3]),
          ToValues(grads[4]),
          ToValues(grads[5])};
}

template <typename T>
using WkvLoops = test::RowsTest<T>;
TYPED_TEST_SUITE(WkvLoops, test::Storages);

TYPED_TEST(WkvLoops, EqualTheOracle) {
  for (const WkvCase& c : test::WkvCases()) {
    SCOPED_TRACE(Name(c));
    test::WkvProblem<TypeParam> problem(c);
    test::ExpectOracle(problem, Run(c, problem), c.initial, test::WkvTolerance(c));
  }
}

// A problem as tensors.
ops::WkvInputs Inputs(int64_t seq_len, int64_t dim, at::ScalarType dtype, double key_scale = 1) {
  return {.k = (Normal({2, seq_len, dim}, 1) * key_scale).to(dtype),
          .v = Normal({2, seq_len, dim}, 2, dtype),
          .log_decay = -Normal({dim}, 3).exp().to(dtype),
          .bonus = Normal({dim}, 4, dtype),
          .starts = {},
          .initial = {}};
}
ops::WkvInputs Narrow(const ops::WkvInputs& in, int64_t begin, int64_t length) {
  ops::WkvInputs part = in;
  part.k = in.k.narrow(1, begin, length), part.v = in.v.narrow(1, begin, length);
  if (in.starts.defined()) part.starts = in.starts.narrow(1, begin, length);
  return part;
}

// Compares with the sum over all pairs of tokens, for keys of up to +-60, whose exponentials
// overflow fp32, and for 2,048 tokens. Exponents up to 120 have errors of 4e-6, and a factor e^w
// with an error of 2^-25 is applied about 150 times. A weighted average of values of order 1
// changes no more than its weights do: 2e-5 in total.
TEST(Wkv4Test, IsTheSumOverPairsForLargeKeys) {
  constexpr int64_t kSeqLen = 2048, kDim = 5;
  ops::WkvInputs in = Inputs(kSeqLen, kDim, at::kFloat);
  in.k = (::halflife::test::Uniform({2, kSeqLen, kDim}, 5) * 120 - 60).to(at::kFloat);
  in.k.select(2, 1).mul_(0.05);                   // One channel with ordinary keys.
  in.k.select(2, 2).narrow(1, 100, 1).fill_(60);  // One with a large key, whose weight decays.
  in.k.select(2, 2).narrow(1, 101, 1900).fill_(-60);
  in.log_decay = ToTensor({-0.0067, -0.01, -0.1, -20, -1}, {kDim}, at::kFloat);
  const Values out = ToValues(ops::Wkv4(in).out), k = ToValues(in.k), v = ToValues(in.v),
               w = ToValues(in.log_decay), u = ToValues(in.bonus);
  Values want(out.size());
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t c = 0; c < kDim; ++c) {
      const auto at = [&](int64_t t) { return (b * kSeqLen + t) * kDim + c; };
      for (int64_t t = 0; t < kSeqLen; ++t) {
        double numerator = std::exp(u[c] + k[at(t)]) * v[at(t)],
               denominator = std::exp(u[c] + k[at(t)]);
        for (int64_t i = 0; i < t; ++i) {
          const double weight = std::exp(static_cast<double>(t - 1 - i) * w[c] + k[at(i)]);
          numerator += weight * v[at(i)], denominator += weight;
        }
        want[at(t)] = numerator / denominator;
      }
    }
  }
  test::ExpectClose<float>("out", out, want, 2e-5);
}

// Gradients are finite and correct as well, compared with the oracle in fp64.
TEST(Wkv4Test, GradientsOfLargeKeysAreFinite) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ops::WkvInputs in = Inputs(3000, 3, dtype, 40);
    in.log_decay = ToTensor({-0.0001, -300, 0}, {3}, dtype);
    for (at::Tensor* x : {&in.k, &in.v, &in.log_decay, &in.bonus}) x->requires_grad_();
    const auto [out, final] = ops::Wkv4(in);
    const at::Tensor loss = out.to(at::kFloat).square().sum() + final.numerator.sum();
    for (const at::Tensor& grad :
         torch::autograd::grad({loss}, {in.k, in.v, in.log_decay, in.bonus}))
      EXPECT_TRUE(grad.isfinite().all().item<bool>());
    EXPECT_LE(out.abs().max().item<double>(), in.v.abs().max().item<double>() * 1.01);
  }
}

TEST(Wkv4Test, GradientsAreFiniteDifferences) {
  constexpr int64_t kSeqLen = 20, kDim = 3;
  at::Tensor starts = at::zeros({2, kSeqLen}, at::kBool);
  starts[1][0] = true, starts[1][7] = true;
  const at::Tensor weights = Normal({2, kSeqLen, kDim}, 9);
  const at::Tensor log_scale = Normal({2, kDim}, 10);
  ::halflife::test::ExpectFiniteDifferences(
      [&](const auto& in) {
        const auto [out, final] = ops::Wkv4({.k = in[0],
                                             .v = in[1],
                                             .log_decay = in[2],
                                             .bonus = in[3],
                                             .starts = starts,
                                             .initial = {in[4], in[5], log_scale}});
        const at::Tensor scale = final.log_scale.exp();  // The true scale of the state.
        return (out * weights).sum() + (final.numerator * scale).sum() +
               (final.denominator * scale).square().sum();
      },
      {Normal({2, kSeqLen, kDim}, 1), Normal({2, kSeqLen, kDim}, 2), -Normal({kDim}, 3).exp(),
       Normal({kDim}, 4), Normal({2, kDim}, 5), Normal({2, kDim}, 6).abs() + 0.1});
}

// Takes p with w = -e^p instead of w, also with a carried state and for one token. In fp32 the
// exponential changes w by two roundings.
TEST(Wkv4Test, TakesWhatTheDecayIsAnExponentialOf) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
    ops::WkvInputs in = Inputs(40, 66, dtype, 3);
    in.initial = {Normal({2, 66}, 5, dtype), Normal({2, 66}, 6, dtype).exp(),
                  Normal({2, 66}, 7, dtype)};
    const at::Tensor p = (-in.log_decay).log();
    const auto run = [&](bool negative_exp) {
      const at::Tensor leaf = p.detach().clone().requires_grad_();
      in.negative_exp = negative_exp;
      in.log_decay = negative_exp ? leaf : -leaf.exp();
      const auto [out, final] = ops::Wkv4(in);
      ops::Tensors results =
          torch::autograd::grad({out, final.numerator}, {leaf, in.bonus},
                                {Normal({2, 40, 66}, 8, dtype), Normal({2, 66}, 9, dtype)});
      results.insert(results.end(), {out, final.numerator, final.denominator});
      ops::WkvMemory state = {in.initial.numerator.clone(), in.initial.denominator.clone(),
                              in.initial.log_scale.clone()};
      results.push_back(ops::Wkv4Step({.k = in.k.select(1, 0),
                                       .v = in.v.select(1, 0),
                                       .log_decay = in.log_decay.detach(),
                                       .negative_exp = negative_exp,
                                       .bonus = in.bonus},
                                      state));
      results.push_back(state.numerator);
      return results;
    };
    in.bonus.requires_grad_();
    const ops::Tensors got = run(true), want = run(false);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], tolerance)) << ops::DTypeName(dtype) << " " << i;
  }
}

// Two of the three gradients per channel are summed in place by their owner.
TEST(Wkv4Test, SinksGetTheGradientsOfDecayAndBonus) {
  for (const bool added : {false, true}) {
    ops::WkvInputs in = Inputs(40, 7, at::kFloat);
    in.log_decay = (-in.log_decay).log(), in.negative_exp = true;
    for (at::Tensor* x : {&in.k, &in.log_decay, &in.bonus}) x->requires_grad_();
    const at::Tensor out = ops::Wkv4(in).out, dout = Normal({2, 40, 7}, 5, at::kFloat);
    ExpectGradientsInSinks(out, dout, {in.log_decay, in.bonus}, added);
  }
}

TEST(Wkv4Test, SplitAnywhereAndStepsAreTheWhole) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    ops::WkvInputs in = Inputs(40, 66, dtype, 3);
    const at::Tensor want = ops::Wkv4(in).out;
    for (const int64_t cut : {1, 15, 16, 17, 39}) {
      const auto [first, state] = ops::Wkv4(Narrow(in, 0, cut));
      ops::WkvInputs rest = Narrow(in, cut, 40 - cut);
      rest.initial = state;
      EXPECT_TRUE(BitEqual(at::cat({first, ops::Wkv4(rest).out}, 1), want)) << cut;
    }
    const auto wide = in.k.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
    ops::WkvMemory state = {at::zeros({2, 66}, wide), at::zeros({2, 66}, wide),
                            at::zeros({2, 66}, wide)};
    const void* const memory = state.numerator.const_data_ptr();
    for (int64_t t = 0; t < 40; ++t) {
      const at::Tensor out = ops::Wkv4Step({.k = in.k.select(1, t),
                                            .v = in.v.select(1, t),
                                            .log_decay = in.log_decay,
                                            .bonus = in.bonus},
                                           state);
      EXPECT_TRUE(BitEqual(out, want.select(1, t))) << t;
    }
    EXPECT_EQ(state.numerator.const_data_ptr(), memory);
    EXPECT_TRUE(BitEqual(state.denominator, ops::Wkv4(in).final.denominator));
  }
}

// A state of zeros with any scale is the same as no state.
TEST(Wkv4Test, ZerosAreNoState) {
  ops::WkvInputs in = Inputs(5, 7, at::kFloat);
  const at::Tensor want = ops::Wkv4(in).out;
  EXPECT_TRUE(BitEqual(want.select(1, 0), in.v.select(1, 0)));
  for (const double scale : {0.0, 50.0, -50.0}) {
    const at::Tensor zeros = at::zeros({2, 7});
    in.initial = {zeros, zeros, at::full({2, 7}, scale)};
    EXPECT_TRUE(BitEqual(ops::Wkv4(in).out, want)) << scale;
  }
}

// The scale of a state is arbitrary, if the numbers match it.
TEST(Wkv4Test, OutputsDoNotDependOnTheScale) {
  ops::WkvInputs in = Inputs(20, 7, at::kDouble);
  in.initial = {Normal({2, 7}, 5), Normal({2, 7}, 6).exp(), Normal({2, 7}, 7)};
  const at::Tensor want = ops::Wkv4(in).out;
  for (const double shift : {-30.0, 0.75, 30.0}) {
    ops::WkvInputs moved = in;
    moved.initial = {in.initial.numerator * std::exp(-shift),
                     in.initial.denominator * std::exp(-shift), in.initial.log_scale + shift};
    EXPECT_TRUE(Close(ops::Wkv4(moved).out, want, 1e-13)) << shift;
  }
}

TEST(Wkv4Test, NothingLeaksInBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ops::WkvInputs in = Inputs(50, 66, dtype);
    const at::Tensor want = ops::Wkv4(in).out;
    for (const int64_t token : {0, 15, 16, 31, 49}) {
      ops::WkvInputs moved = in;
      moved.k = in.k.clone(), moved.v = in.v.clone();
      moved.k.narrow(1, token, 50 - token).add_(20);
      const at::Tensor out = ops::Wkv4(moved).out;
      EXPECT_TRUE(BitEqual(out.narrow(1, 0, token), want.narrow(1, 0, token))) << token;
    }
    // Documents have the bits of separate sequences. NaN and gradients do not cross their starts.
    in.starts = at::zeros({2, 50}, at::kBool);
    in.starts[1][20] = true;
    const at::Tensor alone = ops::Wkv4(Narrow(Inputs(50, 66, dtype), 20, 30)).out;
    in.k = in.k.clone().requires_grad_();
    const at::Tensor rest = ops::Wkv4(in).out[1].narrow(0, 20, 30);
    const at::Tensor dk = torch::autograd::grad({rest.sum()}, {in.k})[0];
    EXPECT_TRUE((dk[1].narrow(0, 0, 20) == 0).all().item<bool>());
    in.k = in.k.detach().clone();
    in.k.narrow(1, 5, 1).fill_(NAN);
    const at::Tensor out = ops::Wkv4(in).out;
    EXPECT_TRUE(BitEqual(out[1].narrow(0, 20, 30), alone[1]));
    EXPECT_TRUE(out[0].narrow(0, 5, 45).isnan().all().item<bool>());
  }
}

TEST(Wkv4Test, BitsDoNotDependOnTheNumberOfThreads) {
  ::halflife::test::ExpectSameBitsWithThreads([] {
    ops::WkvInputs in = Inputs(50, 200, at::kFloat);
    for (at::Tensor* x : {&in.k, &in.v, &in.log_decay, &in.bonus}) x->requires_grad_();
    return torch::autograd::grad({ops::Wkv4(in).out}, {in.k, in.v, in.log_decay, in.bonus},
                                 {Normal({2, 50, 200}, 5, at::kFloat)});
  });
}

// Results are those of fp32, rounded once, in both directions.
TEST(Wkv4Test, RoundsToBf16WhereAsked) {
  ops::WkvInputs in = Inputs(20, 7, at::kFloat);
  for (at::Tensor* x : {&in.k, &in.v, &in.log_decay, &in.bonus}) x->requires_grad_();
  const auto run = [&](bool round) {
    in.round_to_bf16 = round;
    const at::Tensor out = ops::Wkv4(in).out;
    ops::Tensors results = {out.detach()};
    for (const at::Tensor& grad : torch::autograd::grad({out}, {in.k, in.v, in.log_decay, in.bonus},
                                                        {Normal({2, 20, 7}, 5, at::kFloat)}))
      results.push_back(grad);
    return results;
  };
  const ops::Tensors rounded = run(true), plain = run(false);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(rounded[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(BitEqual(rounded[i], plain[i].to(at::kBFloat16).to(at::kFloat))) << i;
    EXPECT_FALSE(BitEqual(rounded[i], plain[i])) << i;
  }
}

TEST(Wkv4Test, NoTokensKeepTheState) {
  ops::WkvInputs in = Inputs(0, 7, at::kFloat);
  EXPECT_TRUE((ops::Wkv4(in).final.denominator == 0).all().item<bool>());
  in.initial = {at::full({2, 7}, 2.0f), at::full({2, 7}, 3.0f), at::full({2, 7}, 4.0f)};
  EXPECT_TRUE(BitEqual(ops::Wkv4(in).final.log_scale, in.initial.log_scale));
}

TEST(Wkv4Test, BadInput) {
  const ops::WkvInputs good = Inputs(4, 7, at::kFloat);
  const auto expect = [&](const auto& change, ExitCode code, const std::string& message) {
    ops::WkvInputs changed = good;
    change(changed);
    EXPECT_HL_ERROR(ops::Wkv4(changed), code, message);
  };
  const ExitCode internal = ExitCode::kInternal;
  expect(
      [](auto& in) { in.v = in.v.narrow(2, 0, 6); }, internal,
      "Wkv4 got k [2, 4, 7] fp32 on cpu and v [2, 4, 6] fp32 on cpu. Use [B, T, D] of one dtype");
  expect([](auto& in) { in.bonus = in.bonus.narrow(0, 0, 6); }, internal, "bonus [6] fp32");
  expect(
      [](auto& in) {
        in.starts = at::zeros({2, 3}, at::kBool);
      },
      internal, "starts [2, 3] bool");
  expect([](auto& in) { in.initial.numerator = at::zeros({2, 7}); }, internal, "undefined");
  expect([](auto& in) { in.k = in.k.to(at::kHalf), in.v = in.v.to(at::kHalf); }, ExitCode::kUsage,
         "Wkv4 does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::kernels
