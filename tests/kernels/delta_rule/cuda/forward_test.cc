// The CUDA kernels of the delta rule, forward, in the emulator, against the oracle in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/cuda/run_cuda.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels {
namespace {

using namespace test::delta;

constexpr DeltaDecay kDecays[] = {DeltaDecay::kNone, DeltaDecay::kPerToken,
                                  DeltaDecay::kPerTokenChannel};
constexpr double kFp32 = 2e-6, kBf16 = 8e-3;

// By warpgroups, heads of the first widths take warpgroup_scan.cuh. Those of the second ones take
// token_scan.cuh, unless decays are per channel.
struct Widths {
  int K, V;
};
constexpr Widths kPartialTiles = {24, 40}, kWholeTiles = {64, 64};

void ExpectScan(const Problem& problem) {
  const Case& c = problem.config;
  EXPECT_EQ(delta::CanScanTokensByWgmma(Call<Bf16>(problem).grads.forward),
            c.warpgroups && c.K == kWholeTiles.K && c.decay != DeltaDecay::kPerTokenChannel)
      << Describe(problem);
}

Result ForwardPart(Result result) {
  return {{"out", result.at("out")}, {"final_state", result.at("final_state")}};
}

// Runs a case in both types, and in bf16 also with wgmma. `bf16` is then set, so that both types
// read the same numbers.
void ExpectEqualsOracle(Case config, uint64_t seed, double fp32 = kFp32, double bf16 = kBf16) {
  config.bf16 = true;
  const Problem problem = MakeProblem(config, seed);
  const Result want = ForwardPart(Oracle(problem));
  {
    SCOPED_TRACE("fp32");
    ExpectClose(problem, RunCudaForward<float>(problem), want, {.forward = fp32});
  }
  {
    SCOPED_TRACE("bf16");
    ExpectClose(problem, RunCudaForward<Bf16>(problem), want, {.forward = bf16});
    const Problem by_warpgroups = ByWarpgroups(problem);
    ExpectClose(by_warpgroups, RunCudaForward<Bf16>(by_warpgroups), want, {.forward = bf16});
  }
}

TEST(DeltaRuleCuda, EqualsTheOracle) {
  uint64_t seed = 0;
  for (const DeltaDecay decay : kDecays)
    for (const int per_head : {1, 2})
      for (const int T : {1, 15, 16, 17, 63, 64, 65, 150})
        ExpectEqualsOracle({.B = T < 65 ? 2 : 1,
                            .T = T,
                            .H = 1,
                            .per_head = per_head,
                            .K = T < 65 ? 24 : 64,
                            .V = T < 65 ? 40 : 64,
                            .decay = decay},
                           ++seed);
}

// Each padded width of K, odd widths (whose rows are not aligned), and several slices of V.
TEST(DeltaRuleCuda, WidthsEqualTheOracle) {
  uint64_t seed = 100;
  for (const DeltaDecay decay : kDecays)
    for (const Widths widths : {Widths{64, 64}, {128, 128}, {23, 17}, {100, 200}, {16, 1}})
      ExpectEqualsOracle({.B = 1,
                          .T = 70,
                          .H = 1,
                          .per_head = 2,
                          .K = widths.K,
                          .V = widths.V,
                          .decay = decay,
                          .beta_scale = 1},
                         ++seed);
}

TEST(DeltaRuleCuda, WideHeadsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem =
        MakeProblem({.B = 1, .T = 70, .H = 1, .K = 256, .V = 96, .decay = decay, .bf16 = true}, 5);
    const Result want = ForwardPart(Oracle(problem));
    for (const Problem& one : {problem, ByWarpgroups(problem)})
      ExpectClose(one, RunCudaForward<Bf16>(one), want, {.forward = kBf16});
    if (decay != DeltaDecay::kPerTokenChannel)
      ExpectClose(problem, RunCudaForward<float>(problem), want, {.forward = kFp32});
  }
}

// Rounding errors of many chunks. A sanitizer finds nothing in them that it does not find in a few.
#if defined(HL_EMULATED_ASAN) || defined(HL_EMULATED_TSAN)
constexpr int kLongRow = 300;
#else
constexpr int kLongRow = 4096;
#endif
TEST(DeltaRuleCuda, LongRowsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays)
    ExpectEqualsOracle({.B = 1, .T = kLongRow, .H = 1, .K = 64, .V = 64, .decay = decay}, 7);
  ExpectEqualsOracle({.B = 1,
                      .T = kLongRow,
                      .H = 1,
                      .K = 64,
                      .V = 64,
                      .decay = DeltaDecay::kNone,
                      .keys = Keys::kCorrelated},
                     7, kFp32, 1.2e-2);
}

