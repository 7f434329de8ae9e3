// The CUDA kernels of the delta rule's backward against the oracle in fp64. The forward's arrays
// come from intermediates.h, so that a failure here is one of the backward.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/delta_rule/cuda/backward.h"
#include "kernels/delta_rule/cuda/intermediates.h"
#include "kernels/delta_rule/cuda/run_cuda.h"

namespace halflife::kernels {
namespace {

using namespace test::delta;

constexpr DeltaDecay kDecays[] = {DeltaDecay::kNone, DeltaDecay::kPerToken,
                                  DeltaDecay::kPerTokenChannel};

// Relative root mean square errors: the bounds of the CPU's kernels in LongRowsInFp32AndBf16.
constexpr double kFp32 = 5e-6, kBf16 = 1.5e-2;

Result WithoutForward(Result result) {
  result.erase("out");
  result.erase("final_state");
  return result;
}

template <typename S>
Result RunParts(Call<S>& call) {
  Intermediates<S> intermediates(call);
  AlignedBytes memory(delta::BackwardArrayBytes(call.grads.forward));
  delta::LaunchBackward(call.grads, intermediates.workspace(),
                        delta::DivideBackwardArrays(call.grads.forward, memory.data()), nullptr);
  return WithoutForward(call.Get(/*backward=*/true));
}
template <typename S>
Result RunParts(const Problem& problem) {
  Call<S> call(problem);
  return RunParts(call);
}
Result RunParts(const Problem& problem) {
  return problem.config.bf16 ? RunParts<Bf16>(problem) : RunParts<float>(problem);
}

void ExpectOracle(const Case& config, uint64_t seed, double fp32 = kFp32) {
  const Problem problem = MakeProblem(config, seed);
  const Result want = WithoutForward(Oracle(problem));
  ExpectClose(problem, RunParts(problem), want, {.forward = config.bf16 ? kBf16 : fp32});
  if (!config.bf16) return;
  const Problem by_warpgroups = ByWarpgroups(problem);
  ExpectClose(by_warpgroups, RunParts(by_warpgroups), want, {.forward = kBf16});
}

TEST(DeltaRuleCudaBackward, EqualsTheOracle) {
  uint64_t seed = 0;
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays)
      for (const int T : {1, 17, 64, 65, 150})
        ExpectOracle({.B = T < 63 ? 3 : 1,
                      .T = T,
                      .H = T < 63 ? 2 : 1,
                      .per_head = T % 3 + 1,
                      .K = T < 63 ? 24 : 64,
                      .V = T < 63 ? 40 : 64,
                      .decay = decay,
                      .bf16 = bf16},
                     ++seed);
}

// Padded, unaligned and wide heads, and several slices of V.
TEST(DeltaRuleCudaBackward, HeadSizesEqualTheOracle) {
  uint64_t seed = 20;
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays)
      for (const auto& [K, V] : {std::pair(128, 128), {33, 17}, {100, 136}})
        ExpectOracle({.B = 1, .T = 70, .H = 1, .K = K, .V = V, .decay = decay, .bf16 = bf16},
                     ++seed);
}

// Two slices of K.
TEST(DeltaRuleCudaBackward, WideHeadsEqualTheOracle) {
  uint64_t seed = 40;
  for (const DeltaDecay decay : kDecays)
    for (const int K : {256, 150})
      ExpectOracle({.B = 1, .T = 70, .H = 1, .K = K, .V = 128, .decay = decay, .bf16 = true},
                   ++seed);
}

TEST(DeltaRuleCudaBackward, DocumentsEqualTheOracle) {
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays) {
      ExpectOracle({.B = 2,
                    .T = 200,
                    .H = 1,
                    .per_head = 2,
                    .decay = decay,
                    .bf16 = bf16,
                    .document_starts = {1, 2, 64, 65, 128, 191, 200, 263, 328}},
                   43);
      ExpectOracle({.B = 1,
                    .T = 198,
                    .H = 1,
                    .per_head = 2,
                    .decay = decay,
                    .bf16 = bf16,
                    .cu_seqlens = {0, 0, 1, 3, 66, 130, 195, 195, 198}},
                   41);
    }
}

