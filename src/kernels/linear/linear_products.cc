#include "kernels/linear/linear_products.h"

#include "kernels/common/cpu/instruction_set.h"

namespace halflife::kernels {
namespace cpu {

// The files *_isa.cc of this folder define these for AVX2 and AVX-512 only.
HL_PER_INSTRUCTION_SET(int64_t MatmulPanelFloats(const MatmulRight& right);
                       void PackMatmulRight(const MatmulRight& right, float* panels);
                       void Matmul(const MatmulArgs& args);
                       void SkinnyMatmul(const SkinnyMatmulArgs<float>& args);
                       void SkinnyMatmul(const SkinnyMatmulArgs<Bf16>& args);
                       int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
                       void WeightGradient(const WeightGradientArgs& args);)

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

bool HasSkinnyMatmul() { return cpu::InstructionSetInUse() >= cpu::InstructionSet::kAvx2; }

template <typename T>
void SkinnyMatmul(const SkinnyMatmulArgs<T>& args) {
  UsesAvx512() ? cpu::avx512::SkinnyMatmul(args) : cpu::avx2::SkinnyMatmul(args);
}
template void SkinnyMatmul(const SkinnyMatmulArgs<float>& args);
template void SkinnyMatmul(const SkinnyMatmulArgs<Bf16>& args);

bool HasWeightGradient() { return cpu::InstructionSetInUse() >= cpu::InstructionSet::kAvx2; }

int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args) {
  return UsesAvx512() ? cpu::avx512::WeightGradientWorkspaceFloats(args)
                      : cpu::avx2::WeightGradientWorkspaceFloats(args);
}

void WeightGradient(const WeightGradientArgs& args) {
  UsesAvx512() ? cpu::avx512::WeightGradient(args) : cpu::avx2::WeightGradient(args);
}

}  // namespace halflife::kernels
