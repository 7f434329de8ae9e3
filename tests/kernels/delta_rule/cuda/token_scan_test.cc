// The forward with decays per token by Hopper's warpgroups (token_scan.cuh), in the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/cuda/run_cuda.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels {
namespace {

using namespace test::delta;

constexpr double kBf16 = 8e-3;

Case TokenCase(DeltaDecay decay, int K, int V, int T) {
  return {.B = 1, .T = T, .H = 1, .per_head = 2, .K = K, .V = V, .decay = decay, .bf16 = true};
}

// Compares with the oracle, and the error over all problems with that of the kernels of other GPUs,
// which round W, U~ and the decayed operands, too. The ratio of one problem may be above 1: few
// tokens determine a decayed state (1.10 was the largest of 32 problems, 0.72 the smallest).
void ExpectAsCloseAsWarps(const std::vector<Problem>& problems) {
  for (const char* name : {"out", "final_state"}) {
    double squares = 0, of_warps = 0;
    for (const Problem& problem : problems) {
      const Problem by_warpgroups = ByWarpgroups(problem);
      ASSERT_TRUE(delta::CanScanTokensByWgmma(Call<Bf16>(by_warpgroups).grads.forward));
      const Result got = RunCudaForward<Bf16>(by_warpgroups), warps = RunCudaForward<Bf16>(problem);
      const Values want = Oracle(problem).at(name);
      const double error = Compare(got.at(name), want).relative;
      EXPECT_LE(error, kBf16) << name << ", " << Describe(problem);
      squares += std::pow(error, 2);
      of_warps += std::pow(Compare(warps.at(name), want).relative, 2);
    }
    EXPECT_LE(std::sqrt(squares), 1.05 * std::sqrt(of_warps) + 1e-6)
        << name << ", " << Describe(problems.front());
  }
}

struct KeyHeads {
  int H, K, V;
};

TEST(DeltaRuleTokenScan, IsAsCloseToTheOracleAsWarps) {
  for (const DeltaDecay decay : {DeltaDecay::kNone, DeltaDecay::kPerToken})
    for (const KeyHeads heads : {KeyHeads{1, 64, 64}, {2, 64, 64}, {1, 128, 192}, {1, 256, 128}}) {
      Case config = TokenCase(decay, heads.K, heads.V, 460);
      config.H = heads.H;
      config.document_starts = {70, 128, 300, 301};
      std::vector<Problem> problems = {MakeProblem(config, 29)};
      if (heads.K == 64)
        for (const uint64_t seed : {30, 31}) problems.push_back(MakeProblem(config, seed));
      ExpectAsCloseAsWarps(problems);
    }
}

TEST(DeltaRuleTokenScan, PackedSequencesEqualTheOracle) {
  std::vector<int32_t> limits = {0};
  for (const int32_t length : {0, 1, 2, 63, 64, 65, 0, 3}) limits.push_back(limits.back() + length);
  for (const int chunk_size : {16, 64}) {
    Case config = TokenCase(DeltaDecay::kPerToken, 64, 64, limits.back());
    config.chunk_size = chunk_size;
    config.cu_seqlens = limits;
    ExpectAsCloseAsWarps({MakeProblem(config, 41)});
  }
}

TEST(DeltaRuleTokenScan, HardGatesEqualTheOracle) {
  for (const Gate gate : {Gate::kResets, Gate::kStrong, Gate::kNearOne}) {
    Case config = TokenCase(DeltaDecay::kPerToken, 64, 64, 150);
    config.B = 2;
    config.gate = gate;
    ExpectAsCloseAsWarps({MakeProblem(config, 13)});
  }
}

// TMA loads rows past the end of a short chunk, where another document starts.
TEST(DeltaRuleTokenScan, KeepsANanInItsDocument) {
  constexpr int kT = 200, kStart = 100;
  Case config = TokenCase(DeltaDecay::kPerToken, 64, 64, kT);
  config.warpgroups = true;
  config.document_starts = {kStart};
  const Problem problem = MakeProblem(config, 71);
  const Values want = RunCudaForward<Bf16>(problem)["out"];
  for (Values DeltaReferenceProblem::*operand :
       {&DeltaReferenceProblem::q, &DeltaReferenceProblem::k, &DeltaReferenceProblem::v,
        &DeltaReferenceProblem::beta, &DeltaReferenceProblem::log_decay}) {
    Problem other = problem;
    Values& values = other.data.*operand;
    values[kStart * (values.size() / kT)] = std::nan("");
    const Values got = RunCudaForward<Bf16>(other)["out"];
    for (size_t i = 0; i < want.size() / kT * kStart; ++i) ASSERT_EQ(got[i], want[i]) << i;
    EXPECT_TRUE(std::isnan(got[want.size() / kT * kStart]));
  }
}

// The table in docs/kernels.md: one chunk of one value head with K = V = 128, in two blocks.
TEST(DeltaRuleTokenScan, InstructionsAndCopiesOfAChunk) {
  Case config = TokenCase(DeltaDecay::kPerToken, 128, 128, 64);
  config.per_head = 1;
  config.warpgroups = true;
  const emu::Counts before = emu::CountsSoFar();
  RunCudaForward<Bf16>(MakeProblem(config, 23));
  const emu::Counts after = emu::CountsSoFar();
  EXPECT_EQ(after.mma - before.mma, 320 + 80);                     // prepare: scores, A T
  EXPECT_EQ(after.wgmma - before.wgmma, 2 * (8 + 4 + 8 + 8 + 4));  // S k, Q T E, U k, q S, A T E
  // prepare: q and k; the scan: k, q, Q T, A T, v and P
  EXPECT_EQ(after.copied_bytes - before.copied_bytes,
            (32 + 2 * (16 + 16 + 3 * 8)) * 1024 + 2 * 256);
}

DeltaRuleArgs Matrices(int K, int V, DeltaDecay decay) {
  DeltaRuleArgs args;
  args.batch = 2;
  args.num_heads = 2;
  args.num_value_heads = 4;
  args.head_dim_k = K;
  args.head_dim_v = V;
  args.num_chunks = 8;
  args.decay = decay;
  args.warpgroups = true;
  const auto view = [&](int heads, int dim) {
    TensorView x;
    x.stride_h = dim;
    x.stride_t = int64_t{1} * heads * dim;
    x.stride_b = 256 * x.stride_t;
    x.dtype = DType::kBF16;
    return x;
  };
  args.q = args.k = view(2, K);
  args.v = args.out = view(4, V);
  return args;
}

TEST(DeltaRuleTokenScan, TakesTheHeadsOfRecipes) {
  using enum DeltaDecay;
  const auto takes = [](const DeltaRuleArgs& args) { return delta::CanScanTokensByWgmma(args); };
  // gated_delta_net_340m, gated_delta_net_1.3b, hybrid_gdn_1.3b
  EXPECT_TRUE(takes(Matrices(256, 512, kPerToken)));
  EXPECT_TRUE(takes(Matrices(128, 128, kNone)));
  EXPECT_FALSE(takes(Matrices(128, 128, kPerTokenChannel)));  // kda_1.3b
  EXPECT_FALSE(takes(Matrices(96, 128, kPerToken)));
  EXPECT_FALSE(takes(Matrices(192, 128, kPerToken)));
  EXPECT_FALSE(takes(Matrices(128, 96, kPerToken)));
  const auto changed = [&](auto change) {
    DeltaRuleArgs args = Matrices(128, 128, kPerToken);
    change(args);
    return takes(args);
  };
  EXPECT_FALSE(changed([](DeltaRuleArgs& args) { args.warpgroups = false; }));
  EXPECT_FALSE(changed([](DeltaRuleArgs& args) { args.q.dtype = DType::kF32; }));
  EXPECT_FALSE(changed([](DeltaRuleArgs& args) { args.num_chunks = 0; }));
  for (TensorView DeltaRuleArgs::*view :
       {&DeltaRuleArgs::q, &DeltaRuleArgs::k, &DeltaRuleArgs::v, &DeltaRuleArgs::out})
    EXPECT_FALSE(changed([&](DeltaRuleArgs& args) { (args.*view).stride_t += 4; }));
}

}  // namespace
}  // namespace halflife::kernels