TEST(DeltaRuleCudaBackward, HardCasesEqualTheOracle) {
  for (const DeltaDecay decay : kDecays) {
    const Case base = {.B = 1, .T = 140, .H = 1, .per_head = 2, .K = 32, .V = 32, .decay = decay};
    const auto expect = [&](const char* name, auto change) {
      SCOPED_TRACE(name);
      Case config = base;
      change(config);
      ExpectOracle(config, 11, /*fp32=*/1e-5);
    };
    for (const double beta : {0.0, 1.0, 1.9, 2.0})
      expect("equal keys without decay", [&](Case& c) {
        c.keys = Keys::kEqual;
        c.gate = Gate::kOne;
        c.beta_fixed = beta;
        c.T = beta == 0 || beta == 2 ? 64 : c.T;
      });
    expect("correlated keys", [](Case& c) { c.keys = Keys::kCorrelated; });
    expect("keys of zero", [](Case& c) { c.keys = Keys::kZero, c.T = 100; });
    expect("beta of zero", [](Case& c) { c.beta_fixed = 0, c.T = 100; });
    expect("resets", [](Case& c) { c.gate = Gate::kResets; });
    expect("strong decays", [](Case& c) { c.gate = Gate::kStrong; });
  }
}

// ---- with wgmma: the adjoint scan requires that V is a multiple of 64 ----

// Each stage of the ring is used many times. Documents start in chunks, and sequences end in them.
TEST(DeltaRuleCudaBackward, WarpgroupsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays) {
    const Case base = {
        .B = 1, .T = 200, .H = 1, .per_head = 2, .K = 40, .V = 128, .decay = decay, .bf16 = true};
    Case starts = base, sequences = base, wide = base, fixed = base, one = base;
    starts.document_starts = {1, 64, 65, 100, 191};
    sequences.cu_seqlens = {0, 0, 1, 3, 66, 130, 195, 195, 200};
    wide.K = 128;
    fixed.keys = Keys::kCorrelated;
    fixed.beta_fixed = 1;
    one.T = 1;
    for (const Case& config : {starts, sequences, wide, fixed, one}) ExpectOracle(config, 67);
    for (const double beta : {0.0, 2.0}) {
      fixed.beta_fixed = beta;
      fixed.keys = Keys::kRandom;
      ExpectOracle(fixed, 68);
    }
  }
  ExpectOracle({.B = 1, .T = 4160, .H = 1, .K = 128, .V = 64, .bf16 = true}, 69);
}

// With this V, the adjoint scan is the same on both kinds of GPU, and only the loads of the
// gradients differ: three tiles of columns go through two buffers.
TEST(DeltaRuleCudaBackward, PrefetchedLoadsDoNotChangeTheBits) {
  for (const DeltaDecay decay : kDecays)
    for (const int K : {64, 100, 256}) {
      const Problem problem = MakeProblem(
          {.B = 1, .T = 70, .H = 1, .per_head = 2, .K = K, .V = 136, .decay = decay, .bf16 = true},
          77);
      ExpectSameBits(problem, RunParts(ByWarpgroups(problem)), RunParts(problem));
    }
}

// TMA loads dout past the end of a short chunk, where another document starts.
TEST(DeltaRuleCudaBackward, WarpgroupsKeepANanInItsDocument) {
  constexpr int kT = 200, kStart = 100;
  const Problem problem = MakeProblem({.B = 1,
                                       .T = kT,
                                       .H = 1,
                                       .K = 64,
                                       .V = 64,
                                       .bf16 = true,
                                       .warpgroups = true,
                                       .document_starts = {kStart}},
                                      73);
  Problem other = problem;
  for (int c = 0; c < 64; ++c) other.data.dout[kStart * 64 + c] = std::nan("");
  const Result want = RunParts(problem), got = RunParts(other);
  for (const char* name : {"dq", "dk", "dv", "dbeta", "dlog_decay"}) {
    const size_t own = want.at(name).size() / kT * kStart;
    for (size_t i = 0; i < own; ++i) ASSERT_EQ(got.at(name)[i], want.at(name)[i]) << name << i;
  }
  EXPECT_EQ(got.at("dinitial_state"), want.at("dinitial_state"));
}

