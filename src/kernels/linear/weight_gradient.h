// The fp32 gradient of a linear layer's weight on the CPU: dW = dY^T X, a sum over tokens.
//
//   WeightGradientArgs args = {.num_tokens = T, .out_features = N, .in_features = K,
//                              .dy = dy, .x = x, .dweight = dw};
//   args.workspace = static_cast<float*>(
//       std::aligned_alloc(64, 4 * WeightGradientWorkspaceFloats(args)));
//   WeightGradient(args);
//
// With a few hundred features, BLAS computes this product at three quarters of its usual rate: it
// first converts both operands, each much longer than the result, to its kernel's layout. This
// kernel keeps the order of their rows and prefetches the rows of the next tokens during the
// products of the current ones. It is compiled for AVX-512 and AVX2.
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

// Returns true if the instruction set in use has a version of the kernel, which the two functions
// below need.
bool HasWeightGradient();
// Returns the workspace size for the number of threads that the next parallel region would have.
int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
// Tokens are summed in blocks of 128, in ascending order, for any number of threads. Each block is
// a chain of fused multiply-adds in order.
void WeightGradient(const WeightGradientArgs& args);

}  // namespace halflife::kernels
