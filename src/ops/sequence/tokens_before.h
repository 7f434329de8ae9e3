// Fetches the tokens before a segment from the other ranks, for short convolutions, windows and
// softmax attention.
//
//   at::Tensor k_past = TokensBefore(k, window - 1, row);   // [B, at most window - 1, H, d]
//   at::Tensor tail = DocumentBefore(x, taps - 1, row);     // [B, taps - 1, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

// The name of the exchange in records. Plans count the gathered tokens as memory.
constexpr char kTokensBefore[] = "tokens_before";

// x [B, T, ...] are this rank's tokens. Returns the last tokens before them, of any document,
// [B, min(count, row.begin()), ...]. `count` must be the same on all ranks. Differentiable: the
// gradients of a token are sent to its owner and summed there in the order of ranks, in fp32 (fp64
// for fp64 inputs).
at::Tensor TokensBefore(const at::Tensor& x, int64_t count, const RowSegment& row);

// [B, count] bool: which of the last `count` tokens before the segment exist and belong to the
// document of its first token.
at::Tensor SeenBefore(int64_t count, const RowSegment& row);

// Returns TokensBefore, with zeros where SeenBefore is false: [B, count, ...].
at::Tensor DocumentBefore(const at::Tensor& x, int64_t count, const RowSegment& row);

}  // namespace halflife::ops
