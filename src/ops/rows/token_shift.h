// Tokens mixed channel by channel with the one before them, as in RWKV-4 (Peng et al., 2023): out =
// m x_t + (1 - m) x_{t-1} for several mixes m in one pass, whose backward gives one gradient of x.
// What comes before a document's first token is zero.
//
//   const auto mixed = TokenShift({.x = x, .mixes = {*mix_k, *mix_v, *mix_r}, .starts = starts});
//   const at::Tensor k = Linear(mixed[0], *key);
//
// Differentiable; a mix whose owner has a sink for its gradient (ops/torch/gradient_sink.h)
// gets it there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

struct TokenShiftInputs {
  at::Tensor x;                   // [B, T, D] fp32, bf16 or fp64
  std::vector<at::Tensor> mixes;  // [D] each, 1 to 3
  at::Tensor tail = {};           // [B, 1, D]: the token before the slice, or undefined: zeros
  at::Tensor starts = {};         // [B, T] bool: documents; or undefined: one per row
  // Rows of which other ranks hold the rest: the tail is theirs, none is given.
  std::shared_ptr<const RowSegment> segment = {};
};

// One a mix: [B, T, D] in the dtype of x.
std::vector<at::Tensor> TokenShift(const TokenShiftInputs& inputs);

// The tail that continues the slice: its last token [B, 1, D], of no tokens `tail` or zeros.
at::Tensor TokenShiftTail(const TokenShiftInputs& inputs);

}  // namespace halflife::ops
