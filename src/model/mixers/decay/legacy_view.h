// What the public training code of D2D with elu computes in place of a trained decay: published
// numbers and weights depend on it. Its table exp(i s Ps) of positions i, [L, H K], is read as
// [H, L, K] without a transpose. Head h (from 0) then has at position i the row f = h L + i of
// [L H, K], which is another head's and another power:
//
//   w_ij = exp(Pb_h (i - j)) (phi(q_i) exp(-P_hi)) . (phi(k_j) exp(P_hj)),
//   P_hi = s floor(f / H) Ps_(f mod H)  [K]
//
// A token counts 1/H of a power, and L, the rows' length in training, is part of the formula. What
// is left of the decay by distance is Pb alone, so a state as ALiBi's serves.
//
//   const QueriesAndKeys placed =
//       ApplyLegacyView({.q = q, .k = k}, *ps, slice.positions, {.num_heads = 12, .row_len = 512});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/mixers/decay/decayed_mixer.h"

namespace halflife::model {

struct LegacyView {
  int64_t num_heads = 1;  // H
  int64_t row_len = 1;    // L, more than any position
  double scale = 1;       // s
};

// q exp(-P) and k exp(P) of features q and k, [B, T, H, K] both, in their dtype; ps: H K elements,
// head by head; positions [B, T] int64. Differentiable in q, k and ps. In fp32 (fp64 beside fp64)
// the factors overflow where the public code's do, for |P| above 88.
QueriesAndKeys ApplyLegacyView(const QueriesAndKeys& features, const at::Tensor& ps,
                               const at::Tensor& positions, const LegacyView& view);

}  // namespace halflife::model
