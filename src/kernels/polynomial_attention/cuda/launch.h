// Shared by the CUDA kernels of polynomial attention and their dispatch. C++17.
#pragma once

#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels::polynomial {

constexpr int kSliceColumns = 8;  // columns of V per block
constexpr int kScanThreads = 256;
constexpr int kScanBlocksPerSm = 2;  // the state for d = 64 uses 86 KiB; 128 registers per thread
constexpr int kStepColumns = 64, kStepRows = 4;
constexpr int kStepBlocksPerSm = 4;  // 64 registers per thread

// The passes of a scan. kKeys: x is the side of the keys (see the table in cpu/scan.h).
struct ForwardPass {
  static constexpr bool kOutputs = true, kGradients = false, kKeys = false;
};
struct QueryGradientPass {
  static constexpr bool kOutputs = false, kGradients = true, kKeys = false;
};
struct KeyGradientPass {
  static constexpr bool kOutputs = true, kGradients = true, kKeys = true;
};

inline int NumSlices(const PolynomialAttentionArgs& args) {
  return (args.head_dim_v + kSliceColumns - 1) / kSliceColumns;
}

struct ScanParams {
  PolynomialAttentionGradArgs grads;  // a forward only uses its args
  // dq or dk due to each slice's columns, [slices, B, T, H, d].
  float* partials = nullptr;
};

// Returns the shared memory of a scan in bytes: the state of a slice with its column of weights,
// and the factors and gradients of features.
inline int ScanSharedBytes(const PolynomialAttentionArgs& args) {
  const int features = FeatureLayout(args.head_dim, args.weights).count;
  const int arrays[] = {4 * (kSliceColumns + 1) * features, 4 * features, 2 * features};
  int bytes = 0;
  for (const int array : arrays) bytes += (array + 15) / 16 * 16;
  return bytes;
}
inline int StepSharedBytes(const PolynomialAttentionStepArgs& args) {
  const int features = FeatureLayout(args.head_dim, args.weights).count;
  return 2 * ((4 * features + 15) / 16 * 16) + (2 * features + 15) / 16 * 16;
}

// The quadratic form of polynomial attention on CUDA, by the tensor-core kernels on pairs of tiles:
// every token is paired with all earlier ones of its document. bf16.
//
// Return the workspace sizes: the key ranges of each token and, for a backward, the workspace of
// the kernels on pairs.
size_t QuadraticForwardBytes(const PolynomialAttentionArgs& args);
size_t QuadraticBackwardBytes(const PolynomialAttentionArgs& args);

// args.workspace must have these sizes and be aligned to 16.
void QuadraticForward(const PolynomialAttentionArgs& args, cudaStream_t stream);
void QuadraticBackward(const PolynomialAttentionGradArgs& grads, cudaStream_t stream);

}  // namespace halflife::kernels::polynomial
