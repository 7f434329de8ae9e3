// Mamba's selective scan equals its recurrence and the oracle, in loops and through tensors.
#include "ops/scans/selective_scan.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "kernels/scans/selective_scan_problem.h"
#include "ops/gradient_check.h"
#include "ops/sink_check.h"
#include "ops/torch/autograd.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using ::halflife::test::BitEqual;
using ::halflife::test::Close;
using ::halflife::test::ExpectGradientsInSinks;
using ::halflife::test::Normal;
using ::halflife::test::ToTensor;
using ::halflife::test::ToValues;
using test::ScanCase;
using test::Values;

template <typename T>
test::ScanGot Run(const test::ScanProblem<T>& problem) {
  const ScanReferenceProblem& p = problem.oracle;
  const at::ScalarType stored = sizeof(T) == 2 ? at::kBFloat16 : at::kFloat;
  const std::vector<int64_t> rows = {p.batch, p.seq_len, p.channels},
                             keys = {p.batch, p.seq_len, p.states},
                             states = {p.batch, p.channels, p.states};
  const auto leaf = [](const Values& values, at::IntArrayRef shape, at::ScalarType dtype) {
    return ToTensor(values, shape, dtype).requires_grad_();
  };
  ops::SelectiveScanInputs in = {.x = leaf(p.x, rows, stored),
                                 .delta = leaf(p.delta, rows, stored),
                                 .delta_bias = leaf(p.delta_bias, {p.channels}, at::kFloat),
                                 .a = leaf(p.a, {p.channels, p.states}, at::kFloat),
                                 .b = leaf(p.b, keys, stored),
                                 .c = leaf(p.c, keys, stored),
                                 .skip = leaf(p.skip, {p.channels}, at::kFloat),
                                 .starts = {},
                                 .initial = {}};
  if (!p.starts.empty()) {
    in.starts = at::zeros({p.batch, p.seq_len}, at::kBool);
    std::copy(p.starts.begin(), p.starts.end(), in.starts.mutable_data_ptr<bool>());
  }
  ops::Tensors leaves = {in.x, in.delta, in.delta_bias, in.skip, in.a, in.b, in.c};
  if (!p.initial.empty()) {
    in.initial = leaf(p.initial, states, at::kFloat);
    leaves.push_back(in.initial);
  }
  const auto [y, final] = ops::SelectiveScan(in);
  EXPECT_EQ(y.scalar_type(), stored);
  auto grads = torch::autograd::grad(
      {y, final}, leaves, {ToTensor(p.dy, rows, stored), ToTensor(p.dfinal, states, at::kFloat)});
  grads.resize(8, at::zeros({1}));
  return {ToValues(y),        ToValues(final),    ToValues(grads[0]), ToValues(grads[1]),
          ToValues(grads[2]), ToValues(grads[3]), ToValues(grads[4]), ToValues(grads[5]),
          ToValues(grads[6]), ToValues(grads[7])};
}

template <typename T>
using ScanLoops = test::RowsTest<T>;
TYPED_TEST_SUITE(ScanLoops, test::Storages);

TYPED_TEST(ScanLoops, EqualTheOracle) {
  for (const ScanCase& c : test::ScanCases()) {
    SCOPED_TRACE(Name(c));
    const test::ScanProblem<TypeParam> problem(c);
    test::ExpectOracle(problem, Run(problem));
  }
}

ops::SelectiveScanInputs Inputs(int64_t seq_len, int64_t channels, int64_t states,
                                at::ScalarType dtype) {
  return {.x = Normal({2, seq_len, channels}, 1, dtype),
          .delta = Normal({2, seq_len, channels}, 2, dtype),
          .delta_bias = Normal({channels}, 3, dtype),
          .a = -Normal({channels, states}, 4).exp().to(dtype),
          .b = Normal({2, seq_len, states}, 5, dtype),
          .c = Normal({2, seq_len, states}, 6, dtype),
          .skip = Normal({channels}, 7, dtype),
          .starts = {},
          .initial = {}};
}
ops::SelectiveScanInputs Narrow(const ops::SelectiveScanInputs& in, int64_t begin, int64_t length) {
  ops::SelectiveScanInputs part = in;
  for (at::Tensor* x : {&part.x, &part.delta, &part.b, &part.c}) *x = x->narrow(1, begin, length);
  if (in.starts.defined()) part.starts = in.starts.narrow(1, begin, length);
  return part;
}

