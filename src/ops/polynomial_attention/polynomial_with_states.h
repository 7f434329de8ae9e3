// Polynomial attention with states for GPUs, whose chunked kernel is slow. The row's own tokens use
// the quadratic kernel, and earlier ones enter through their state. With psi and w the features and
// weights of features.h, and [S | u] the state before a row, the output of its tokens is
//
//   [N | z] = own tokens' + sum over f of w_f psi_f(q) [S_f | u_f],   out = N / (z + norm_eps),
//
// as long as no document has started in the row. The state after the row is psi(k)^T [v | 1],
// summed since the row's last document start, plus [S | u] if there was none. The own tokens' part
// has the dtype of v; everything else is LibTorch products in the compute type. Works on any
// device.
#pragma once

#include <string>

#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::ops {

// All these functions need inputs with chunks. Returns the reason why they do not support a call,
// or "" if they do.
std::string WhyNotWithStates(const PolynomialAttentionInputs& inputs, bool normalise);

// Like PolynomialAttention, Summarise and BackwardSummarise, but without segments and without
// column buffers for gradients.
PolynomialAttentionOutput AttendWithStates(const PolynomialAttentionInputs& inputs,
                                           const PolynomialAttentionConfig& config);
PolynomialState SummariseByFeatures(const PolynomialAttentionInputs& inputs,
                                    const PolynomialAttentionConfig& config);
PolynomialState BackwardSummariseByFeatures(const PolynomialAttentionInputs& inputs,
                                            const PolynomialAttentionConfig& config,
                                            const PolynomialAttentionOutput& output,
                                            const at::Tensor& dout);

}  // namespace halflife::ops
