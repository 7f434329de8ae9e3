// Inputs and results of a linear layer's backward, for every dtype and device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace halflife::ops {

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

}  // namespace halflife::ops
