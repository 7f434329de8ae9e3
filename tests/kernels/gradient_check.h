// Gradients by autograd against central differences, in fp64.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "kernels/random_tensors.h"

namespace halflife::test {

// `loss` maps the inputs (fp64 leaves) to a scalar; every `stride`-th element of each input is checked.
// Error of the difference: step^2 times a third derivative, plus rounding of the loss over the step.
inline void ExpectFiniteDifferences(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& loss,
    const std::vector<at::Tensor>& inputs, double tolerance = 1e-6, int64_t stride = 1) {
  constexpr double kStep = 1e-5;
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  const auto grads = torch::autograd::grad({loss(leaves)}, leaves);
  std::vector<at::Tensor> moved;
  for (const at::Tensor& x : inputs) moved.push_back(x.detach().clone());
  for (size_t input = 0; input < inputs.size(); ++input) {
    auto* data = moved[input].mutable_data_ptr<double>();
    const at::Tensor grad = grads[input].contiguous();
    for (int64_t i = 0; i < moved[input].numel(); i += stride) {
      const double saved = data[i];
      data[i] = saved + kStep;
      const double above = loss(moved).item<double>();
      data[i] = saved - kStep;
      const double below = loss(moved).item<double>();
      data[i] = saved;
      const double got = grad.const_data_ptr<double>()[i];
      EXPECT_NEAR(got, (above - below) / (2 * kStep), tolerance * std::max(1.0, std::abs(got)))
          << "input " << input << " element " << i;
    }
  }
}

// The fused fp32 loops against the same function in fp64: value and gradients.
inline void ExpectFloatMatchesDouble(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, double tolerance) {
  const auto run = [&](at::ScalarType dtype) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : inputs) leaves.push_back(x.to(dtype).clone().requires_grad_());
    const at::Tensor y = function(leaves);
    const at::Tensor dy = Normal(y.sizes().vec(), 999, dtype);
    std::vector<at::Tensor> results = {y.detach()};
    for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy})) results.push_back(grad);
    return results;
  };
  const auto narrow = run(at::kFloat), wide = run(at::kDouble);
  EXPECT_EQ(narrow[0].scalar_type(), at::kFloat);
  for (size_t i = 0; i < wide.size(); ++i)
    EXPECT_TRUE(Close(narrow[i], wide[i], tolerance)) << (i == 0 ? "value" : "gradient ") << i;
}

}  // namespace halflife::test
