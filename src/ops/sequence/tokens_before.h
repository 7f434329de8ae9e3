// The tokens that precede a segment and lie on other ranks: the past of a short convolution, of a
// window, of softmax attention.
//
//   at::Tensor k_past = TokensBefore(k, window - 1, row);   // [B, at most window - 1, H, d]
//   at::Tensor tail = DocumentBefore(x, taps - 1, row);     // [B, taps - 1, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

// What the exchange is called in records: plans count what it gathers as memory.
constexpr char kTokensBefore[] = "tokens_before";

// x [B, T, ...] are this rank's tokens -> [B, min(count, row.begin()), ...], the last ones before
// them, of whatever document. `count` is the same on all ranks. Differentiable: a token's gradient
// goes back to its owner, where it is summed in the order of ranks in fp32 (fp64 beside fp64).
at::Tensor TokensBefore(const at::Tensor& x, int64_t count, const RowSegment& row);

// [B, count] bool: which of the last `count` tokens before the segment are there and of its first
// token's document.
at::Tensor SeenBefore(int64_t count, const RowSegment& row);

// TokensBefore with zeros where SeenBefore is false: [B, count, ...].
at::Tensor DocumentBefore(const at::Tensor& x, int64_t count, const RowSegment& row);

}  // namespace halflife::ops