// ---- hard cases ----

// Equal keys are the hardest for the inverse: powers of L grow like binomials.
TEST(DeltaRuleCuda, EqualKeysEqualTheOracle) {
  for (const double beta : {0.0, 1.0, 1.9, 2.0}) {
    const Problem problem = MakeProblem({.B = 1,
                                         .T = 150,
                                         .H = 1,
                                         .K = 32,
                                         .V = 32,
                                         .decay = DeltaDecay::kNone,
                                         .keys = Keys::kEqual,
                                         .beta_fixed = beta},
                                        11);
    // With beta = 2, nothing decays, and the rounding error of |k|^2 adds up over the tokens.
    const double fp32 = beta == 2 ? 150 * 4 * 1.2e-7 : 1e-5;
    ExpectClose(problem, RunCudaForward<float>(problem), ForwardPart(Oracle(problem)),
                {.forward = fp32});
  }
}

TEST(DeltaRuleCuda, HardCasesEqualTheOracle) {
  for (const DeltaDecay decay : kDecays) {
    const Case base = {.B = 1, .T = 150, .H = 1, .per_head = 2, .K = 32, .V = 32, .decay = decay};
    Case zero_keys = base, zero_beta = base, resets = base, strong = base, near_one = base;
    zero_keys.keys = Keys::kZero;
    zero_keys.T = zero_beta.T = 100;  // only the initial state is left, and it decays
    zero_beta.beta_fixed = 0;
    resets.gate = Gate::kResets;
    strong.gate = Gate::kStrong;
    near_one.gate = Gate::kNearOne;
    for (const Case& config : {zero_keys, zero_beta, resets, strong, near_one})
      ExpectEqualsOracle(config, 13, 1e-5, 1.2e-2);
  }
}

// ---- sequences and documents ----

TEST(DeltaRuleCuda, PackedSequencesEqualSeparateRows) {
  std::vector<int32_t> limits = {0};
  for (const int32_t length : {0, 1, 2, 63, 64, 65, 0, 3}) limits.push_back(limits.back() + length);
  for (const DeltaDecay decay : kDecays)
    for (const int chunk_size : {16, 64})
      ExpectEqualsOracle({.B = 1,
                          .T = limits.back(),
                          .H = 1,
                          .per_head = 2,
                          .decay = decay,
                          .chunk_size = chunk_size,
                          .cu_seqlens = limits},
                         41);
}

// A document starts at every offset of a chunk in turn.
TEST(DeltaRuleCuda, DocumentStartsEqualSeparateDocuments) {
  for (const DeltaDecay decay : kDecays)
    for (int offset = 0; offset < 64; offset += decay == DeltaDecay::kPerToken ? 1 : 7) {
      const Problem problem = MakeProblem({.B = 1,
                                           .T = 140,
                                           .H = 1,
                                           .K = 16,
                                           .V = 24,
                                           .decay = decay,
                                           .bf16 = true,
                                           .document_starts = {64 + offset, 65 + offset}},
                                          43);
      ExpectClose(problem, RunCudaForward<float>(problem), ForwardPart(Oracle(problem)),
                  {.forward = kFp32});
    }
}

template <typename S>
void ExpectRunsWithoutStates(const Problem& problem, double bound) {
  ExpectScan(problem);
  Problem zero = problem;
  zero.data.initial_state.assign(zero.data.initial_state.size(), 0.0);
  Call<S> call(problem);
  call.grads.forward.initial_state = nullptr;
  call.grads.forward.final_state = nullptr;
  call.grads.forward.checkpoints = nullptr;
  RunForward(call);
  EXPECT_LE(Compare(call.out.values(), Oracle(zero).at("out")).relative, bound)
      << Describe(problem);
}

TEST(DeltaRuleCuda, RunsWithoutStatesAndTokens) {
  ExpectRunsWithoutStates<float>(MakeProblem({.B = 1, .T = 70, .H = 1}, 3), kFp32);
  for (const Widths widths : {kPartialTiles, kWholeTiles})
    ExpectRunsWithoutStates<Bf16>(MakeProblem({.B = 1,
                                               .T = 70,
                                               .H = 1,
                                               .K = widths.K,
                                               .V = widths.V,
                                               .bf16 = true,
                                               .warpgroups = true},
                                              3),
                                  kBf16);

  const Problem empty = MakeProblem({.B = 2, .T = 0, .H = 1}, 3);
  EXPECT_EQ(RunCudaForward<float>(empty).at("final_state"), empty.data.initial_state);
}

