// fp32 products of a linear layer on the CPU: y = x W^T and dx = dy W.
//
//   const MatmulRight right = {.b = w, .depth = D, .columns = N, .transposed = true};   // W [N, D]
//   auto* const panels =
//       static_cast<float*>(std::aligned_alloc(64, 4 * MatmulPanelFloats(right)));
//   PackMatmulRight(right, panels);
//   Matmul({.rows = T, .depth = D, .columns = N, .a = x, .panels = panels, .out = y});
//
// Used if AVX2 is the instruction set in use, and with AVX-512 on AMD processors, on which the BLAS
// below LibTorch always uses AVX2 kernels. These reach four fifths of the rate that AVX2 allows:
// they copy the left operand, which this kernel reads in place, and scale the result in a separate
// pass. The AVX2 and AVX-512 versions give the same bits.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

namespace halflife::kernels {

struct MatmulRight {
  const float* b = nullptr;  // [depth, columns] or, transposed, [columns, depth], contiguous
  int64_t depth = 0, columns = 0;
  bool transposed = false;
};
struct MatmulArgs {
  int64_t rows = 0, depth = 0, columns = 0;  // at least 1 each
  const float* a = nullptr;                  // [rows, depth], contiguous
  const float* panels = nullptr;             // from PackMatmulRight()
  bool add = false;                          // true: add to the contents of `out`
  float* out = nullptr;                      // [rows, columns], contiguous; written
};

// Returns true if Matmul() should be used on this machine. The three functions below need AVX2 or
// AVX-512, and the instruction set in use must not change between packing and product.
bool HasMatmul();
// Returns the size of the packed right operand, which must be aligned to 64 bytes.
int64_t MatmulPanelFloats(const MatmulRight& right);
void PackMatmulRight(const MatmulRight& right, float* panels);
// Multiplies matrices. Each element is a chain of fused multiply-adds in ascending order of depth,
// so its bits depend only on its row and column.
void Matmul(const MatmulArgs& args);

// y = x W^T on the CPU for a few rows x, as in decoding. The time is that of reading W once, in
// place. BLAS first copies W into its kernel's layout, which takes longer than the product.
template <typename T>  // float or Bf16
struct SkinnyMatmulArgs {
  int64_t rows = 0, depth = 0, columns = 0;  // at least 1 each
  const float* a = nullptr;                  // [rows, depth], contiguous
  const T* weight = nullptr;                 // [columns, depth], contiguous
  float* out = nullptr;                      // [rows, columns], contiguous; written
};

// Returns true if the instruction set in use has a version of the kernel.
bool HasSkinnyMatmul();
// Each element is an fp32 sum of its own in a fixed order. Its bits depend only on its row, its
// column and the instruction set, not on the number of rows.
template <typename T>
void SkinnyMatmul(const SkinnyMatmulArgs<T>& args);

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
// Computes weight gradients. Tokens are summed in blocks of 128, in ascending order, for any number
// of threads. Each block is a chain of fused multiply-adds in order.
void WeightGradient(const WeightGradientArgs& args);

}  // namespace halflife::kernels

namespace halflife::kernels::cpu {

// Conversions between bf16 and fp32 on the CPU, for bf16 products that are computed in fp32
// (ops/linear/widened.cc).
//
// Convert `count` elements of x to y, which must not overlap. NarrowRange() rounds to nearest even.
void WidenRange(const Bf16* x, float* y, int64_t count);
void NarrowRange(const float* x, Bf16* y, int64_t count);

}  // namespace halflife::kernels::cpu
