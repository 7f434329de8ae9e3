// The trained decay of D2D with elu as the public training code computes it. Published numbers and
// weights depend on it. The code views its table exp(i s Ps) of positions i, [L, H K], as [H, L, K]
// without a transpose. At position i, head h (from 0) therefore reads row f = h L + i of [L H, K],
// which belongs to another head and another power:
//
//   w_ij = exp(Pb_h (i - j)) (phi(q_i) exp(-P_hi)) . (phi(k_j) exp(P_hj)),
//   P_hi = s floor(f / H) Ps_(f mod H)  [K]
//
// Consequences: the power grows by 1/H per token, and the formula depends on L, the row length in
// training. The only decay that still depends on distance is Pb, so the state is that of ALiBi.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/mixers/linear/decay_recurrence.h"

namespace halflife::model {

struct LegacyView {
  int64_t num_heads = 1;  // H
  int64_t row_len = 1;    // L; larger than every position
  double scale = 1;       // s
};

// Returns q exp(-P) and k exp(P) for features q and k [B, T, H, K], in their dtype. `ps` has H K
// elements, head by head; positions [B, T] int64. Differentiable in q, k and ps. The factors are
// fp32 (fp64 for fp64 inputs); as in the public code, they overflow for |P| above 88.
QueriesAndKeys ApplyLegacyView(const QueriesAndKeys& features, const at::Tensor& ps,
                               const at::Tensor& positions, const LegacyView& view);

}  // namespace halflife::model