// ---- properties in bits ----

// Expects the same bits before token `changed` of 130, from which on the operands are halved.
void ExpectSameBitsBefore(const Problem& problem, int changed) {
  ExpectScan(problem);
  Problem other = problem;
  for (Values* x :
       {&other.data.q, &other.data.k, &other.data.v, &other.data.beta, &other.data.log_decay})
    for (size_t i = changed * (x->size() / 130); i < x->size(); ++i) (*x)[i] *= 0.5;
  Values before = RunCudaForward<Bf16>(problem)["out"];
  Values after = RunCudaForward<Bf16>(other)["out"];
  EXPECT_NE(before, after);
  before.resize(static_cast<size_t>(changed) * problem.config.V);
  after.resize(before.size());
  EXPECT_EQ(before, after) << "token " << changed << ", " << Describe(problem);
}

TEST(DeltaRuleCuda, LaterTokensDoNotChangeEarlierOutputs) {
  for (const DeltaDecay decay : kDecays)
    for (const int changed : {1, 16, 40, 63, 64, 100}) {
      Case config = {.B = 1, .T = 130, .H = 1, .decay = decay, .bf16 = true};
      config.warpgroups = changed % 16 != 0;
      ExpectSameBitsBefore(MakeProblem(config, 47), changed);
      config.K = kWholeTiles.K, config.V = kWholeTiles.V;
      config.warpgroups = true;
      ExpectSameBitsBefore(MakeProblem(config, 47), changed);
    }
}

TEST(DeltaRuleCuda, RepeatsItsBits) {
  for (const DeltaDecay decay : kDecays)
    for (const Widths widths : {kPartialTiles, kWholeTiles}) {
      const Problem problem = MakeProblem({.T = 150,
                                           .H = 2,
                                           .per_head = 2,
                                           .K = widths.K,
                                           .V = widths.V,
                                           .decay = decay,
                                           .bf16 = true},
                                          53);
      for (const Problem& one : {problem, ByWarpgroups(problem)}) {
        ExpectScan(one);
        ExpectSameBits(one, RunCudaForward<Bf16>(one), RunCudaForward<Bf16>(one));
      }
    }
}

// Compares what a NaN must not reach: other documents and heads, tokens before its tile of 16 (by
// warpgroups: before its chunk) and, for a NaN in q, all other tokens.
template <typename S>
void ExpectNanIsolation(bool warpgroups, Widths widths = kPartialTiles) {
  constexpr int kT = 200, kBegin = 30, kEnd = 150, kNan = 70;
  const int first_reached = warpgroups ? kBegin : 62;
  for (const DeltaDecay decay : kDecays)
    for (Values DeltaReferenceProblem::*operand :
         {&DeltaReferenceProblem::q, &DeltaReferenceProblem::k, &DeltaReferenceProblem::v,
          &DeltaReferenceProblem::beta, &DeltaReferenceProblem::log_decay}) {
      Problem problem = MakeProblem({.B = 1,
                                     .T = kT,
                                     .H = 2,
                                     .K = widths.K,
                                     .V = widths.V,
                                     .decay = decay,
                                     .warpgroups = warpgroups,
                                     .document_starts = {kBegin, kEnd}},
                                    71);
      ExpectScan(problem);
      Values& values = problem.data.*operand;
      if (values.empty()) continue;
      const Result clean = RunCudaForward<S>(problem);
      values[kNan * values.size() / kT] = std::nan("");
      const Result got = RunCudaForward<S>(problem);
      EXPECT_EQ(got.at("final_state"), clean.at("final_state"));
      const bool query = operand == &DeltaReferenceProblem::q;
      const Values& out = got.at("out");
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = i / problem.config.V;
        const int token = static_cast<int>(row / 2);
        const bool reached =
            row % 2 == 0 && (query ? token == kNan : token >= first_reached && token < kEnd);
        if (!reached) {
          ASSERT_EQ(out[i], clean.at("out")[i]) << "token " << token << ", " << Describe(problem);
        }
        if (i == size_t{2} * kNan * problem.config.V) {
          EXPECT_TRUE(std::isnan(out[i])) << Describe(problem);
        }
      }
    }
}
TEST(DeltaRuleCuda, ANanStaysInItsDocumentAndHead) {
  ExpectNanIsolation<float>(/*warpgroups=*/false);
  ExpectNanIsolation<Bf16>(/*warpgroups=*/true);
  ExpectNanIsolation<Bf16>(/*warpgroups=*/true, kWholeTiles);
}

