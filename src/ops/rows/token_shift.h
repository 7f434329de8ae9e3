// Mixes each token, channel by channel, with the previous one, as in RWKV-4 (Peng et al., 2023):
// out = m x_t + (1 - m) x_{t-1}. Several mixes m are computed in one pass, and the backward sums
// their gradients of x in one pass too. The token before a document's first token counts as zero.
//
//   const auto mixed = TokenShift({.x = x, .mixes = {*mix_k, *mix_v, *mix_r}, .starts = starts});
//   const at::Tensor k = Linear(mixed[0], *key);
//
// Differentiable; the gradient of a mix that has a sink (ops/torch/gradient_sink.h) goes to the
// sink.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

struct TokenShiftInputs {
  at::Tensor x;                   // [B, T, D] fp32, bf16 or fp64
  std::vector<at::Tensor> mixes;  // 1 to 3 mixes of [D] each
  at::Tensor tail = {};           // [B, 1, D]: the token before the slice; undefined: zeros
  at::Tensor starts = {};         // [B, T] bool: document starts; undefined: one document per row
  // For rows that are split over ranks. The tail comes from the previous rank and must not be
  // given.
  std::shared_ptr<const RowSegment> segment = {};
};

// Returns one output per mix: [B, T, D] in the dtype of x.
std::vector<at::Tensor> TokenShift(const TokenShiftInputs& inputs);

// Returns the tail for the slice that follows: the last token [B, 1, D]. For a slice without tokens
// it is `tail`, or zeros.
at::Tensor TokenShiftTail(const TokenShiftInputs& inputs);

}  // namespace halflife::ops
