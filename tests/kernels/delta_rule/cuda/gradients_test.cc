// Forward and backward of the delta rule on CUDA, in the emulator, against the oracle in fp64. The
// parts of the backward have tests of their own in backward_test.cc.
#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/cuda/run_cuda.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels {
namespace {

using namespace test::delta;

constexpr DeltaDecay kDecays[] = {DeltaDecay::kNone, DeltaDecay::kPerToken,
                                  DeltaDecay::kPerTokenChannel};
constexpr double kFp32 = 5e-6, kBf16 = 1.5e-2;

void ExpectOracle(const Case& config, uint64_t seed) {
  const Problem problem = MakeProblem(config, seed);
  Result want = Oracle(problem);
  if (config.bf16) {
    for (const Problem& one : {problem, ByWarpgroups(problem)})
      ExpectClose(one, RunCuda<Bf16>(one), want, {.forward = kBf16});
  } else {
    ExpectClose(problem, RunCuda<float>(problem), want, {.forward = kFp32});
  }
}

TEST(DeltaRuleCudaGradients, EqualTheOracle) {
  uint64_t seed = 0;
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays)
      for (const int T : {1, 63, 64, 65, 330})
        ExpectOracle({.B = T == 1 ? 3 : 1,
                      .T = T,
                      .H = 1,
                      .per_head = 2,
                      .K = 40,
                      .V = 72,
                      .decay = decay,
                      .bf16 = bf16},
                     ++seed);
}

TEST(DeltaRuleCudaGradients, WideHeadsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays)
    ExpectOracle({.B = 1, .T = 130, .H = 1, .K = 256, .V = 64, .decay = decay, .bf16 = true}, 5);
}

TEST(DeltaRuleCudaGradients, DocumentsEqualTheOracle) {
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays) {
      const Case base = {.B = 1,
                         .T = 400,
                         .H = 1,
                         .per_head = 2,
                         .decay = decay,
                         .gate = Gate::kResets,
                         .bf16 = bf16};
      Case starts = base, sequences = base;
      starts.document_starts = {100, 333};
      sequences.cu_seqlens = {0, 20, 20, 21, 400};
      ExpectOracle(starts, 41);
      ExpectOracle(sequences, 42);
    }
}

TEST(DeltaRuleCudaGradients, ALongRowEqualsTheOracle) {
  for (const bool bf16 : {true, false})
    ExpectOracle(
        {.B = 1, .T = 4096, .H = 1, .K = 64, .V = 64, .keys = Keys::kCorrelated, .bf16 = bf16}, 7);
}

TEST(DeltaRuleCudaGradients, RepetitionsHaveEqualBits) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem =
        MakeProblem({.B = 1, .T = 130, .H = 1, .per_head = 3, .decay = decay, .bf16 = true}, 53);
    ExpectSameBits(problem, RunCuda<Bf16>(problem), RunCuda<Bf16>(problem));
  }
}

// Expects the same bits with unused entries in the chunk table, as when a recorded CUDA graph is
// replayed for rows with other documents.
void ExpectUnusedChunksChangeNoBit(Problem problem) {
  const auto run = [](const Problem& one) {
    return one.config.bf16 ? RunCuda<Bf16>(one) : RunCuda<float>(one);
  };
  problem.config.unused_chunks = 0;
  const Result want = run(problem);
  problem.config.unused_chunks = 13;
  ExpectSameBits(problem, run(problem), want);
}

// With wgmma, heads with K = 64 use token_scan.cuh unless decays are per channel.
TEST(DeltaRuleCudaGradients, UnusedChunksChangeNoBit) {
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays)
      for (const int K : {40, 64}) {
        const Problem problem = MakeProblem({.B = 2,
                                             .T = 100,
                                             .H = 1,
                                             .per_head = 2,
                                             .K = K,
                                             .V = 64,
                                             .decay = decay,
                                             .bf16 = bf16,
                                             .document_starts = {0, 10, 64, 100, 101}},
                                            44);
        if (K == 40) ExpectUnusedChunksChangeNoBit(problem);
        if (!bf16) continue;
        const Problem by_warpgroups = ByWarpgroups(problem);
        EXPECT_EQ(delta::CanScanTokensByWgmma(Call<Bf16>(by_warpgroups).grads.forward),
                  K == 64 && decay != DeltaDecay::kPerTokenChannel);
        ExpectUnusedChunksChangeNoBit(by_warpgroups);
      }
}

