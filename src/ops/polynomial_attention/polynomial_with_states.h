// Polynomial attention with states where the tokens at hand meet each other token against token:
// for a GPU, whose chunked kernel goes token by token. With psi and w the features and weights of
// features.h, and [S | u] the state before a row, its tokens have
//
//   [N | z] = own tokens' + sum over f of w_f psi_f(q) [S_f | u_f],   out = N / (z + norm_eps),
//
// where no document has started in the row, and leave psi(k)^T [v | 1], summed up since the row's
// last start, and [S | u] where there is none. The own tokens' part has the dtype of v, all else is
// products of LibTorch's in the compute type. Any device.
//
//   const auto [out, state, divisors] = AttendWithStates(inputs, config);
#pragma once

#include <string>

#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::ops {

// Inputs of all these have chunks. Why they do not take a call; empty: they do.
std::string WhyNotWithStates(const PolynomialAttentionInputs& inputs, bool normalise);

// As PolynomialAttention, Summarise and BackwardSummarise; not of segments, and without columns for
// the gradients.
PolynomialAttentionOutput AttendWithStates(const PolynomialAttentionInputs& inputs,
                                           const PolynomialAttentionConfig& config);
PolynomialState SummariseByFeatures(const PolynomialAttentionInputs& inputs,
                                    const PolynomialAttentionConfig& config);
PolynomialState BackwardSummariseByFeatures(const PolynomialAttentionInputs& inputs,
                                            const PolynomialAttentionConfig& config,
                                            const PolynomialAttentionOutput& output,
                                            const at::Tensor& dout);

}  // namespace halflife::ops