// ---- the parts of a backward ----

// Expects that the states and U that are recomputed from the checkpoints have the bits of the
// forward, and that X is the inverse of I + L.
template <typename S>
void ExpectRecomputedBits(bool warpgroups) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem = MakeProblem({.B = 1,
                                         .T = 700,
                                         .H = 1,
                                         .per_head = 2,
                                         .K = 16,
                                         .V = 40,
                                         .decay = decay,
                                         .bf16 = warpgroups,
                                         .warpgroups = warpgroups,
                                         .document_starts = {100, 333},
                                         .cu_seqlens = {0, 20, 20, 400, 700}},
                                        17);
    Call<S> call(problem);
    RunForward(call);
    const DeltaRuleArgs& args = call.grads.forward;
    using delta::Purpose;
    const auto scanned = [&](bool from_checkpoints, AlignedBytes& bytes) {
      const delta::Workspace workspace =
          delta::DivideWorkspace(args, Purpose::kBackward, bytes.data());
      delta::LaunchPrepare(args, workspace, nullptr);
      if (from_checkpoints) {
        delta::LaunchRecomputeStates(args, workspace, nullptr);
      } else {
        delta::ScanParams params;
        params.args = args;
        params.workspace = workspace;
        params.values = args.head_dim_v;
        params.initial_state = static_cast<const float*>(args.initial_state);
        delta::LaunchScan(params, nullptr);
      }
      return workspace;
    };
    const size_t num_bytes = delta::WorkspaceBytes(args, Purpose::kBackward);
    AlignedBytes one(num_bytes), other(num_bytes);
    const delta::Workspace whole = scanned(false, one), groups = scanned(true, other);
    const size_t chunks = static_cast<size_t>(args.num_chunks) * args.num_value_heads;
    EXPECT_EQ(std::memcmp(whole.states, groups.states, chunks * 64 * 64 * sizeof(S)), 0);
    EXPECT_EQ(std::memcmp(whole.u, groups.u, chunks * 64 * 64 * sizeof(S)), 0);
  }
}
TEST(DeltaRuleCuda, RecomputesStatesFromCheckpoints) {
  ExpectRecomputedBits<float>(/*warpgroups=*/false);
  ExpectRecomputedBits<Bf16>(/*warpgroups=*/true);
}

// ---- summaries ----

// Returns m S + N for the problem's initial states.
Values Applied(const Summary& map, const Problem& problem) {
  const int64_t K = problem.config.K, V = problem.config.V;
  Values state = map.state;
  for (int64_t i = 0; i < static_cast<int64_t>(state.size()); ++i)
    for (int64_t m = 0; m < K; ++m)
      state[i] += map.transition[i / V * K + m] *
                  problem.data.initial_state[(i / V / K * K + m) * V + i % V];
  return state;
}

TEST(DeltaRuleCuda, SummariesEqualTheCpu) {
  for (const DeltaDecay decay : kDecays)
    for (const int K : {24, 128}) {
      const Problem problem = MakeProblem({.B = 2,
                                           .T = 100,
                                           .H = 1,
                                           .per_head = 2,
                                           .K = K,
                                           .decay = decay,
                                           .bf16 = true,
                                           .document_starts = {150}},
                                          37);
      // M is small after 100 tokens, so its relative error is larger than that of states.
      const Summary want = Summarise<double>(problem);
      const Summary fp32 = SummariseOnCuda<float>(problem);
      EXPECT_LE(Compare(fp32.transition, want.transition).relative, 5e-6) << Describe(problem);
      EXPECT_LE(Compare(fp32.state, want.state).relative, kFp32) << Describe(problem);
      const Values state = Oracle(problem).at("final_state");
      EXPECT_LE(Compare(Applied(fp32, problem), state).relative, kFp32) << Describe(problem);
      for (const Problem& one : {problem, ByWarpgroups(problem)}) {
        const Summary bf16 = SummariseOnCuda<Bf16>(one);
        EXPECT_LE(Compare(bf16.transition, want.transition).relative, 2e-2) << Describe(one);
        EXPECT_LE(Compare(Applied(bf16, one), state).relative, kBf16) << Describe(one);
        EXPECT_LE(Compare(bf16.state, want.state).relative, kBf16) << Describe(one);
      }
      // The second row has a document start.
      const auto second =
          fp32.transition.begin() + static_cast<int64_t>(fp32.transition.size() / 2);
      EXPECT_TRUE(std::all_of(second, fp32.transition.end(), [](double x) { return x == 0; }));
    }
}