// The layout of a part of the channels within the whole, in both directions.
TEST(SelectiveScanTest, TakesChannelsOutOfWiderRows) {
  constexpr int64_t kFirst = 9, kChannels = 70;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    ops::SelectiveScanInputs in = Inputs(40, 100, 5, dtype);
    for (at::Tensor* x : {&in.delta_bias, &in.a, &in.skip})
      *x = x->to(dtype == at::kDouble ? dtype : at::kFloat).narrow(0, kFirst, kChannels);
    const at::Tensor dy = Normal({2, 40, 100}, 8, dtype).narrow(2, kFirst, kChannels);
    const auto run = [&](bool dense) {
      const auto piece = [&](const at::Tensor& x) {
        const at::Tensor cut = x.narrow(2, kFirst, kChannels).detach();
        return (dense ? cut.contiguous() : cut).requires_grad_();
      };
      ops::SelectiveScanInputs part = in;
      part.x = piece(in.x), part.delta = piece(in.delta);
      const at::Tensor y = ops::SelectiveScan(part).y;
      EXPECT_TRUE(y.is_contiguous());
      ops::Tensors results =
          torch::autograd::grad({y}, {part.x, part.delta}, {dense ? dy.contiguous() : dy});
      results.push_back(y);
      return results;
    };
    const ops::Tensors cut = run(false), dense = run(true);
    for (size_t i = 0; i < cut.size(); ++i) EXPECT_TRUE(BitEqual(cut[i], dense[i])) << i;
  }
}

// Takes p with a = -e^p instead of a, and b and c as columns of one matrix, for many tokens and for
// one. In fp32 the exponential changes a by two roundings, over 40 tokens.
TEST(SelectiveScanTest, TakesExponentsOfDecaysAndColumnsOfAMatrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const ops::SelectiveScanInputs given = Inputs(40, 70, 5, dtype);
    const at::Tensor p = (-given.a).log(), all = Normal({2, 40, 13}, 9, dtype);
    const auto run = [&](bool folded) {
      const at::Tensor leaf = p.detach().clone().requires_grad_(),
                       selected = all.detach().clone().requires_grad_();
      ops::SelectiveScanInputs in = given;
      in.negative_exp = folded;
      in.a = folded ? leaf : -leaf.exp();
      in.b = selected.narrow(2, 3, 5), in.c = selected.narrow(2, 8, 5);
      if (!folded) in.b = in.b.contiguous(), in.c = in.c.contiguous();
      const auto [y, final] = ops::SelectiveScan(in);
      ops::Tensors results =
          torch::autograd::grad({y, final}, {leaf, selected},
                                {Normal({2, 40, 70}, 10, dtype), Normal({2, 70, 5}, 11, dtype)});
      results.insert(results.end(), {y, final});
      at::Tensor state = final.detach().clone();
      results.push_back(ops::SelectiveScanStep({.x = in.x.select(1, 0),
                                                .delta = in.delta.select(1, 0),
                                                .delta_bias = in.delta_bias,
                                                .a = in.a.detach(),
                                                .negative_exp = folded,
                                                .b = in.b.select(1, 0),
                                                .c = in.c.select(1, 0),
                                                .skip = in.skip},
                                               state));
      results.push_back(state);
      return results;
    };
    const ops::Tensors got = run(true), want = run(false);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], dtype == at::kDouble ? 1e-12 : 1e-5)) << dtype << " " << i;
  }
}

TEST(SelectiveScanTest, SinksGetTheWeightsGradients) {
  for (const bool added : {false, true}) {
    ops::SelectiveScanInputs in = Inputs(40, 70, 5, at::kFloat);
    in.a = (-in.a).log(), in.negative_exp = true;
    const ops::Tensors leaves = {in.delta_bias, in.a, in.skip};
    for (const at::Tensor& leaf : leaves) leaf.requires_grad_();
    const at::Tensor y = ops::SelectiveScan(in).y, dy = Normal({2, 40, 70}, 10, at::kFloat);
    ExpectGradientsInSinks(y, dy, leaves, added);
  }
}

