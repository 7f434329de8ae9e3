#include "kernels/linear/matmul.h"

#include "kernels/cpu/instruction_set.h"
#include "kernels/linear/matmul_forms.h"

namespace halflife::kernels {

// On AMD's cores beside AVX-512, too: the BLAS runs the same AVX2 kernels there.
bool HasMatmul() {
  const cpu::InstructionSet set = cpu::InstructionSetInUse();
  return set == cpu::InstructionSet::kAvx2 || (set == cpu::InstructionSet::kAvx512 && cpu::IsAmd());
}

int64_t MatmulPanelFloats(const MatmulRight& right) { return cpu::avx2::MatmulPanelFloats(right); }

void PackMatmulRight(const MatmulRight& right, float* panels) {
  cpu::avx2::PackMatmulRight(right, panels);
}

void Matmul(const MatmulArgs& args) { cpu::avx2::Matmul(args); }

}  // namespace halflife::kernels
