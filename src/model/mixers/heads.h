// Splits the channels of a projection into heads, and repeats heads for grouped queries.
//
//   const at::Tensor q = SplitHeads(projected, /*head_dim=*/64);  // [B, T, H, 64]
//   const at::Tensor k = RepeatHeads(SplitHeads(narrow, 64), /*num_heads=*/q.size(2));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::model {

// [..., H d] -> [..., H, d].
inline at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}
// [B, T, Hk, d] -> [B, T, H, d] for H query heads: query head h reads head h / (H / Hk).
inline at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

}  // namespace halflife::model
