#include "kernels/linear/matmul.h"

#include "kernels/cpu/instruction_set.h"
#include "kernels/linear/matmul_forms.h"

namespace halflife::kernels {

bool HasMatmul() { return cpu::InstructionSetInUse() == cpu::InstructionSet::kAvx2; }

int64_t MatmulPanelFloats(const MatmulRight& right) { return cpu::avx2::MatmulPanelFloats(right); }

void PackMatmulRight(const MatmulRight& right, float* panels) {
  cpu::avx2::PackMatmulRight(right, panels);
}

void Matmul(const MatmulArgs& args) { cpu::avx2::Matmul(args); }

}  // namespace halflife::kernels