// ---- decode ----

template <typename S>
void ExpectStepsEqualOracle(const Problem& problem, double bound) {
  const Case& c = problem.config;
  Call<S> call(problem);
  const DeltaRuleArgs& args = call.grads.forward;
  Array<float> state(problem.data.initial_state);
  DeltaRuleStepArgs step;
  step.batch = c.B;
  step.num_heads = c.H;
  step.num_value_heads = c.value_heads();
  step.head_dim_k = c.K;
  step.head_dim_v = c.V;
  step.decay = c.decay;
  step.scale = problem.data.scale;
  step.state = state.data.data();
  const auto at = [](TensorView view, int t) {
    if (view.data == nullptr) return view;
    const int size = view.dtype == DType::kBF16 ? 2 : 4;
    view.data = static_cast<char*>(view.data) + t * view.stride_t * size;
    return view;
  };
  for (int t = 0; t < c.T; ++t) {
    step.q = at(args.q, t), step.k = at(args.k, t), step.v = at(args.v, t);
    step.out = at(args.out, t), step.beta = at(args.beta, t);
    step.log_decay = at(args.log_decay, t);
    cuda::DeltaRuleStep(step, nullptr);
  }
  const Result want = Oracle(problem);
  EXPECT_LE(Compare(call.out.values(), want.at("out")).relative, bound) << Describe(problem);
  EXPECT_LE(Compare(state.values(), want.at("final_state")).relative, kFp32) << Describe(problem);
}

TEST(DeltaRuleCuda, StepsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays)
    for (const int K : {24, 100, 256}) {
      const Problem problem = MakeProblem({.T = 6,
                                           .H = 2,
                                           .per_head = 2,
                                           .K = K,
                                           .decay = decay,
                                           .gate = Gate::kResets,
                                           .bf16 = true},
                                          19);
      ExpectStepsEqualOracle<float>(problem, kFp32);
      ExpectStepsEqualOracle<Bf16>(problem, 4e-3);  // `out` is rounded
    }
}

// ---- costs ----

// The table in docs/kernels.md: one chunk of one value head with K = V = 128.
TEST(DeltaRuleCuda, MatrixInstructionsAndCopiesOfAChunk) {
  const Problem problem =
      MakeProblem({.B = 1, .T = 64, .H = 1, .K = 128, .V = 128, .bf16 = true}, 23);
  const emu::Counts before = emu::CountsSoFar();
  RunCudaForward<Bf16>(problem);
  const emu::Counts after = emu::CountsSoFar();
  EXPECT_EQ(after.mma - before.mma, 640 + 1024 + 672);
  EXPECT_EQ(after.copied_bytes - before.copied_bytes, (48 + 128 + 96) * 1024);
}

TEST(DeltaRuleCuda, WarpgroupInstructionsOfAChunk) {
  const Problem problem = MakeProblem({.B = 1,
                                       .T = 64,
                                       .H = 1,
                                       .K = 128,
                                       .V = 128,
                                       .decay = DeltaDecay::kPerTokenChannel,
                                       .bf16 = true,
                                       .warpgroups = true},
                                      23);
  const emu::Counts before = emu::CountsSoFar();
  RunCudaForward<Bf16>(problem);
  const emu::Counts after = emu::CountsSoFar();
  EXPECT_EQ(after.mma - before.mma, 512);                          // prepare
  EXPECT_EQ(after.wgmma - before.wgmma, 2 * (8 + 8 + 4 + 2 * 4));  // two blocks of 64 columns
}

// ---- routes ----

// The outputs and states of both routes differ by the order of sums, which a rounding to bf16 can
// enlarge to one unit. Without decays per channel, these K are not those of token_scan.cuh.
TEST(DeltaRuleCuda, WarpgroupsEqualWarps) {
  for (const DeltaDecay decay : kDecays)
    for (const int padded : {64, 128, 256}) {
      const int K = decay == DeltaDecay::kPerTokenChannel ? padded : padded - 8;
      const Problem problem = MakeProblem({.B = 1,
                                           .T = 300,
                                           .H = 1,
                                           .per_head = 2,
                                           .K = K,
                                           .V = 128,
                                           .decay = decay,
                                           .bf16 = true,
                                           .document_starts = {70}},
                                          29);
      ExpectClose(problem, RunCudaForward<Bf16>(ByWarpgroups(problem)),
                  RunCudaForward<Bf16>(problem), {.forward = 2e-3});
    }
}

