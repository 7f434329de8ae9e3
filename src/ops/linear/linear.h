// Linear layers of one input: y_i = x weight_i^T. Their input gradients are added up inside the
// matmuls instead of by separate passes over tensors of x's size. Differentiable. Sums are fp32
// whatever the storage, and rounded once.
//
// Weights that lie side by side in memory are multiplied as one matrix, and so are their gradients;
// the gradients of weights with a sink (ops/torch/gradient_sink.h) are summed in it.
//
//   const auto y = SharedInputLinear(x, {*gate_proj, *up_proj});
//   return Linear(SwiGlu(y[0], y[1]), *down_proj);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/torch/column_places.h"

namespace halflife::ops {

// x [..., D], weights [out_i, D] -> [..., out_i]; elements of a row are adjacent, rows need not be.
std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights);
// One of them. `dx`: where the gradient of x goes, which is columns of a matrix.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const ColumnPlace& dx = {});

// A part of a product, and where its gradient lies beside those of the others: a place for its only
// reader. Without a place its gradient may lie anywhere.
struct LinearPart {
  at::Tensor y;
  ColumnPlace gradient = {};
};
// SharedInputLinear with such places.
std::vector<LinearPart> SharedInputParts(const at::Tensor& x,
                                         const std::vector<at::Tensor>& weights);
// Linear(x, weight) cut into outputs of these widths, whose sum is out: columns of one matrix where
// products join, on the CPU each dense.
std::vector<LinearPart> LinearInParts(const at::Tensor& x, const at::Tensor& weight,
                                      at::IntArrayRef widths);
// The same as columns of one product everywhere: for readers of columns in their place, which the
// CPU's are too.
std::vector<LinearPart> LinearInColumns(const at::Tensor& x, const at::Tensor& weight,
                                        at::IntArrayRef widths);
// Such columns, and x itself for those who read it too: the
// product adds its own gradient of x to theirs.
struct PartsBesideInput {
  at::Tensor x;
  std::vector<LinearPart> parts;
};
PartsBesideInput LinearBesideInput(const at::Tensor& x, const at::Tensor& weight,
                                   at::IntArrayRef widths);

}  // namespace halflife::ops
