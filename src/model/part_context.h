// The context with which every part of a model is built: the model's sizes, and the prefix and
// owner of its parameters. Also declares the kinds of parameters that parts share.
//
//   Parameter weight = DeclareMatrix(context, "q_proj.weight", {.out = 64, .in = 32});
//   Parameter bias = DeclareBias(context, "q_proj.bias", 64);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/matrix_part.h"
#include "model/config/part.h"
#include "model/parameters.h"

namespace halflife::model {

class Positions;

struct PartContext {
  ModelSizes sizes = {};
  int64_t layer = 0;   // Number of the layer, from 0 to sizes.num_layers - 1.
  std::string prefix;  // Parameter names start with it, e.g. "layers.3.attn.".
  ParameterSet* parameters = nullptr;
  double initializer_range = 0.02;
  // Matrices start from a normal that is truncated at two standard deviations, with a resulting
  // standard deviation of L^(-1/3) / sqrt(inputs), instead of a normal of initializer_range
  // (GAU-alpha; Su, 2022).
  bool fan_in_init = false;
  double norm_eps = 1e-6;  // eps of norms inside a part.
  // Factors of the standard deviation of a residual branch's matrices, chosen by the block.
  // value_init_scale applies to v_proj and the first matrices of the MLP, output_init_scale to
  // o_proj and the last matrix of the MLP.
  double value_init_scale = 1, output_init_scale = 1;
  // For sub_ln blocks: the norm before the output matrix of a branch. Null: no norm.
  const PartConfig* inner_norm = nullptr;
  // The model's positions, which attention layers may use. Null: layers encode positions by
  // themselves.
  const Positions* positions = nullptr;

  int64_t model_dim() const { return sizes.model_dim; }
  PartContext Below(const std::string& name) const;  // Appends `name` to the prefix.
  // Returns the initialiser of a matrix with `fan_in` inputs.
  Init MatrixInit(int64_t fan_in, double scale = 1) const;
};

struct MatrixShape {
  int64_t out, in;
  double init_scale = 1;
  std::optional<Init> init = {};       // absent: MatrixInit of `in` and init_scale
  int64_t heads = 1;                   // blocks of out / heads rows, one per attention head
  std::vector<MatrixPart> parts = {};  // if the rows are several matrices; empty: {{out, heads}}
  bool float8 = false;                 // a large product whose output is no decay
};
// Declares a matrix [out, in] named prefix + name, with weight decay.
Parameter DeclareMatrix(const PartContext& context, const std::string& name,
                        const MatrixShape& shape);
// The same for a table of vectors, which optimizers of matrices update element by element:
// embeddings, and heads with one row per token or class.
Parameter DeclareTable(const PartContext& context, const std::string& name,
                       const MatrixShape& shape);
// `count` parts of `rows` rows each.
std::vector<MatrixPart> EqualParts(int64_t count, int64_t rows);
// Declares a parameter in fp32, without weight decay.
Parameter DeclareFp32(const PartContext& context, const std::string& name,
                      std::vector<int64_t> shape, const Init& init);
// Declares the weight of a norm [dim]: ones, in fp32, without weight decay.
Parameter DeclareNorm(const PartContext& context, const std::string& name, int64_t dim);
// Declares a bias [dim]: zeros, added in the compute dtype, without weight decay.
Parameter DeclareBias(const PartContext& context, const std::string& name, int64_t dim);

}  // namespace halflife::model
