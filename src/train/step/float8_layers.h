// Which weights a run multiplies in FP8 (train.precision "fp8"), and their FP8 copies.
//
// FP8 weights: the matrices that model parts declare with `float8` (dist::ParamSpec), if both
// widths are multiples of 16 and at least train.fp8.min_width. They are the projections of mixers
// to queries, keys, values, output gates and outputs, and the matrices of channel mixers.
// Everything else computes as with train.precision "bf16": embedding, head, norms, convolutions,
// low-rank gates, and each matrix whose output is a decay. A weight that several layers share is
// not an FP8 weight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/parameter_layout.h"
#include "model/parameters.h"
#include "ops/linear/float8_linear.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Returns the indices of the FP8 weights. Empty for other precisions.
std::vector<int> FindFloat8Weights(const LoopConfig& train,
                                   const std::vector<dist::ParamSpec>& specs);
// Returns the bytes of the FP8 copies on one rank.
double Float8Bytes(const RunConfig& config, const std::vector<dist::ParamSpec>& specs, bool on_gpu);
// Returns for example "96 matrices, 80.4 % of the parameters".
std::string DescribeFloat8(const LoopConfig& train, const std::vector<dist::ParamSpec>& specs);

// Throws Error kUsage if the model has no FP8 weight, or if the device is a GPU without FP8 matrix
// units. `compute_capability`: 80 for an A100, 90 for an H100; 0: the CPU.
void RequireFloat8(const RunConfig& config, const std::vector<dist::ParamSpec>& specs,
                   int compute_capability);

// Marks the FP8 weights of a model while it exists. Does nothing for other precisions.
class Float8Layers {
 public:
  // The parameters are bound, and the object borrows them.
  Float8Layers(const RunConfig& config, const model::ParameterSet& parameters);
  ~Float8Layers();
  Float8Layers(const Float8Layers&) = delete;
  Float8Layers& operator=(const Float8Layers&) = delete;

  // See ops::Float8Weights.
  void Invalidate() {
    if (weights_) weights_->Invalidate();
  }
  void Refresh() {
    if (weights_) weights_->Refresh();
  }

 private:
  const model::ParameterSet& parameters_;
  std::vector<int> params_;
  std::shared_ptr<ops::Float8Weights> weights_;  // null without FP8
};

}  // namespace halflife::train
