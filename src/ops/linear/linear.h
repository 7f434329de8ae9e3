// Linear layers that share one input: y_i = x weight_i^T. The gradients of the input are
// accumulated inside the matrix products, not in separate passes over tensors of x's size.
// Differentiable. Sums are fp32 for every storage type and are rounded once.
//
// Weights that are adjacent in memory are multiplied as one matrix, and so are their gradients. The
// gradients of weights with a sink (ops/torch/gradient_sink.h) are accumulated in the sink.
//
//   const auto y = SharedInputLinear(x, {*gate_proj, *up_proj});
//   return Linear(SwiGlu(y[0], y[1]), *down_proj);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

// x [..., D], weights [out_i, D] -> [..., out_i]. Elements of a row must be adjacent; rows need not
// be.
std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights);
// The same for one weight. `dx` is the output buffer of the gradient of x, for an x that is columns
// of a wider matrix.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const ColumnSlice& dx = {});

// One part of a product, and the buffer for its gradient next to those of the other parts.
// `gradient` is for the only consumer of y. A consumer that does not use it may return a gradient
// in any memory.
struct LinearPart {
  at::Tensor y;
  ColumnSlice gradient = {};
};
// The same as SharedInputLinear, with buffers for the gradients.
std::vector<LinearPart> SharedInputParts(const at::Tensor& x,
                                         const std::vector<at::Tensor>& weights);
// Returns Linear(x, weight) split into outputs of these widths, which add up to the weight's rows.
// The outputs are columns of one matrix if products are joined (on a GPU); on the CPU each is
// dense.
std::vector<LinearPart> LinearInParts(const at::Tensor& x, const at::Tensor& weight,
                                      at::IntArrayRef widths);
// The same, but always as columns of one product: for consumers that accept strided columns on the
// CPU too.
std::vector<LinearPart> LinearInColumns(const at::Tensor& x, const at::Tensor& weight,
                                        at::IntArrayRef widths);
// The parts, and x itself for its other consumers. The product adds its own gradient of x to
// theirs.
struct PartsAndInput {
  at::Tensor x;
  std::vector<LinearPart> parts;
};
PartsAndInput LinearAndInput(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef widths);

// Views of the columns of x [..., sum of widths]. The first part has two consumers, which read
// `first` and `first_again`, and the others have one. The backward adds the gradients of the first
// part and writes the sum next to the other gradients, so that nothing has to be concatenated.
struct SplitColumnsOutput {
  at::Tensor first, first_again;
  std::vector<LinearPart> rest;
};
SplitColumnsOutput SplitColumns(const at::Tensor& x, at::IntArrayRef widths);

}  // namespace halflife::ops
