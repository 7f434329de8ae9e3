// Products of a linear layer on the CPU, fp32: y = x W^T and dx = dy W.
//
//   const MatmulRight right = {.b = w, .depth = D, .columns = N, .transposed = true};   // W [N, D]
//   auto* const panels =
//       static_cast<float*>(std::aligned_alloc(64, 4 * MatmulPanelFloats(right)));
//   PackMatmulRight(right, panels);
//   Matmul({.rows = T, .depth = D, .columns = N, .a = x, .panels = panels, .out = y});
//
// It is used where AVX2 is the instruction set in use, and on AMD's cores beside AVX-512. The BLAS
// below LibTorch runs AVX2 kernels on those whatever else they can do, and reaches four fifths of
// what these could: it copies the left operand, which is read in its place here, and takes a pass
// of its own to scale the result. Both forms give the same bits.
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
  const float* panels = nullptr;             // as PackMatmulRight() left them
  bool add = false;                          // to what `out` holds
  float* out = nullptr;                      // [rows, columns], contiguous; written
};

// Whether it is to be used here. The three below need AVX2 or AVX-512, and the same instruction set
// in use from the packing to the product.
bool HasMatmul();
// Of the packed right operand, which lies aligned to 64 bytes.
int64_t MatmulPanelFloats(const MatmulRight& right);
void PackMatmulRight(const MatmulRight& right, float* panels);
// Each element is fused multiply-adds in ascending order of depth: its bits depend on its row and
// column alone.
void Matmul(const MatmulArgs& args);

}  // namespace halflife::kernels
