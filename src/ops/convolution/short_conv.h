// Depthwise causal convolution over the last W tokens, followed by SiLU or by nothing: y_t =
// silu(bias[c] + sum_j weight[c, 0, j] x_{t-W+1+j}). Tokens before the slice come from `tail`; no
// tap reaches over a document start. Differentiable; a weight or bias whose owner has a sink for
// its gradient (ops/torch/gradient_sink.h) gets it there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/torch/column_places.h"

namespace halflife::ops {

struct ShortConvInputs {
  at::Tensor x;          // [B, T, D] fp32, bf16 or fp64; the other three too, each of its own
  at::Tensor weight;     // [D, 1, W]
  at::Tensor bias = {};  // [D], or undefined: none
  at::Tensor tail;       // [B, W-1, D]: the inputs before the slice, or undefined: zeros
  at::Tensor documents;  // [B, T] int64, or undefined: one per row
  at::Tensor starts;     // [B, T] bool, with `documents`
  bool silu = true;      // false: the sum itself
  // Rows of which other ranks hold the rest: the tail is theirs, none is given.
  std::shared_ptr<const RowSegment> segment = {};
  ColumnPlace x_gradient = {};  // where that of x goes, whose rows are columns of a matrix
};

at::Tensor ShortConv(const ShortConvInputs& inputs);  // [B, T, D]

// The tail that continues the slice: its last W-1 inputs (older ones from `tail` where T < W-1) [B,
// W-1, D]; zeros where a document start cuts them off.
at::Tensor ShortConvTail(const ShortConvInputs& inputs);

struct ShortConvToken {
  at::Tensor x;          // [B, D]
  at::Tensor weight;     // [D, 1, W]
  at::Tensor bias = {};  // [D], or undefined: none
  bool silu = true;
};
// One token more of every row -> [B, D]. `tail` [B, W-1, D], fp32 (fp64 beside fp64; replaced where
// it is not), moves on in place. No gradient.
at::Tensor ShortConvStep(const ShortConvToken& token, at::Tensor& tail);

}  // namespace halflife::ops
