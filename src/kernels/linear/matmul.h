// fp32 products of a linear layer on the CPU: y = x W^T and dx = dy W.
//
//   const MatmulRight right = {.b = w, .depth = D, .columns = N, .transposed = true};   // W [N, D]
//   auto* const panels =
//       static_cast<float*>(std::aligned_alloc(64, 4 * MatmulPanelFloats(right)));
//   PackMatmulRight(right, panels);
//   Matmul({.rows = T, .depth = D, .columns = N, .a = x, .panels = panels, .out = y});
//
// Used if AVX2 is the instruction set in use, and with AVX-512 on AMD processors. The BLAS below
// LibTorch always uses AVX2 kernels on AMD processors, and reaches four fifths of what they could
// do: it copies the left operand, which this kernel reads in place, and scales the result in a
// separate pass. The AVX2 and AVX-512 versions give the same bits.
#pragma once

#include <cstdint>

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
// Each element is a chain of fused multiply-adds in ascending order of depth, so its bits depend
// only on its row and column.
void Matmul(const MatmulArgs& args);

}  // namespace halflife::kernels
