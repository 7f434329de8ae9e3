#include "kernels/linear/weight_gradient.h"

#include "kernels/common/cpu/instruction_set.h"

namespace halflife::kernels {
namespace cpu {

// weight_gradient_isa.cc defines these for AVX2 and AVX-512 only.
HL_PER_INSTRUCTION_SET(int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
                       void WeightGradient(const WeightGradientArgs& args);)

}  // namespace cpu

using cpu::InstructionSet;
using cpu::InstructionSetInUse;

bool HasWeightGradient() { return InstructionSetInUse() >= InstructionSet::kAvx2; }

int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args) {
  return InstructionSetInUse() == InstructionSet::kAvx512
             ? cpu::avx512::WeightGradientWorkspaceFloats(args)
             : cpu::avx2::WeightGradientWorkspaceFloats(args);
}

void WeightGradient(const WeightGradientArgs& args) {
  InstructionSetInUse() == InstructionSet::kAvx512 ? cpu::avx512::WeightGradient(args)
                                                   : cpu::avx2::WeightGradient(args);
}

}  // namespace halflife::kernels
