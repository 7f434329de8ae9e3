// Inner header: the 16 x 16 tiles on the diagonal of the scores under channel decay, where each pair's weight is its own
// product of decays: at most 15 factors, none above 1.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels::internal {

// Writes scale * sum_c q_rc k_sc w_rsc (s <= r, else 0) into the diagonal tiles of scores [B, H, N, C, C].
void DiagonalScores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_decay,
                    double scale, at::Tensor& scores);

// Adds what the pairs s < r of the diagonal tiles give to dq and dk [B, H, N, C, K].
void DiagonalGradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_decay,
                       double scale, const at::Tensor& dscores, at::Tensor& dq, at::Tensor& dk);

}  // namespace halflife::kernels::internal
