// Arguments of the products of a few rows with several weights, as in decoding on a GPU:
//
//   n   = x, RmsNorm(x + branch), or RmsNorm(x) f(gate) per head
//   y_i = n W_i^T, or silu(n W_i^T) * (n U_i^T)
//
// Storage is bf16 and sums are fp32. D is `depth`. C++17 without LibTorch, because CUDA sources
// include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/rows/rms_norm_args.h"

namespace halflife::kernels {

constexpr int kMaxProductRows = 8;       // rows of one launch
constexpr int kMaxRowProducts = 8;       // weights of one launch
constexpr int kMaxNormedDepth = 4096;    // channels of a row that the kernel can norm
constexpr int kMaxNormGroups = 64;       // groups of a row that are normed separately
constexpr int kProductPackElements = 8;  // D and the strides of rows are multiples of this

// One weight and its outputs. Pointers to weights are aligned to 16 bytes.
struct RowProduct {
  const Bf16* weight = nullptr;  // [columns, D], contiguous
  // [columns, D], contiguous. Not null: the output is SwiGLU of both products, each of which is
  // rounded to bf16 first.
  const Bf16* up = nullptr;
  void* out = nullptr;  // [num_rows, columns], contiguous: Bf16, or float if `wide`
  int columns = 0;
  bool wide = false;
};

struct RowProductsArgs {
  int num_rows = 0, depth = 0;
  const Bf16* x = nullptr;  // [num_rows, D], aligned to 16 bytes
  int64_t x_stride = 0;     // elements between rows
  // The RMS norm of the input; a null weight: none. Then D is at most kMaxNormedDepth and rows of x
  // are adjacent. Each row has `norm_groups` groups (heads), which are normed separately with the
  // same weight, and may be multiplied with a function of a gate.
  const float* norm_weight = nullptr;  // [D / norm_groups]
  float norm_eps = 0;
  int norm_groups = 1;
  const Bf16* gate = nullptr;  // [num_rows, D], aligned to 16 bytes; null: none
  int64_t gate_stride = 0;     // elements between rows
  NormGate gate_kind = NormGate::kSilu;
  Bf16* normed = nullptr;  // [num_rows, D], contiguous: n is stored, and overlaps no input; or null
  // A branch that is added before the norm, and the sum; null: none. Contiguous. `sum` overlaps no
  // input.
  const Bf16* branch = nullptr;  // [num_rows, D]
  Bf16* sum = nullptr;           // [num_rows, D]
  int num_products = 0;
  RowProduct products[kMaxRowProducts];
};

namespace cpu {
// For tests of the code around the kernel; slow. Sums have the order of the CUDA kernel.
void RowProducts(const RowProductsArgs& args);
}  // namespace cpu
namespace cuda {
// The bits of a row depend neither on the other rows nor on which products share a launch. Those of
// the norm and of the sum are the bits of NormForward (kernels/rows/rms_norm_args.h).
void RowProducts(const RowProductsArgs& args, cudaStream_t stream);
}  // namespace cuda
}  // namespace halflife::kernels
