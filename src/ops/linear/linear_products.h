// What the backward of a linear layer is given and gives, whatever its dtype and device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace halflife::ops {

// y = x matrix^T, of one weight or of several that lie side by side.
struct LinearProduct {
  std::vector<at::Tensor> weights;  // [out_i, D], whose rows `matrix` has
  at::Tensor matrix;                // [sum of outs, D]
  at::Tensor dy;                    // [tokens, sum of outs]
  bool wants_dweights = false;
  // Where the gradient of `matrix` goes, which is rows of a weight that the caller sees to; else
  // undefined. `added`: to what it holds.
  at::Tensor sum = {};
  bool added = false;
};
struct LinearGradCall {
  at::Tensor x;  // [tokens, D], elements of a row adjacent
  std::vector<LinearProduct> products;
  bool wants_dx = false;
  // Where dx goes, [tokens, D]; undefined: memory of its own. `dx_added`: to what it holds.
  at::Tensor dx = {};
  bool dx_added = false;
};
struct LinearGrads {
  at::Tensor dx;  // [tokens, D], the sum over products; undefined if nobody wants it
  // [product][weight]: undefined where a sink has it or nobody wants it.
  std::vector<std::vector<at::Tensor>> dweights;
};

}  // namespace halflife::ops
