// The versions of Matmul, each compiled in its own file. matmul.cc selects one.
#pragma once

#include "kernels/linear/matmul.h"

namespace halflife::kernels::cpu {
namespace avx512 {
int64_t MatmulPanelFloats(const MatmulRight& right);
void PackMatmulRight(const MatmulRight& right, float* panels);
void Matmul(const MatmulArgs& args);
}  // namespace avx512
namespace avx2 {
int64_t MatmulPanelFloats(const MatmulRight& right);
void PackMatmulRight(const MatmulRight& right, float* panels);
void Matmul(const MatmulArgs& args);
}  // namespace avx2
}  // namespace halflife::kernels::cpu
