// Products of up to 8 rows in inference on a GPU, where decoding spends its time. One launch
// computes the products with all weights that read the same rows, the norm before them and the
// SwiGLU after them (kernels/linear/row_products_args.h). Rows and weights are bf16; sums are fp32
// and rounded once. The bits of a row depend neither on the other rows nor on which operations
// share a launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernels/rows/rms_norm_args.h"

namespace halflife::ops {

// Returns true if rows x [..., D] should be multiplied with the weights [*, D] in this way: in
// inference mode, at most 8 rows on a GPU, D a multiple of 8, and no weight with an FP8 mark.
bool HasRowProducts(const at::Tensor& x, at::TensorList weights);

// While an instance exists, the products are taken on every device and in all threads. Tests use it
// to run the GPU's code path on the CPU.
class RowProductsEverywhere {
 public:
  RowProductsEverywhere();
  ~RowProductsEverywhere();
  RowProductsEverywhere(const RowProductsEverywhere&) = delete;
  RowProductsEverywhere& operator=(const RowProductsEverywhere&) = delete;
};

// An RMS norm in front of the products, of a row or of each of its heads.
struct RowNorm {
  at::Tensor weight;  // [V] fp32, where V divides D: the width of a head, or D
  double eps = 0;
};
struct RowInput {
  at::Tensor x;            // [..., D]
  at::Tensor branch = {};  // like x, added to it before the norm; undefined: none
  std::optional<RowNorm> norm = {};
  at::Tensor gate = {};  // like x; defined: the norm is multiplied with the SiLU or sigmoid of it
  kernels::NormGate gate_kind = kernels::NormGate::kSilu;
};
// Returns true if the launch can also norm the rows of x.
bool HasNormedRowProducts(const RowInput& input, at::TensorList weights);

struct RowWeight {
  at::Tensor weight;                     // [N, D]
  at::Tensor up = {};                    // [N, D]; defined: the output is SwiGLU of both products
  at::ScalarType dtype = at::kBFloat16;  // of the output; or kFloat
};
struct RowOutputs {
  at::Tensor sum;              // x + branch, or undefined
  at::Tensor normed;           // the norm of the rows, or undefined
  std::vector<at::Tensor> ys;  // [..., N] of each weight
};
RowOutputs RowProducts(const RowInput& input, const std::vector<RowWeight>& weights);

}  // namespace halflife::ops
