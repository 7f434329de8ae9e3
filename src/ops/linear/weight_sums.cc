#include "ops/linear/linear_internal.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ops/torch/dispatch.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {

WeightSums::WeightSums(std::vector<at::Tensor> weights) : weights_(std::move(weights)) {
  for (const at::Tensor& weight : weights_)
    if (GradientSink* const sink = GradientSinkOf(weight)) sinks_.push_back(sink);
  if (sinks_.size() != weights_.size()) sinks_.clear();
  for (GradientSink* const sink : sinks_) targets_.push_back(sink->Next());
  in_targets_ = UsesTargets();
  if (in_targets_) return;
  int64_t rows = 0;
  for (const at::Tensor& weight : weights_) rows += weight.size(0);
  matrix_ = at::empty({rows, weights_[0].size(1)},
                      weights_[0].options().dtype(ComputeType(weights_[0])).requires_grad(false));
}

// Returns true if the sinks' buffers are adjacent and can serve as the matrix.
bool WeightSums::UsesTargets() {
  if (targets_.empty()) return false;
  std::vector<at::Tensor> sums;
  for (const GradientSink::Target& target : targets_) {
    if (target.added != targets_[0].added) return false;
    sums.push_back(target.sum);
  }
  const std::vector<std::vector<size_t>> runs = AdjacentRowGroups(sums);
  if (runs.size() > 1 || !std::ranges::is_sorted(runs[0])) return false;
  matrix_ = JoinRows(sums), added_ = targets_[0].added;
  return true;
}

std::vector<at::Tensor> WeightSums::Finish() {
  std::vector<at::Tensor> grads(weights_.size());
  int64_t row = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int64_t rows = weights_[i].size(0);
    if (targets_.empty()) {
      grads[i] = matrix_.narrow(0, row, rows).to(weights_[i].scalar_type());
    } else {
      if (!in_targets_) targets_[i].Take(matrix_.narrow(0, row, rows));
      sinks_[i]->Written();
    }
    row += rows;
  }
  return grads;
}

}  // namespace halflife::ops