TEST(DeltaRuleCudaGradients, AnEmptySequencePassesTheGradientOfItsState) {
  const Problem problem = MakeProblem({.B = 2, .T = 0, .H = 1}, 3);
  EXPECT_EQ(RunCuda<float>(problem).at("dinitial_state"), problem.data.dfinal_state);
}

// Expects that Z is the gradient of the initial state if that of the final state is zero.
template <typename S>
void ExpectAdjointSummary(bool warpgroups, double bound) {
  for (const DeltaDecay decay : kDecays) {
    Problem problem = MakeProblem({.B = 2,
                                   .T = 100,
                                   .H = 1,
                                   .per_head = 2,
                                   .V = 64,
                                   .decay = decay,
                                   .bf16 = warpgroups,
                                   .warpgroups = warpgroups,
                                   .document_starts = {150}},
                                  61);
    for (double& x : problem.data.dfinal_state) x = 0;
    Call<S> call(problem);
    Array<float> adjoint(problem.data.initial_state.size());
    FillWithNaN(adjoint.data);
    DeltaSegmentArgs segment;
    segment.forward = call.grads.forward;
    segment.dout = call.grads.dout;
    segment.adjoint = adjoint.data.data();
    AlignedBytes workspace(cuda::DeltaRuleAdjointBytes(segment.forward));
    segment.forward.workspace = workspace.data();
    cuda::DeltaRuleBackwardSummarise(segment, nullptr);
    EXPECT_LE(Compare(adjoint.values(), Oracle(problem).at("dinitial_state")).relative, bound)
        << Describe(problem);
  }
}
TEST(DeltaRuleCudaGradients, TheSummaryOfASegmentIsTheGradientOfItsState) {
  ExpectAdjointSummary<float>(/*warpgroups=*/false, kFp32);
  ExpectAdjointSummary<Bf16>(/*warpgroups=*/true, kBf16);
}

// Counts the products in the backward of one chunk of one value head with K = V = 128, as in the
// table of docs/kernels.md, without the recomputed passes of the forward.
int64_t BackwardProducts(DeltaDecay decay, int64_t& copied_bytes) {
  const Problem problem =
      MakeProblem({.B = 1, .T = 64, .H = 1, .K = 128, .V = 128, .decay = decay, .bf16 = true}, 23);
  Call<Bf16> call(problem);
  RunForward(call);
  const emu::Counts before = emu::CountsSoFar();
  RunBackward(call);
  const emu::Counts after = emu::CountsSoFar();
  copied_bytes = after.copied_bytes - before.copied_bytes;
  return after.mma - before.mma;
}
TEST(DeltaRuleCudaGradients, MatrixInstructionsAndCopiesOfAChunk) {
  // Recomputed: prepare with 640 products and 48 KiB, and the scan with 1024 and 128 KiB.
  int64_t copied_bytes = 0;
  EXPECT_EQ(BackwardProducts(DeltaDecay::kPerToken, copied_bytes) - (640 + 1024), 1728 + 2720);
  EXPECT_EQ(copied_bytes - (48 + 128) * 1024, (129 + 152) * 1024);
}

template <typename Function>
void ExpectError(const char* message, const Function& function) {
  try {
    function();
    ADD_FAILURE() << "accepted, without: " << message;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(DeltaRuleCudaGradients, RejectsCallsThatItCannotRun) {
  Call<float> call(MakeProblem({.B = 1, .T = 3, .H = 1}, 1));
  call.grads.forward.workspace = nullptr;
  ExpectError("bytes of workspace, got none. Pass a workspace.",
              [&] { cuda::DeltaRuleBackward(call.grads, nullptr); });
  Call<float> wide(MakeProblem({.B = 1, .T = 3, .H = 1, .K = 200}, 1));
  ExpectError(
      "gradients of fp32 heads of K = 200 are not supported with 232448 bytes of shared memory. "
      "Use bf16",
      [&] { cuda::DeltaRuleBackward(wide.grads, nullptr); });
}

}  // namespace
}  // namespace halflife::kernels
