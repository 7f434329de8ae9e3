// The quadratic form of polynomial attention on CUDA: a token meets every earlier one of its
// document, on tensor cores, by the kernels on pairs of tiles. bf16. C++17.
#pragma once

#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels::polynomial {

// What the kernels on pairs take besides: where the keys of each token begin and end, and the
// backward's own.
size_t QuadraticForwardBytes(const PolynomialAttentionArgs& args);
size_t QuadraticBackwardBytes(const PolynomialAttentionArgs& args);

// args.workspace: as above, aligned to 16.
void QuadraticForward(const PolynomialAttentionArgs& args, cudaStream_t stream);
void QuadraticBackward(const PolynomialAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace halflife::kernels::polynomial
