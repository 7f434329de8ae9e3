// Offsets that no 32 bits hold, in elements and in bytes of bf16: the CPU kernels give the bits of a dense problem.
#include <limits>

#include "kernels/decay_attention/late_tokens.h"
#include "kernels/decay_attention/run_cpu.h"
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

// Both rows of a batch decode: once with the first two slots of the states, once with one a whole address space away.
TEST(DecayAttentionCpuFar, SlotsOfAStep) {
  const RandomProblem problem = MakeProblem(
      {.T = 1, .K = 16, .V = 24, .normalised = true, .key_scale = true, .positive = true}, 43);
  const ProblemConfig& c = problem.config;
  const int64_t norm = int64_t{1} * c.H * c.K, state = norm * c.V;
  const int32_t far_slot = static_cast<int32_t>((int64_t{1} << 31) / norm + 5);
  Values outs[2];
  std::vector<float> after[2];
  for (const bool far : {false, true}) {
    CpuCall<float> call(problem, {.layout = {.far = far}});
    const int32_t slots[] = {0, far ? far_slot : 1};
    const halflife::test::SparseMemory states(state * (slots[1] + 1) * sizeof(float));
    const halflife::test::SparseMemory norms(norm * (slots[1] + 1) * sizeof(float));
    auto* const state_of = static_cast<float*>(states.data());
    auto* const norm_of = static_cast<float*>(norms.data());
    for (int b = 0; b < c.B; ++b) {
      std::copy_n(&call.initial_state[b * state], state, state_of + slots[b] * state);
      std::copy_n(&call.initial_norm[b * norm], norm, norm_of + slots[b] * norm);
    }
    DecayAttentionStepArgs step = call.StepArgs();
    step.state = state_of;
    step.norm = norm_of;
    step.slots = slots;
    cpu::Step(step);
    outs[far] = call.out.Get();
    for (int b = 0; b < c.B; ++b) {
      const float* const first = state_of + slots[b] * state;
      after[far].insert(after[far].end(), first, first + state);
      after[far].insert(after[far].end(), norm_of + slots[b] * norm,
                        norm_of + (slots[b] + 1) * norm);
    }
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_EQ(after[0], after[1]);
}

}  // namespace
}  // namespace halflife::kernels::test
