// The quadratic form of polynomial attention on CUDA, by the tensor-core kernels on pairs of tiles:
// every token is paired with all earlier ones of its document. bf16. C++17.
#pragma once

#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels::polynomial {

// Return the workspace sizes: the key ranges of each token and, for a backward, the workspace of
// the kernels on pairs.
size_t QuadraticForwardBytes(const PolynomialAttentionArgs& args);
size_t QuadraticBackwardBytes(const PolynomialAttentionArgs& args);

// args.workspace must have these sizes and be aligned to 16.
void QuadraticForward(const PolynomialAttentionArgs& args, cudaStream_t stream);
void QuadraticBackward(const PolynomialAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace halflife::kernels::polynomial
