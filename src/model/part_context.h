// What every part of a model is built with: the model's sizes, the names and the home of its
// parameters; and the declarations that parts share.
//
//   Parameter weight = DeclareMatrix(context, "q_proj.weight", {.out = 64, .in = 32});
//   Parameter bias = DeclareBias(context, "q_proj.bias", 64);
#pragma once

#include <cstdint>
#include <string>

#include "model/config/part.h"
#include "model/parameters.h"

namespace halflife::model {

class Positions;

struct PartContext {
  ModelSizes sizes = {};
  int64_t layer = 0;   // of sizes.num_layers, from 0
  std::string prefix;  // parameter names start with it, e.g. "layers.3.attn."
  ParameterSet* parameters = nullptr;
  double initializer_range = 0.02;
  // Matrices start, in place of a normal of initializer_range, from one that is truncated at two
  // standard deviations, L^(-1/3) / sqrt(inputs) of them left (GAU-alpha's; Su, 2022).
  bool fan_in_init = false;
  double norm_eps = 1e-6;  // of norms that a part has within
  // Factors on the standard deviation of the matrices that a residual branch reads and writes its
  // values by, chosen by the block: v_proj and the MLP's first; o_proj and the MLP's last.
  double value_init_scale = 1, output_init_scale = 1;
  // Sub-LN: this norm stands before a branch's output matrix. Null: none does.
  const PartConfig* inner_norm = nullptr;
  // The model's; layers of attention may tell positions by it. Null: by themselves.
  const Positions* positions = nullptr;

  int64_t model_dim() const { return sizes.model_dim; }
  PartContext Below(const std::string& name) const;  // prefix + name
  // The initial values of a matrix with so many inputs.
  Init MatrixInit(int64_t fan_in, double scale = 1) const;
};

struct MatrixShape {
  int64_t out, in;
  double init_scale = 1;
};
// Declares prefix + name: a matrix [out, in], started as MatrixInit says, with weight decay.
Parameter DeclareMatrix(const PartContext& context, const std::string& name,
                        const MatrixShape& shape);
// The weight of a norm [dim]: ones, in fp32, without weight decay.
Parameter DeclareNorm(const PartContext& context, const std::string& name, int64_t dim);
// Zeros [dim], added in the compute dtype, without weight decay.
Parameter DeclareBias(const PartContext& context, const std::string& name, int64_t dim);

}  // namespace halflife::model