TEST(DeltaRuleCudaBackward, WarpgroupsNeedRowsThatTmaReads) {
  Call<Bf16> call(MakeProblem(
      {.B = 2, .T = 70, .H = 2, .K = 64, .V = 64, .bf16 = true, .warpgroups = true}, 3));
  const DeltaRuleArgs& args = call.grads.forward;
  const auto scans = [&](auto change) {
    DeltaRuleArgs changed = args;
    TensorView dout = call.grads.dout;
    change(changed, dout);
    return delta::CanScanAdjointByWgmma(changed, dout);
  };
  EXPECT_TRUE(scans([](DeltaRuleArgs&, TensorView&) {}));
  EXPECT_FALSE(scans([](DeltaRuleArgs& a, TensorView&) { a.warpgroups = false; }));
  EXPECT_FALSE(scans([](DeltaRuleArgs& a, TensorView&) { a.head_dim_v = 32; }));
  EXPECT_FALSE(scans([](DeltaRuleArgs& a, TensorView&) { a.q.dtype = DType::kF32; }));
  EXPECT_FALSE(scans([](DeltaRuleArgs&, TensorView& x) { x.stride_t = 0; }));
  EXPECT_FALSE(scans([](DeltaRuleArgs&, TensorView& x) { x.stride_t += 4; }));
  EXPECT_FALSE(scans([](DeltaRuleArgs&, TensorView& x) { x.stride_b += 8; }));
  EXPECT_FALSE(
      scans([](DeltaRuleArgs&, TensorView& x) { x.data = static_cast<char*>(x.data) + 2; }));
}

TEST(DeltaRuleCudaBackward, ALongRowInBf16) {
  ExpectOracle({.B = 1, .T = 4096, .H = 1, .K = 64, .V = 64, .bf16 = true}, 7);
}

TEST(DeltaRuleCudaBackward, RepetitionsHaveEqualBits) {
  for (const bool bf16 : {true, false})
    for (const DeltaDecay decay : kDecays) {
      const Problem problem =
          MakeProblem({.B = 1, .T = 130, .H = 2, .per_head = 3, .decay = decay, .bf16 = bf16}, 53);
      ExpectSameBits(problem, RunParts(problem), RunParts(problem));
    }
}

// dbeta, dlog_decay, the final state's gradient and the initial state's are optional.
TEST(DeltaRuleCudaBackward, OptionalGradientsDoNotChangeTheOthers) {
  for (const DeltaDecay decay : kDecays) {
    Problem problem = MakeProblem({.B = 1, .T = 70, .H = 1, .decay = decay, .bf16 = true}, 59);
    for (double& x : problem.data.dfinal_state) x = 0;
    Result want = RunParts<Bf16>(problem);
    for (const char* name : {"dbeta", "dlog_decay", "dinitial_state"})
      for (double& x : want[name]) x = 0;
    if (decay == DeltaDecay::kNone) want.erase("dlog_decay");
    Call<Bf16> call(problem);
    call.grads.dbeta.data = call.grads.dlog_decay.data = nullptr;
    call.grads.dfinal_state = nullptr;
    call.grads.dinitial_state = nullptr;
    ExpectSameBits(problem, RunParts(call), want);
  }
}

