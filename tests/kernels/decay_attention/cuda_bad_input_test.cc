// What decay attention's CUDA entries refuse, and what they make of input without numbers or without tokens, in the emulator.
#include "kernels/decay_attention/step_faults.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaBadInput, StepsThatDoNotFit) {
  ExpectStepFaults([](const DecayAttentionStepArgs& args) { cuda::Step(args, nullptr); },
                   /*is_cuda=*/true);
}

}  // namespace
}  // namespace halflife::kernels::test
