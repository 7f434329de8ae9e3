// Compares gradients by autograd with central differences, in fp64.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "ops/random_tensors.h"

namespace halflife::test {

// `loss` maps the inputs (fp64 leaves) to a scalar. Every `stride`-th element of each input is
// checked. The error of the difference is step^2 times a third derivative, plus the rounding of the
// loss divided by the step.
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

// Returns the value of a function at copies of the inputs, then its gradients.
inline std::vector<at::Tensor> ValueAndGradients(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  const at::Tensor y = function(leaves);
  const at::Tensor dy = Normal(y.sizes().vec(), 999, y.scalar_type());
  std::vector<at::Tensor> results = {y.detach()};
  for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy})) results.push_back(grad);
  return results;
}

// Expects that two functions have equal values and gradients at the inputs.
inline void ExpectSameFunction(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& got,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& want,
    const std::vector<at::Tensor>& inputs, double tolerance) {
  ExpectClose(ValueAndGradients(got, inputs), ValueAndGradients(want, inputs), tolerance);
}

// Compares values and gradients of the fused fp32 loops with the same function in fp64.
inline void ExpectFloatMatchesDouble(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, double tolerance) {
  const auto run = [&](at::ScalarType dtype) {
    std::vector<at::Tensor> stored;
    for (const at::Tensor& x : inputs) stored.push_back(x.to(dtype));
    return ValueAndGradients(function, stored);
  };
  const auto narrow = run(at::kFloat), wide = run(at::kDouble);
  EXPECT_EQ(narrow[0].scalar_type(), at::kFloat);
  for (size_t i = 0; i < wide.size(); ++i)
    EXPECT_TRUE(Close(narrow[i], wide[i], tolerance)) << (i == 0 ? "value" : "gradient ") << i;
}

// Compares the fused bf16 loops with the same function in fp64 on the same values. fp64 inputs
// become bf16. fp32 inputs (weights) and their gradients stay fp32. Rounding to 8 significant bits
// changes a result by at most 2^-8 of itself, and Close allows this for the largest value. The
// earlier fp32 arithmetic is much more accurate. Set `roundings` above 1 if intermediate results
// are stored too, and to 0 if the value itself stays fp32: then each element of a gradient is
// compared with its own rounding. `weight_roundings` are those of the gradients of fp32 inputs.
inline void ExpectBf16MatchesDouble(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, int roundings = 1, int weight_roundings = 0) {
  const auto run = [&](bool wide) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : inputs) {
      const at::Tensor stored = x.scalar_type() == at::kFloat ? x : x.to(at::kBFloat16);
      leaves.push_back((wide ? stored.to(at::kDouble) : stored).clone().requires_grad_());
    }
    const at::Tensor y = function(leaves);
    const at::Tensor dy = Normal(y.sizes().vec(), 999, at::kBFloat16).to(y.scalar_type());
    std::vector<at::Tensor> results = {y.detach()};
    for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy})) results.push_back(grad);
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_EQ(results[1 + i].scalar_type(), leaves[i].scalar_type());
    return results;
  };
  const auto narrow = run(false), wide = run(true);
  EXPECT_EQ(narrow[0].scalar_type(), roundings == 0 ? at::kFloat : at::kBFloat16);
  for (size_t i = 0; i < wide.size(); ++i) {
    const bool rounded = narrow[i].scalar_type() == at::kBFloat16;
    at::Tensor want = wide[i];
    if (rounded &&
        roundings == 0) {  // The nearest value that the own rounding of an element allows.
      const at::Tensor allowed = want.abs() * 0x1p-8, got = narrow[i].to(at::kDouble);
      want = at::minimum(at::maximum(got, want - allowed), want + allowed);
    }
    EXPECT_TRUE(Close(narrow[i], want, (rounded ? roundings : weight_roundings) * 0x1p-8 + 3e-6))
        << (i == 0 ? "value" : "gradient ") << i;
  }
}

// Expects that run() gives the same bits with 1, 2 and 5 threads.
inline void ExpectSameBitsWithThreads(const std::function<std::vector<at::Tensor>()>& run) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> want = run();
  for (const int threads : {2, 5}) {
    at::set_num_threads(threads);
    const std::vector<at::Tensor> got = run();
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(BitEqual(got[i], want[i])) << threads << " threads, result " << i;
  }
  at::set_num_threads(before);
}

}  // namespace halflife::test