TEST(SelectiveScanTest, GradientsAreFiniteDifferences) {
  constexpr int64_t kSeqLen = 35, kChannels = 2, kStates = 3;
  at::Tensor starts = at::zeros({2, kSeqLen}, at::kBool);
  starts[1][0] = true, starts[1][7] = true;
  const at::Tensor weights = Normal({2, kSeqLen, kChannels}, 9);
  const ops::SelectiveScanInputs one = Inputs(kSeqLen, kChannels, kStates, at::kDouble);
  ::halflife::test::ExpectFiniteDifferences(
      [&](const auto& in) {
        const auto [y, final] = ops::SelectiveScan({.x = in[0],
                                                    .delta = in[1],
                                                    .delta_bias = in[2],
                                                    .a = in[3],
                                                    .b = in[4],
                                                    .c = in[5],
                                                    .skip = in[6],
                                                    .starts = starts,
                                                    .initial = in[7]});
        return (y * weights).sum() + final.square().sum();
      },
      {one.x, one.delta, one.delta_bias, one.a, one.b, one.c, one.skip,
       Normal({2, kChannels, kStates}, 8)});
}

TEST(SelectiveScanTest, SplitAnywhereAndStepsAreTheWhole) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const ops::SelectiveScanInputs in = Inputs(40, 66, 5, dtype);
    const auto [want, last] = ops::SelectiveScan(in);
    for (const int64_t cut : {1, 16, 31, 32, 33, 39}) {
      const auto [first, state] = ops::SelectiveScan(Narrow(in, 0, cut));
      ops::SelectiveScanInputs rest = Narrow(in, cut, 40 - cut);
      rest.initial = state;
      EXPECT_TRUE(BitEqual(at::cat({first, ops::SelectiveScan(rest).y}, 1), want)) << cut;
    }
    at::Tensor state = at::zeros_like(last);
    const void* const memory = state.const_data_ptr();
    for (int64_t t = 0; t < 40; ++t) {
      const at::Tensor y = ops::SelectiveScanStep({.x = in.x.select(1, t),
                                                   .delta = in.delta.select(1, t),
                                                   .delta_bias = in.delta_bias,
                                                   .a = in.a,
                                                   .b = in.b.select(1, t),
                                                   .c = in.c.select(1, t),
                                                   .skip = in.skip},
                                                  state);
      EXPECT_TRUE(BitEqual(y, want.select(1, t))) << t;
    }
    EXPECT_EQ(state.const_data_ptr(), memory);
    EXPECT_TRUE(BitEqual(state, last));
  }
}

TEST(SelectiveScanTest, NothingLeaksInBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ops::SelectiveScanInputs in = Inputs(70, 66, 5, dtype);
    const at::Tensor want = ops::SelectiveScan(in).y;
    for (const int64_t token : {0, 31, 32, 69}) {
      ops::SelectiveScanInputs moved = in;
      for (at::Tensor* x : {&moved.x, &moved.delta, &moved.b, &moved.c}) {
        *x = x->clone();
        x->narrow(1, token, 70 - token).add_(1);
      }
      const at::Tensor y = ops::SelectiveScan(moved).y;
      EXPECT_TRUE(BitEqual(y.narrow(1, 0, token), want.narrow(1, 0, token))) << token;
    }
    // Documents have the bits of separate sequences. Gradients and NaN do not cross their starts.
    in.starts = at::zeros({2, 70}, at::kBool);
    in.starts[1][20] = true;
    const at::Tensor alone = ops::SelectiveScan(Narrow(Inputs(70, 66, 5, dtype), 20, 50)).y;
    in.x = in.x.clone().requires_grad_();
    const at::Tensor rest = ops::SelectiveScan(in).y[1].narrow(0, 20, 50);
    const at::Tensor dx = torch::autograd::grad({rest.sum()}, {in.x})[0];
    EXPECT_TRUE((dx[1].narrow(0, 0, 20) == 0).all().item<bool>());
    for (at::Tensor ops::SelectiveScanInputs::*member :
         {&ops::SelectiveScanInputs::x, &ops::SelectiveScanInputs::delta,
          &ops::SelectiveScanInputs::b}) {
      ops::SelectiveScanInputs poisoned = in;
      poisoned.*member = (in.*member).detach().clone();
      (poisoned.*member).narrow(1, 5, 1).fill_(NAN);
      const at::Tensor y = ops::SelectiveScan(poisoned).y;
      EXPECT_TRUE(BitEqual(y[1].narrow(0, 20, 50), alone[1]));
      EXPECT_TRUE(y[0].narrow(0, 5, 65).isnan().all().item<bool>());
    }
  }
}