// Each stage of the ring is used many times, with and without a short last chunk.
TEST(DeltaRuleCuda, LongRowsByWarpgroupsEqualTheOracle) {
  for (const auto& [decay, T] : {std::pair(DeltaDecay::kNone, kLongRow),
                                 {DeltaDecay::kPerToken, kLongRow + 64},
                                 {DeltaDecay::kPerTokenChannel, kLongRow + 37}}) {
    const Problem problem = MakeProblem({.B = 1,
                                         .T = T,
                                         .H = 1,
                                         .K = decay == DeltaDecay::kPerToken ? 256 : 128,
                                         .V = 64,
                                         .decay = decay,
                                         .bf16 = true,
                                         .warpgroups = true},
                                        31);
    ExpectClose(problem, RunCudaForward<Bf16>(problem), ForwardPart(Oracle(problem)),
                {.forward = kBf16});
  }
}

DeltaRuleArgs Heads(DType dtype, int K, int V, DeltaDecay decay) {
  DeltaRuleArgs args;
  args.q.dtype = dtype;
  args.head_dim_k = K;
  args.head_dim_v = V;
  args.decay = decay;
  return args;
}

// The heads of each recipe in launch/recipes, and the limits of what is supported.
TEST(DeltaRuleCuda, SupportsTheHeadsOfRecipes) {
  using enum DeltaDecay;
  const auto supports = [](const DeltaRuleArgs& args) { return cuda::SupportsDeltaRule(args); };
  // gated_delta_net_340m, gated_delta_net_1.3b, hybrid_gdn_1.3b
  EXPECT_TRUE(supports(Heads(DType::kBF16, 256, 512, kPerToken)));
  EXPECT_TRUE(supports(Heads(DType::kBF16, 128, 128, kPerTokenChannel)));  // kda_1.3b
  EXPECT_TRUE(supports(Heads(DType::kF32, 256, 512, kNone)));
  EXPECT_TRUE(supports(Heads(DType::kF32, 128, 512, kPerTokenChannel)));
  EXPECT_FALSE(supports(Heads(DType::kF32, 129, 64, kPerTokenChannel)));
  EXPECT_FALSE(supports(Heads(DType::kBF16, 257, 64, kPerToken)));
  EXPECT_FALSE(supports(Heads(DType::kBF16, 64, 513, kPerToken)));
  EXPECT_FALSE(supports(Heads(DType::kF64, 64, 64, kPerToken)));
}

// ---- calls that are rejected ----

template <typename Function>
void ExpectError(const char* message, const Function& function) {
  try {
    function();
    ADD_FAILURE() << "accepted, without: " << message;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(DeltaRuleCuda, RejectsCallsThatItCannotRun) {
  Call<float> narrow(MakeProblem({.B = 1, .T = 3, .H = 1}, 1));
  ExpectError("bytes of workspace, got none. Pass a workspace.",
              [&] { cuda::DeltaRuleForward(narrow.grads.forward, nullptr); });
  Call<double> fp64(MakeProblem({.B = 1, .T = 3, .H = 1}, 1));
  ExpectError("fp64 heads of K = 24 are not supported with 232448 bytes of shared memory. Use bf16",
              [&] { cuda::DeltaRuleForward(fp64.grads.forward, nullptr); });
  Call<float> wide(
      MakeProblem({.B = 1, .T = 3, .H = 1, .K = 200, .decay = DeltaDecay::kPerTokenChannel}, 1));
  ExpectError("fp32 heads of K = 200 with decays per channel are not supported with",
              [&] { cuda::DeltaRuleForward(wide.grads.forward, nullptr); });
  DeltaRuleStepArgs step;
  step.batch = step.num_heads = step.num_value_heads = step.head_dim_k = step.head_dim_v = 1;
  Call<double> one(MakeProblem({.B = 1, .T = 1, .H = 1, .K = 1, .V = 1}, 1));
  const DeltaRuleArgs& args = one.grads.forward;
  step.decay = args.decay;
  step.q = args.q, step.k = args.k, step.v = args.v, step.out = args.out;
  step.log_decay = args.log_decay, step.beta = args.beta;
  step.state = one.final_state.data.data();
  ExpectError("q is fp64. Use bf16 or fp32.", [&] { cuda::DeltaRuleStep(step, nullptr); });
}

}  // namespace
}  // namespace halflife::kernels