// Z is the gradient of the initial state if that of the final state is zero.
TEST(DeltaRuleCudaBackward, TheSummaryOfASegmentIsTheGradientOfItsState) {
  for (const DeltaDecay decay : kDecays) {
    Problem problem = MakeProblem(
        {.B = 2, .T = 100, .H = 1, .per_head = 2, .decay = decay, .document_starts = {150}}, 61);
    for (double& x : problem.data.dfinal_state) x = 0;
    Call<float> call(problem);
    Intermediates<float> intermediates(call);
    Array<float> adjoint(problem.data.initial_state.size());
    DeltaSegmentArgs segment;
    segment.forward = call.grads.forward;
    segment.dout = call.grads.dout;
    segment.adjoint = adjoint.data.data();
    delta::LaunchAdjointSummary(segment, intermediates.workspace(), nullptr);
    EXPECT_LE(Compare(adjoint.values(), Oracle(problem).at("dinitial_state")).relative, kFp32)
        << Describe(problem);
  }
}

TEST(DeltaRuleCudaBackward, SupportsWideKeysInBf16Only) {
  DeltaRuleArgs args;
  args.head_dim_k = 128;
  EXPECT_TRUE(cuda::SupportsDeltaRuleBackward(args));
  args.head_dim_k = 129;
  EXPECT_FALSE(cuda::SupportsDeltaRuleBackward(args));
  args.q.dtype = DType::kBF16;
  args.head_dim_k = 256;
  EXPECT_TRUE(cuda::SupportsDeltaRuleBackward(args));
  args.head_dim_k = 257;
  EXPECT_FALSE(cuda::SupportsDeltaRuleBackward(args));
  args.q.dtype = DType::kF64;
  args.head_dim_k = 64;
  EXPECT_FALSE(cuda::SupportsDeltaRuleBackward(args));
}

constexpr int64_t kSmallGpuBytes = 99 << 10, kAmpereBytes = 163 << 10;

// The largest K that is supported with a size of shared memory; 0: none.
int LargestKeys(DType dtype, DeltaDecay decay, int64_t shared_memory_bytes,
                bool (*supports)(const DeltaRuleArgs&)) {
  for (const int K : {256, 128, 64}) {
    DeltaRuleArgs args;
    args.q.dtype = dtype;
    args.decay = decay;
    args.head_dim_k = K;
    args.shared_memory_bytes = shared_memory_bytes;
    if (supports(args)) return K;
  }
  return 0;
}

TEST(DeltaRuleCudaBackward, GpusWithLessSharedMemorySupportSmallerHeads) {
  using enum DeltaDecay;
  const auto forward = cuda::SupportsDeltaRule, backward = cuda::SupportsDeltaRuleBackward;
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerToken, kSmallGpuBytes, forward), 128);
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerToken, kSmallGpuBytes, backward), 128);
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerTokenChannel, kSmallGpuBytes, forward), 64);
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerTokenChannel, kSmallGpuBytes, backward), 64);
  EXPECT_EQ(LargestKeys(DType::kF32, kPerToken, kSmallGpuBytes, forward), 64);
  EXPECT_EQ(LargestKeys(DType::kF32, kPerToken, kSmallGpuBytes, backward), 0);
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerToken, kAmpereBytes, backward), 256);
  EXPECT_EQ(LargestKeys(DType::kBF16, kPerTokenChannel, kAmpereBytes, backward), 128);
  EXPECT_EQ(LargestKeys(DType::kF32, kPerToken, kAmpereBytes, backward), 128);
  EXPECT_EQ(LargestKeys(DType::kF32, kPerTokenChannel, kAmpereBytes, backward), 64);
}

// With less shared memory, the adjoint scan loads a chunk only after the previous one.
TEST(DeltaRuleCudaBackward, SharedMemoryChangesNoBit) {
  for (const int K : {64, 128}) {
    const Problem problem =
        MakeProblem({.B = 1, .T = 200, .H = 1, .K = K, .V = 64, .bf16 = true}, 67);
    Call<Bf16> small(problem);
    small.grads.forward.shared_memory_bytes = kSmallGpuBytes;
    ExpectSameBits(problem, RunParts(small), RunParts<Bf16>(problem));
  }
}

}  // namespace
}  // namespace halflife::kernels
