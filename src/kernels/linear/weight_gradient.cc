#include "kernels/linear/weight_gradient.h"

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/linear/weight_gradient_forms.h"

namespace halflife::kernels {

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
