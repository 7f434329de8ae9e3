// The gradient of a linear layer's weight on the CPU, fp32: dW = dY^T X, a sum over tokens.
//
//   WeightGradientArgs args = {.num_tokens = T, .out_features = N, .in_features = K,
//                              .dy = dy, .x = x, .dweight = dw};
//   args.workspace = static_cast<float*>(
//       std::aligned_alloc(64, 4 * WeightGradientWorkspaceFloats(args)));
//   WeightGradient(args);
//
// For a few hundred features BLAS takes this product at three quarters of its rate elsewhere: it
// brings both operands, each much longer than the result, into the layout of its kernel before it
// multiplies. Here they keep the order of their rows, and those of the next tokens are fetched
// during the products of the present ones. It is compiled for AVX-512 and for AVX2.
#pragma once

#include <cstdint>

namespace halflife::kernels {

struct WeightGradientArgs {
  int64_t num_tokens = 0, out_features = 0, in_features = 0;  // at least 1 each
  const float* dy = nullptr;   // [num_tokens, out_features], contiguous
  const float* x = nullptr;    // [num_tokens, in_features], contiguous
  float* dweight = nullptr;    // [out_features, in_features], contiguous; written
  float* workspace = nullptr;  // WeightGradientWorkspaceFloats(), aligned to 64 bytes
};

// Whether the instruction set in use has a form of it, which the two below need.
bool HasWeightGradient();
// For as many threads as the next parallel region would have.
int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
// Tokens are summed in blocks of 128, ascending, whatever the number of threads; each block is
// fused multiply-adds in order.
void WeightGradient(const WeightGradientArgs& args);

}  // namespace halflife::kernels
