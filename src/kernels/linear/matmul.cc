#include "kernels/linear/matmul.h"

#include "kernels/common/cpu/instruction_set.h"

namespace halflife::kernels {
namespace cpu {

// matmul_isa.cc defines these for AVX2 and AVX-512 only.
HL_PER_INSTRUCTION_SET(int64_t MatmulPanelFloats(const MatmulRight& right);
                       void PackMatmulRight(const MatmulRight& right, float* panels);
                       void Matmul(const MatmulArgs& args);)

}  // namespace cpu
namespace {

bool UsesAvx512() { return cpu::InstructionSetInUse() == cpu::InstructionSet::kAvx512; }

}  // namespace

bool HasMatmul() {
  return UsesAvx512() ? cpu::IsAmd() : cpu::InstructionSetInUse() == cpu::InstructionSet::kAvx2;
}

int64_t MatmulPanelFloats(const MatmulRight& right) {
  return UsesAvx512() ? cpu::avx512::MatmulPanelFloats(right) : cpu::avx2::MatmulPanelFloats(right);
}

void PackMatmulRight(const MatmulRight& right, float* panels) {
  UsesAvx512() ? cpu::avx512::PackMatmulRight(right, panels)
               : cpu::avx2::PackMatmulRight(right, panels);
}

void Matmul(const MatmulArgs& args) {
  UsesAvx512() ? cpu::avx512::Matmul(args) : cpu::avx2::Matmul(args);
}

}  // namespace halflife::kernels
