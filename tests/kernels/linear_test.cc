#include "kernels/linear/linear.h"

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

// An output that nothing depends on gives no gradient, and takes none away from the others.
TEST(SharedInputLinearTest, UnusedOutputs) {
  const at::Tensor x = Normal({3, 4}, 1).requires_grad_(), a = Normal({2, 4}, 2).requires_grad_(),
                   b = Normal({2, 4}, 3).requires_grad_();
  SharedInputLinear(x, {a, b})[1].sum().backward();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_TRUE(test::Close(x.grad(), b.detach().sum(0).expand({3, 4}), 1e-14));
}

}  // namespace
}  // namespace halflife::kernels
