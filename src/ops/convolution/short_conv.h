// Depthwise causal convolution over the last W tokens, optionally followed by SiLU: y_t =
// silu(bias[c] + sum_j weight[c, 0, j] x_{t-W+1+j}). Tokens before the slice come from `tail`. No
// tap crosses a document start. Differentiable; the gradient of a weight or bias that has a sink
// (ops/torch/gradient_sink.h) goes to the sink.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "ops/sequence/row_segment.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct ShortConvInputs {
  at::Tensor x;  // [B, T, D]; x, weight, bias and tail are fp32, bf16 or fp64, each independently
  at::Tensor weight;     // [D, 1, W]
  at::Tensor bias = {};  // [D], or undefined: none
  at::Tensor tail;       // [B, W-1, D]: the inputs before the slice; undefined: zeros
  at::Tensor documents;  // [B, T] int64: the document of each token; undefined: one per row
  at::Tensor starts;     // [B, T] bool: document starts, required with `documents`
  bool silu = true;      // false: no activation
  // For rows that are split over ranks. The tail comes from the previous rank and must not be
  // given.
  std::shared_ptr<const RowSegment> segment = {};
  ColumnSlice x_gradient = {};  // buffer of x's gradient, for an x that is columns of a matrix
};

at::Tensor ShortConv(const ShortConvInputs& inputs);  // [B, T, D]
// Returns the convolutions of several projections of the same tokens, such as q, k and v: in one
// pass if they have no bias and differ only in x, weight, tail, D and silu.
std::vector<at::Tensor> ShortConvs(const std::vector<ShortConvInputs>& inputs);

// Returns the tail for the slice that follows: the last W-1 inputs [B, W-1, D], including those of
// `tail` if T < W-1. Inputs before the last document start are zero.
at::Tensor ShortConvTail(const ShortConvInputs& inputs);

struct ShortConvToken {
  at::Tensor x;          // [B, D]
  at::Tensor weight;     // [D, 1, W]
  at::Tensor bias = {};  // [D], or undefined: none
  bool silu = true;
};
// Processes one more token of every row and returns [B, D]. `tail` [B, W-1, D] is updated in place;
// a tail that is not of the compute type (fp32, or fp64 for fp64 inputs) is replaced by one that
// is. No gradient.
at::Tensor ShortConvStep(const ShortConvToken& token, at::Tensor& tail);

}  // namespace halflife::ops
