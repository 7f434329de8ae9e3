// What channel mixers share whose tokens pass through wider inner channels: how many these are, and
// the matrices into them and out of them.
//
//   const Projection up(context, "up_proj", {.out = width, .in = model_dim}, /*with_bias=*/false);
//   const OutputProjection down = DownProjection(context, width, /*with_bias=*/false);
#pragma once

#include <cstdint>
#include <string>

#include "model/output_projection.h"

namespace halflife::model {

// The width of the inner channels, given or derived from a ratio.
struct WidthOptions {
  int64_t width = 0;  // 0: derived from the ratio
  double ratio = 4;
  // Reports a ratio that gives no width; else sets `width`. `derived`: of the model's dim.
  void Resolve(double derived, int64_t multiple, ProblemList& problems);
};

// What glu and mlp have in common.
struct ActivatedOptions : OptionsOf<ActivatedOptions> {
  WidthOptions inner;
  std::string activation = "gelu";
  bool bias = false;
  std::vector<Option> Fields() override;
};

// One matrix with an optional bias.
struct Projection {
  Parameter weight, bias;  // bias undeclared: none
  Projection() = default;
  Projection(const PartContext& context, const std::string& name, const MatrixShape& shape,
             bool with_bias);
};

// Returns the matrix out of the inner channels, down_proj.
OutputProjection DownProjection(const PartContext& context, int64_t width, bool with_bias);

}  // namespace halflife::model
