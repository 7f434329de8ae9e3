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
