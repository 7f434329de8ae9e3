// Mathematical properties of polynomial attention in each of its forms on the CPU. Numbers are
// those of the required properties of the two papers' kernels.
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "kernels/polynomial_attention/problem.h"

namespace halflife::kernels {
namespace {

using namespace test;

constexpr PolynomialForm kForms[] = {PolynomialForm::kQuadratic, PolynomialForm::kChunked};

at::Tensor Out(const Problem& p, PolynomialForm form, at::ScalarType dtype = at::kFloat) {
  return RunKernel(p, {.dtype = dtype, .form = form}).at("out");
}
// Returns z, [B, T, H, 1]: the output for values of one without the normalizer.
at::Tensor Sums(const Problem& p, PolynomialForm form, at::ScalarType dtype) {
  Problem ones = p;
  ones.shape.kernel.normalise = false;
  ones.shape.dim_v = 1;
  ones.v = ones.dout = at::ones_like(p.v.narrow(3, 0, 1));
  return Out(ones, form, dtype);
}

// Property 4. A NaN affects only later tokens of its document.
TEST(PolynomialProperties, TokensChangeNoBitOfEarlierOutputs) {
  for (const Kernel& kernel : kKernels)
    for (const PolynomialForm form : kForms) {
      Problem p = MakeProblem({.seq_len = 90, .kernel = kernel, .document_starts = {0, 70}}, 1);
      const at::Tensor before = Out(p, form);
      for (const int64_t token : {0, 1, 31, 32, 45, 69, 89})
        for (const double value : {3.0, std::numeric_limits<double>::quiet_NaN()}) {
          Problem changed = p;
          for (at::Tensor* x : {&changed.q, &changed.k, &changed.v}) {
            *x = x->clone();
            x->select(1, token).fill_(value);
          }
          const at::Tensor after = Out(changed, form);
          EXPECT_TRUE(BitEqual(after.narrow(1, 0, token), before.narrow(1, 0, token)))
              << kernel.name << " token " << token;
          EXPECT_FALSE(BitEqual(after.select(1, token), before.select(1, token)));
          if (token < 70) {
            EXPECT_TRUE(BitEqual(after.narrow(1, 70, 20), before.narrow(1, 70, 20)))
                << kernel.name << " token " << token;
          }
        }
    }
}

// Property 5: o = const z / (z + eps).
TEST(PolynomialProperties, ConstantValuesComeBack) {
  for (const Kernel& kernel : {kBased, kRebased, kShifted})
    for (const PolynomialForm form : kForms) {
      Problem p = MakeProblem({.kernel = kernel, .norm_eps = 0.5}, 2);
      p.v = at::full_like(p.v, -1.75);
      const at::Tensor z = Sums(p, form, at::kDouble);
      EXPECT_TRUE(Close(Out(p, form, at::kDouble), (-1.75 * z / (z + 0.5)).expand_as(p.v), 1e-12));
    }
}

// Property 6: every output is within the range of the visible values and 0, and without eps within
// that of the values. Rounding moves both by 1e-6 of a value.
TEST(PolynomialProperties, OutputsLieWithinTheValues) {
  for (const Kernel& kernel : {kBased, kRebased, kShifted})
    for (const PolynomialForm form : kForms)
      for (const double eps : {0.5, 1e-12}) {
        const Problem p = MakeProblem({.kernel = kernel, .norm_eps = eps}, 3);
        const at::Tensor out = Out(p, form, at::kDouble);
        at::Tensor low = std::get<0>(p.v.cummin(1)), high = std::get<0>(p.v.cummax(1));
        if (eps == 0.5) low = low.clamp_max(0), high = high.clamp_min(0);
        EXPECT_TRUE((out >= low - 1e-6).logical_and(out <= high + 1e-6).all().item<bool>())
            << kernel.name;
      }
}

// Property 7: s^2 does not depend on the sign of q or of a single key; 1 + s + s^2/2 does.
TEST(PolynomialProperties, OnlyTheEvenKernelIsEven) {
  for (const Kernel& kernel : {kBased, kRebased})
    for (const PolynomialForm form : kForms) {
      Problem p = MakeProblem({.kernel = kernel}, 4);
      const at::Tensor before = Out(p, form);
      Problem turned = p, one_key = p;
      turned.q = -p.q;
      one_key.k = p.k.clone();
      one_key.k.select(1, 7).neg_();
      const bool even = kernel.weights.a1 == 0;
      EXPECT_EQ(BitEqual(Out(turned, form), before), even) << kernel.name;
      EXPECT_EQ(BitEqual(Out(one_key, form), before), even) << kernel.name;
    }
}

// Property 8: if z is far above eps, the length of q cancels in ReBased.
TEST(PolynomialProperties, ScaleOfQueriesCancels) {
  for (const PolynomialForm form : kForms) {
    Problem p = MakeProblem({.kernel = kRebased}, 5);
    const at::Tensor before = Out(p, form, at::kDouble);
    p.q = p.q * 0.148;
    EXPECT_TRUE(Close(Out(p, form, at::kDouble), before, 1e-7));
  }
}

// Property 9: an additional coordinate d^(1/4) of q and k turns s into 1 + s, so Based follows from
// ReBased: kappa_B = (kappa_R + 1) / 2, so o_B = (n_R + sum of v) / (z_R + t).
TEST(PolynomialProperties, BasedIsRebasedWithAConstantCoordinate) {
  const Problem p = MakeProblem({.kernel = kBased}, 6);
  const auto augmented = [&](const at::Tensor& x) {
    return at::cat({x, at::full_like(x.narrow(3, 0, 1), std::pow(16.0, 0.25))}, 3);
  };
  for (const PolynomialForm form : kForms) {
    ops::PolynomialAttentionConfig config = {.scale = p.scale(),
                                             .weights = kRebased.weights,
                                             .normalise = false,
                                             .want_final_state = false,
                                             .form = form};
    const auto sums = [&](const at::Tensor& v) {
      return ops::PolynomialAttention({.q = augmented(p.q), .k = augmented(p.k), .v = v}, config)
          .out;
    };
    const at::Tensor ones = at::ones_like(p.v.narrow(3, 0, 1));
    const at::Tensor want = (sums(p.v) + p.v.cumsum(1)) / (sums(ones) + ones.cumsum(1));
    EXPECT_TRUE(Close(Out(p, form, at::kDouble), want, 1e-10));
  }
}

// Property 10: kappa_B = ((1 + s)^2 + 1) / 2 is at least 1/2, so z_i is at least (i + 1) / 2.
TEST(PolynomialProperties, SumsOfBasedGrow) {
  for (const PolynomialForm form : kForms) {
    const Problem p = MakeProblem({.seq_len = 300, .kernel = kBased}, 7);
    const at::Tensor z = Sums(p, form, at::kFloat), least = at::ones_like(z).cumsum(1) / 2;
    EXPECT_TRUE((z >= least * (1 - 1e-5)).all().item<bool>());
  }
}

// Property 11: ReBased without its norm is linear attention on vec(x x^T). Based is not.
TEST(PolynomialProperties, RebasedIsLinearAttentionOnOuterProducts) {
  const Problem p = MakeProblem({.kernel = kRebased}, 8);
  const auto outer = [&](const at::Tensor& x) {
    return (x.unsqueeze(4) * x.unsqueeze(3)).flatten(3) * p.scale();
  };
  const at::Tensor scores =
      at::matmul(outer(p.q).transpose(1, 2), outer(p.k).transpose(1, 2).transpose(2, 3))
          .tril();  // [B, H, T, T]
  const at::Tensor want =
      (at::matmul(scores, p.v.transpose(1, 2)) / scores.sum(3, true)).transpose(1, 2);
  Problem based = p;
  based.shape.kernel = kBased;
  for (const PolynomialForm form : kForms) {
    EXPECT_TRUE(Close(Out(p, form, at::kDouble), want, 1e-9));
    EXPECT_FALSE(Close(Out(based, form, at::kDouble), want, 1e-2));
  }
}

// Property 12: keys of zero have no influence in ReBased, and nothing is divided by 0.
TEST(PolynomialProperties, ZeroKeysGiveZeroAndFiniteGradients) {
  for (const PolynomialForm form : kForms) {
    Problem p = MakeProblem({.kernel = kRebased}, 9);
    p.k = at::zeros_like(p.k);
    const Answer answer = RunKernel(p, {.form = form});
    EXPECT_TRUE(BitEqual(answer.at("out"), at::zeros_like(answer.at("out"))));
    for (const auto& [name, tensor] : answer)
      EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

// Property 13: n and z are up to 300 times larger than the spacing of bf16 and are divided in fp32.
// If n and z were rounded first, the error would be up to 2 x 2^-9 larger.
TEST(PolynomialProperties, DivisionComesBeforeTheRounding) {
  Problem p = MakeProblem({.seq_len = 300, .kernel = kBased}, 10, at::kBFloat16);
  const Answer want = Oracle(p);
  const at::Tensor z = Sums(p, PolynomialForm::kQuadratic, at::kDouble);
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  const at::Tensor best = rounded(want.at("out"));
  const at::Tensor rounded_first = rounded(rounded(want.at("out") * z) / rounded(z));
  EXPECT_GT(RelativeError(rounded_first, best), 1e-3);  // Shows that the test can fail.
  for (const PolynomialForm form : kForms)
    EXPECT_LT(RelativeError(Out(p, form, at::kBFloat16).to(at::kDouble), best), 1e-4);
}

}  // namespace
}  // namespace halflife::kernels
