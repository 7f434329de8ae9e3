// Offsets that do not fit into 32 bits, in elements or in bytes of bf16: the CPU kernels give the
// bits of a dense problem.

#include "kernels/decay_attention/cpu/run_cpu.h"
#include "kernels/decay_attention/far_slots.h"
#include "kernels/decay_attention/late_tokens.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

TEST(DecayAttentionCpuFar, Rows) {
  for (const DecayKind kind : kKinds)
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(static_cast<int>(kind));
      const RandomProblem problem = MakeProblem({.T = 66,
                                                 .H = 4,
                                                 .K = 16,
                                                 .V = 24,
                                                 .q_heads = 2,
                                                 .decay_heads = 2,
                                                 .kind = kind,
                                                 .normalised = !bf16,
                                                 .key_scale = true,
                                                 .positive = !bf16,
                                                 .bf16 = bf16},
                                                41);
      const Result dense = RunCpu<float>(problem);
      ExpectSameBits(dense, RunCpu<float>(problem, {.layout = {.far = true}}));
    }
}

TEST(DecayAttentionCpuFar, Tokens) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const bool normalised : {false, true}) {
      const RandomProblem problem = MakeProblem({.B = 1,
                                                 .T = 70,
                                                 .K = 16,
                                                 .V = 24,
                                                 .kind = kind,
                                                 .normalised = normalised,
                                                 .key_scale = true,
                                                 .positive = normalised},
                                                42);
      const Result dense = RunCpu<float>(problem);
      CpuCall<float> call(problem, {});
      LateTokens late(call.args, call.grads, call.table);
      call.Run();
      late.CopyBack();
      ExpectSameBits(dense, call.Collect());
    }
}

// Both rows of a batch decode: once with the first two slots of the states, once with a slot at the
// end of a large address range.
TEST(DecayAttentionCpuFar, SlotsOfAStep) {
  const RandomProblem problem = MakeProblem(
      {.T = 1, .K = 16, .V = 24, .normalised = true, .key_scale = true, .positive = true}, 43);
  Values outs[2];
  std::vector<float> after[2];
  for (const bool far : {false, true}) {
    CpuCall<float> call(problem, {.layout = {.far = far}});
    const DecayAttentionStepArgs step = call.StepArgs();
    const SlotStates states(step, call.initial_state, call.initial_norm, far ? FarSlot(step) : 1);
    cpu::Step(states.step());
    outs[far] = call.out.Get();
    after[far] = states.Get();
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_EQ(after[0], after[1]);
}

}  // namespace
}  // namespace halflife::kernels::test
