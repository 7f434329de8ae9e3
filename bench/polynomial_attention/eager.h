// Polynomial attention with LibTorch's operations and autograd, for comparison with the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::bench {

struct EagerForm {
  int64_t chunk_size = 0;  // Divides seq_len; 0: scores of all pairs of tokens, [H, T, T] per row.
  bool packed = false;     // Only features of x_a x_b with a <= b, gathered by index.
};

// q and k [B, T, H, d], v [B, T, H, V] -> out [B, T, H, V]; normalised.
at::Tensor RunEager(const EagerForm& form, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const ops::PolynomialAttentionConfig& config);

}  // namespace halflife::bench
