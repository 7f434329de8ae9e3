// The forms of Matmul, each in a file of its own.
#pragma once

#include "kernels/linear/matmul.h"

namespace halflife::kernels::cpu::avx2 {
int64_t MatmulPanelFloats(const MatmulRight& right);
void PackMatmulRight(const MatmulRight& right, float* panels);
void Matmul(const MatmulArgs& args);
}  // namespace halflife::kernels::cpu::avx2