TEST(SelectiveScanTest, BitsDoNotDependOnTheNumberOfThreads) {
  ::halflife::test::ExpectSameBitsWithThreads([] {
    const ops::SelectiveScanInputs in = Inputs(50, 200, 5, at::kFloat);
    const ops::Tensors leaves = {in.x, in.delta, in.delta_bias, in.a, in.b, in.c, in.skip};
    for (const at::Tensor& x : leaves) x.requires_grad_();
    return torch::autograd::grad({ops::SelectiveScan(in).y}, leaves,
                                 {Normal({2, 50, 200}, 8, at::kFloat)});
  });
}

// Steps of 50 with decays of -1000 clear the state, steps of 1e-30 do not change it.
TEST(SelectiveScanTest, StepsOfAnySizeAreFinite) {
  ops::SelectiveScanInputs in = Inputs(40, 3, 4, at::kFloat);
  in.delta_bias = ToTensor({50, 0, -70}, {3}, at::kFloat);
  in.a = in.a * 20;
  const ops::Tensors leaves = {in.x, in.delta, in.a, in.b};
  for (const at::Tensor& x : leaves) x.requires_grad_();
  const auto [y, final] = ops::SelectiveScan(in);
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  for (const at::Tensor& grad : torch::autograd::grad({y.square().sum() + final.sum()}, leaves))
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
  ops::SelectiveScanInputs wide = in;
  for (at::Tensor* x :
       {&wide.x, &wide.delta, &wide.delta_bias, &wide.a, &wide.b, &wide.c, &wide.skip})
    *x = x->detach().to(at::kDouble);
  EXPECT_TRUE(Close(y, ops::SelectiveScan(wide).y, 2e-6));
}

TEST(SelectiveScanTest, NoTokensKeepTheState) {
  ops::SelectiveScanInputs in = Inputs(0, 3, 4, at::kFloat);
  EXPECT_TRUE((ops::SelectiveScan(in).final == 0).all().item<bool>());
  in.initial = Normal({2, 3, 4}, 8, at::kFloat).requires_grad_();
  const at::Tensor final = ops::SelectiveScan(in).final;
  EXPECT_TRUE(BitEqual(final, in.initial));
  const at::Tensor dfinal = Normal({2, 3, 4}, 9, at::kFloat);
  EXPECT_TRUE(BitEqual(torch::autograd::grad({final}, {in.initial}, {dfinal})[0], dfinal));
}

TEST(SelectiveScanTest, BadInput) {
  const ops::SelectiveScanInputs good = Inputs(4, 7, 3, at::kFloat);
  const auto expect = [&](const auto& change, ExitCode code, const std::string& message) {
    ops::SelectiveScanInputs changed = good;
    change(changed);
    EXPECT_HL_ERROR(ops::SelectiveScan(changed), code, message);
  };
  const ExitCode internal = ExitCode::kInternal;
  expect(
      [](auto& in) { in.delta = in.delta.narrow(2, 0, 6); }, internal,
      "SelectiveScan got x [2, 4, 7] fp32 on cpu and delta [2, 4, 6] fp32 on cpu. Use [B, T, I]");
  expect([](auto& in) { in.a = at::zeros({7, 257}); }, internal, "N of 1 to 256");
  expect([](auto& in) { in.skip = in.skip.narrow(0, 0, 6); }, internal, "skip [6] fp32");
  expect([](auto& in) { in.c = in.c.narrow(2, 0, 2); }, internal, "c [2, 4, 2] fp32");
  expect(
      [](auto& in) {
        in.starts = at::zeros({2, 3}, at::kBool);
      },
      internal, "starts [2, 3] bool");
  expect([](auto& in) { in.initial = at::zeros({2, 7, 2}); }, internal, "state [2, 7, 2] fp32");
  expect([](auto& in) { in.b = in.b.to(at::kHalf); }, ExitCode::kUsage,
         "SelectiveScan does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::kernels
