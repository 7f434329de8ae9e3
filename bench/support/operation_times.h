// Times a differentiable operation on a GPU, forward and forward + backward, and its share of the
// memory bandwidth. The JSON has the fields of bench_decay_attention that the comparisons read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace halflife::bench {

using Tensors = std::vector<at::Tensor>;

// Computes the gradients of all operands, which are leaves, from `dout`.
struct DifferentiableOperation {
  std::function<at::Tensor(const Tensors&)> run;
  std::function<Tensors()> make_operands;  // on a GPU
  at::Tensor dout;
};

// Returns the output, and the gradient of each operand.
Tensors ResultsOf(const std::function<at::Tensor(const Tensors&)>& run, const Tensors& operands,
                  const at::Tensor& dout);

nlohmann::ordered_json TimeOnCuda(const DifferentiableOperation& operation, int rounds);

}  // namespace halflife::bench
