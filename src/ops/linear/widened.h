// A bf16 linear layer for CPUs with slow bf16 products. It multiplies in fp32, one block of rows at
// a time, so that the fp32 copies stay in the caches. Sums are fp32 and are rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace halflife::ops {

class Float8Weights;

// ---- inputs and results of a backward, which linear.cc uses for every dtype and device ----

// y = x matrix^T, for one weight or several that are adjacent in memory.
struct LinearProduct {
  std::vector<at::Tensor> weights;  // [out_i, D]; their rows form `matrix`
  at::Tensor matrix;                // [sum of outs, D]
  at::Tensor dy;                    // [tokens, sum of outs]
  bool wants_dweights = false;
  // Output buffer for the gradient of `matrix`, if the caller accumulates it; else undefined.
  // `added`: add to its contents.
  at::Tensor sum = {};
  bool added = false;
  Float8Weights* float8 = nullptr;  // not null: dx is an FP8 product
};
struct LinearGradCall {
  at::Tensor x;  // [tokens, D], elements of a row adjacent
  std::vector<LinearProduct> products;
  bool wants_dx = false;
  // Output buffer of dx, [tokens, D]; undefined: allocate. `dx_added`: add to its contents.
  at::Tensor dx = {};
  bool dx_added = false;
};
struct LinearGrads {
  at::Tensor dx;  // [tokens, D], summed over products; undefined if not wanted
  // [product][weight]; undefined if a sink has it or it is not wanted.
  std::vector<std::vector<at::Tensor>> dweights;
};

// ---- products in fp32 ----

// Returns true if rows x [..., D] should be multiplied this way.
bool UsesWidened(const at::Tensor& x, at::TensorList weights);

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> WidenedForward(const at::Tensor& x, at::TensorList weights);
LinearGrads WidenedBackward(const LinearGradCall& call);

}  // namespace halflife::ops
