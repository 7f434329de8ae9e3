#include "model/norms/normed_input.h"

#include <utility>

namespace halflife::model {

const at::Tensor& NormedInput::Tensor() const {
  if (pending()) {
    const at::Tensor branch = std::exchange(branch_, {});
    normed_ = branch.defined() ? norm_->AddAndNorm(*x_, branch) : (*norm_)(*x_);
  }
  return normed_;
}

std::optional<ops::RowOutputs> NormedInput::Launch(const std::vector<at::Tensor>& matrices,
                                                   bool swiglu) const {
  if (!ops::HasRowProducts(pending() ? *x_ : normed_, matrices)) return std::nullopt;
  ops::RowInput input;
  if (pending()) input = {.x = *x_, .branch = branch_, .norm = norm_->ToRowNorm()};
  const bool norms = pending() && ops::HasNormedRowProducts(input, matrices);
  if (!norms) input = {.x = Tensor()};
  std::vector<ops::RowWeight> weights;
  if (swiglu) {
    weights.push_back({.weight = matrices[0], .up = matrices[1]});
  } else {
    for (const at::Tensor& matrix : matrices) weights.push_back({.weight = matrix});
  }
  ops::RowOutputs outputs = ops::RowProducts(input, weights);
  if (!norms) return outputs;
  branch_.reset();
  if (outputs.sum.defined()) *x_ = outputs.sum;
  normed_ = outputs.normed;
  return outputs;
}

std::vector<ops::LinearPart> NormedInput::Products(const std::vector<at::Tensor>& weights) const {
  const std::optional<ops::RowOutputs> outputs = Launch(weights, /*swiglu=*/false);
  if (!outputs) return ops::SharedInputParts(Tensor(), weights);
  std::vector<ops::LinearPart> parts;
  for (const at::Tensor& y : outputs->ys) parts.push_back({.y = y});
  return parts;
}

std::optional<at::Tensor> NormedInput::SwiGluProducts(const at::Tensor& gate,
                                                      const at::Tensor& up) const {
  const std::optional<ops::RowOutputs> outputs = Launch({gate, up}, /*swiglu=*/true);
  return outputs ? std::optional(outputs->ys[0]) : std::nullopt;
}

}  // namespace halflife::model
