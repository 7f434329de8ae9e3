#include "kernels/linear/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include "kernels/gradient_check.h"

namespace halflife::kernels {
namespace {

using test::Normal;

TEST(SharedInputLinearTest, EqualsSeparateLayers) {
  const at::Tensor x = Normal({2, 3, 8}, 1, at::kFloat);
  const std::vector<at::Tensor> weights = {Normal({5, 8}, 2, at::kFloat),
                                           Normal({1, 8}, 3, at::kFloat)};
  const auto y = SharedInputLinear(x, weights);
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(test::BitEqual(y[i], at::linear(x, weights[i]))) << "output " << i;
}

TEST(SharedInputLinearTest, GradientsAreFiniteDifferences) {
  const auto loss = [](const auto& in) {
    const auto y = SharedInputLinear(in[0], {in[1], in[2], in[3]});
    return y[0].square().sum() + y[1].pow(3).sum() + (y[2] * y[0]).sum();
  };
  test::ExpectFiniteDifferences(
      loss, {Normal({2, 3, 4}, 1), Normal({5, 4}, 2), Normal({2, 4}, 3), Normal({5, 4}, 4)});
}

// From 512 tokens and 64 features up fp32 gradients of weights have their own kernel. 1e-6 of the
// largest element, about 100, is ten times what sums of 600 products of unit variance round in the
// mean.
TEST(SharedInputLinearTest, WeightGradientsOfManyTokensAreTheFormula) {
  for (const bool expanded : {false, true}) {
    const auto grads = [&](at::ScalarType dtype) {
      const at::Tensor x = Normal({2, 300, 65}, 1, dtype),
                       weight = Normal({70, 65}, 2, dtype).requires_grad_();
      const at::Tensor y = Linear(x, weight), dy = Normal({70}, 3, dtype).expand_as(y);
      y.backward(expanded ? dy : Normal({2, 300, 70}, 3, dtype));
      return weight.grad();
    };
    EXPECT_TRUE(test::Close(grads(at::kFloat), grads(at::kDouble), 1e-6)) << expanded;
  }
}

// Sums of up to 1400 products in fp32, rounded to bf16, and so are the weights' gradients. Where
// the matmuls run in bf16 (few rows, or a machine with tiles), the sum of two input gradients is
// rounded after each of them: three half units, as the first may exceed the sum.
TEST(SharedInputLinearTest, Bf16IsTheFormula) {
  for (const int64_t rows : {5, 64, 700}) {
    SCOPED_TRACE(rows);
    test::ExpectBf16MatchesDouble(
        [](const auto& in) {
          return at::cat(SharedInputLinear(in[0], {in[1], in[2]}), -1);
        },
        {Normal({2, rows, 24}, 1), Normal({40, 24}, 2), Normal({3, 24}, 3)}, /*roundings=*/3);
    test::ExpectBf16MatchesDouble([](const auto& in) { return Linear(in[0], in[1]); },
                                  {Normal({2, rows, 24}, 1), Normal({40, 24}, 2)});
  }
}

// An output that nothing depends on gives no gradient, and takes none away from the others.
TEST(SharedInputLinearTest, UnusedOutputs) {
  const at::Tensor x = Normal({3, 4}, 1).requires_grad_(), a = Normal({2, 4}, 2).requires_grad_(),
                   b = Normal({2, 4}, 3).requires_grad_();
  SharedInputLinear(x, {a, b})[1].sum().backward();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_TRUE(test::Close(x.grad(), b.detach().sum(0).expand({3, 4}), 1e-14));

  const at::Tensor narrow = Normal({100, 4}, 1, at::kBFloat16).requires_grad_(),
                   c = Normal({2, 4}, 2, at::kBFloat16).requires_grad_(),
                   d = Normal({2, 4}, 3, at::kBFloat16);
  SharedInputLinear(narrow, {c, d})[1].sum().backward();
  EXPECT_FALSE(c.grad().defined());
  EXPECT_TRUE(test::Close(narrow.grad(), d.to(at::kDouble).sum(0).expand({100, 4}), 0x1p-8));
}

}  // namespace
}  // namespace halflife::kernels
