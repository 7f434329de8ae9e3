// Splits the channels of a projection into heads, and repeats heads for grouped queries.
//
//   const at::Tensor q = SplitHeads(projected, /*head_dim=*/64);  // [B, T, H, 64]
//   const at::Tensor k = RepeatHeads(SplitHeads(narrow, 64), /*num_heads=*/q.size(2));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::model {

// [..., H d] -> [..., H, d].
at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim);
// [B, T, Hk, d] -> [B, T, H, d] for H query heads: query head h reads head h / (H / Hk).
at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads);

}  // namespace halflife::model
