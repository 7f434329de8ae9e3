// The CPU kernels of decay attention equal the oracle, and equivalent calls give equal results.
#include <omp.h>

#include "core/error.h"
#include "kernels/decay_attention/cpu/run_cpu.h"
#include "kernels/decay_attention/step_faults.h"
#include "kernels/decay_attention/stride_faults.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

TEST(DecayAttentionCpu, DoubleIsTheOracle) {
  for (const DecayKind kind : kKinds)
    for (const int chunk_size : {64, 32, 16})
      for (const bool normalised : {false, true}) {
        const RandomProblem problem = MakeProblem({.T = 131,
                                                   .kind = kind,
                                                   .normalised = normalised,
                                                   .key_scale = true,
                                                   .positive = normalised},
                                                  7);
        ExpectClose(problem, RunCpu<double>(problem, {.chunk_size = chunk_size}),
                    Reference(problem), kDoubleGates);
      }
}

// Every length with every kind of decay, and every size with both families. Sizes and lengths are
// combined in rotation.
TEST(DecayAttentionCpu, FloatIsTheOracleForEveryShape) {
  constexpr std::pair<int, int> kSizes[] = {{16, 24},  {60, 100},  {64, 64},   {128, 64},
                                            {64, 128}, {128, 128}, {256, 256}, {8, 1}};
  constexpr int kLengths[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 300, 1000};
  uint64_t seed = 100;
  for (const DecayKind kind : kKinds)
    for (const int T : kLengths) {
      const auto [K, V] = T == 1000 ? kSizes[0] : kSizes[++seed % 8];
      const bool normalised = seed % 3 == 0;
      const RandomProblem problem = MakeProblem({.B = 1,
                                                 .T = T,
                                                 .H = 1,
                                                 .K = K,
                                                 .V = V,
                                                 .kind = kind,
                                                 .normalised = normalised,
                                                 .key_scale = seed % 2 == 0,
                                                 .states = seed % 5 != 0,
                                                 .positive = normalised},
                                                seed);
      Result got = RunCpu<float>(problem), want = Reference(problem);
      // With the normalizer, dq and dk only depend on how a key differs from the mean key. For
      // |normal| + 1/8 the mean is 0.92 and the deviation 0.60, so sqrt(1 + (0.92 / 0.60)^2) = 1.8
      // of the precision is lost.
      for (const char* const name : {"dq", "dk"}) {
        if (!normalised) break;
        EXPECT_LE(Compare(got.at(name), want.at(name)).relative, 2 * kFloatGates.value)
            << name << ", T " << T << ", K " << K << ", V " << V;
        want.erase(name);
      }
      ExpectClose(problem, got, want, kFloatGates);
    }
}

// Returns the divisor of every row, [B, T, H], without norm_eps: the sums of keys as a state.
Values Denominators(RandomProblem problem) {
  ProblemConfig& c = problem.config;
  c.normalised = false;
  c.V = 1;
  problem.v.assign(int64_t{1} * c.B * c.T * c.v_heads, 1.0);
  problem.dout.assign(int64_t{1} * c.B * c.T * c.H, 0.0);
  problem.initial_state = problem.initial_norm;
  problem.dfinal_state.clear();
  return Reference(problem).at("out");
}

// Returns the factor by which the largest error of a denominator exceeds that of its terms.
double Condition(const RandomProblem& problem) {
  RandomProblem magnitudes = problem;
  for (Values* const x :
       {&magnitudes.q, &magnitudes.k, &magnitudes.key_scale, &magnitudes.initial_norm})
    for (double& value : *x) value = std::abs(value);
  const Values terms = Denominators(magnitudes), left = Denominators(problem);
  double condition = 1;
  for (size_t i = 0; i < left.size(); ++i)
    condition = std::max(condition, terms[i] / std::abs(left[i]));
  return condition;
}

// If q and k have any sign, the terms of a denominator partly cancel. An error in their sum is
// amplified in the row, in its gradients, and in those of everything that the row reads, but not
// more than that.
TEST(DecayAttentionCpu, DenominatorsThatCancelLoseTheirConditionOnly) {
  for (const DecayKind kind : kKinds)
    for (const int T : {8, 65, 200}) {
      double condition = 0;
      RandomProblem problem;
      for (uint64_t seed = 24; condition < 10 || condition > 1000; ++seed) {
        problem = MakeProblem(
            {.B = 1, .T = T, .H = 1, .kind = kind, .normalised = true, .key_scale = true}, seed);
        condition = Condition(problem);
      }
      SCOPED_TRACE(Concat("condition ", condition));
      ExpectClose(problem, RunCpu<float>(problem), Reference(problem),
                  kFloatGates.Times(condition));
    }
}

TEST(DecayAttentionCpu, HalfStorageLosesItsOwnRoundingOnly) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    const RandomProblem problem =
        MakeProblem({.T = 130, .K = 64, .V = 40, .k_heads = 1, .kind = kind, .bf16 = true}, 9);
    ExpectClose(problem, RunCpu<float>(problem), Reference(problem), kHalfGates);
  }
}

TEST(DecayAttentionCpu, PackedSequencesOfAnyLength) {
  // Lengths 0 1 63 64 65 0 7.
  const std::vector<int32_t> limits = {0, 0, 1, 64, 128, 193, 193, 200};
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem =
        MakeProblem({.B = 1, .T = 200, .kind = kind, .cu_seqlens = limits}, 10);
    ExpectClose(problem, RunCpu<float>(problem), Reference(problem), kFloatGates);
    ExpectClose(problem, RunCpu<float>(problem, {.num_segments = 2, .checkpoint_every = 1}),
                Reference(problem), kFloatGates);
  }
}

TEST(DecayAttentionCpu, DocumentsResetTheState) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem(
        {.T = 150, .kind = kind, .document_starts = {0, 1, 64, 100, 149, 170, 299}}, 11);
    for (const int segments : {1, 2})
      ExpectClose(problem,
                  RunCpu<float>(problem, {.num_segments = segments, .checkpoint_every = 1}),
                  Reference(problem), kFloatGates);
  }
}

TEST(DecayAttentionCpu, UnusedChunksChangeNoBit) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem =
        MakeProblem({.T = 150, .kind = kind, .document_starts = {0, 1, 64, 100, 149, 170}}, 12);
    ExpectSameBits(RunCpu<float>(problem, {.unused_chunks = 5}), RunCpu<float>(problem));
  }
}

TEST(DecayAttentionCpu, SharedHeadsAreRepeatedOnes) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem({.T = 70,
                                               .H = 6,
                                               .K = 16,
                                               .V = 20,
                                               .q_heads = 3,
                                               .k_heads = 2,
                                               .v_heads = 1,
                                               .decay_heads = 2,
                                               .kind = kind},
                                              12);
    ExpectClose(problem, RunCpu<float>(problem), Reference(problem), kFloatGates);
  }
}

TEST(DecayAttentionCpu, StridesAndCheckpointsDoNotMatter) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem({.T = 200, .K = 33, .V = 31, .kind = kind}, 13);
    const Result dense = RunCpu<float>(problem);
    ExpectSameBits(dense, RunCpu<float>(problem, {.layout = {.padding = 3}}));
    // Recomputed states equal the saved ones, up to the order of summation of their transposes.
    ExpectClose(problem, RunCpu<float>(problem, {.checkpoint_every = 1}), dense, kFloatGates);
    ExpectClose(problem, RunCpu<float>(problem, {.checkpoint_every = 16}), dense, kFloatGates);
  }
}

TEST(DecayAttentionCpu, SegmentsAgree) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem({.B = 1, .T = 1100, .kind = kind}, 14);
    const Result whole = RunCpu<float>(problem, {.checkpoint_every = 2});
    for (const int segments : {2, 3, 8}) {
      const RunConfig config = {.num_segments = segments, .checkpoint_every = 2};
      const Result result = RunCpu<float>(problem, config);
      ExpectClose(problem, result, whole, {1e-6, 2e-6, 4e-6});
      ExpectSameBits(result, RunCpu<float>(problem, config));
    }
  }
}

TEST(DecayAttentionCpu, ThreadsDoNotChangeABit) {
  const int threads = omp_get_max_threads();
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem(
        {.T = 200, .H = 4, .k_heads = 1, .v_heads = 2, .decay_heads = 1, .kind = kind}, 15);
    const RunConfig config = {.num_segments = 2, .checkpoint_every = 1};
    omp_set_num_threads(1);
    const Result one = RunCpu<float>(problem, config);
    omp_set_num_threads(2);
    ExpectSameBits(one, RunCpu<float>(problem, config));
    omp_set_num_threads(threads);
  }
}

TEST(DecayAttentionCpu, HeadsSideBySideDoNotChangeABit) {
  const int threads = omp_get_max_threads();
  for (const DecayKind kind : kKinds) {
    const ProblemConfig problems[] = {
        {.T = 200, .H = 4, .k_heads = 2, .decay_heads = 1, .kind = kind, .key_scale = true},
        {.T = 200, .H = 3, .kind = kind, .normalised = true, .positive = true},
        {.B = 1, .T = 300, .H = 6, .kind = kind, .document_starts = {0, 70, 128, 299}},
        {.B = 1, .T = 300, .H = 4, .kind = kind, .cu_seqlens = {0, 0, 3, 200, 300}}};
    for (const ProblemConfig& config : problems) {
      const RandomProblem problem = MakeProblem(config, 25);
      for (const int segments : {1, 2}) {
        RunConfig run = {.chunk_size = 16, .num_segments = segments, .checkpoint_every = 2};
        const Result whole = RunCpu<float>(problem, run);
        for (const auto& [groups, n] : {std::pair{1, 1}, std::pair{2, 2}, std::pair{3, 1}}) {
          run.block_groups = groups;
          omp_set_num_threads(n);
          ExpectSameBits(RunCpu<float>(problem, run), whole);
          omp_set_num_threads(threads);
        }
      }
    }
  }
}

TEST(DecayAttentionCpu, SplitAndCarryIsTheWhole) {
  for (const DecayKind kind : kKinds)
    for (const int split : {1, 63, 100}) {
      const RandomProblem whole = MakeProblem({.B = 1, .T = 130, .H = 1, .kind = kind}, 16);
      const ProblemConfig& c = whole.config;
      const auto part = [&](int begin, int end) {
        RandomProblem p = whole;
        p.config.T = end - begin;
        const auto cut = [&](Values& x, int width) {
          x = Values(x.begin() + begin * width, x.begin() + end * width);
        };
        cut(p.q, c.K);
        cut(p.k, c.K);
        cut(p.v, c.V);
        cut(p.dout, c.V);
        if (IsPerToken(kind)) cut(p.log_decay, c.decay_width());
        return p;
      };
      RandomProblem first = part(0, split), second = part(split, c.T);
      second.initial_state = RunCpu<double>(first).at("final_state");
      const Result late = RunCpu<double>(second);
      first.dfinal_state = late.at("dinitial_state");
      const Result early = RunCpu<double>(first), all = Reference(whole);
      for (const char* name : {"out", "dq", "dk", "dv", "dlog_decay"}) {
        if (!all.contains(name)) continue;
        Values joined = early.at(name);
        joined.insert(joined.end(), late.at(name).begin(), late.at(name).end());
        EXPECT_LE(Compare(joined, all.at(name)).relative, 1e-12) << name << " split " << split;
      }
      EXPECT_LE(Compare(late.at("final_state"), all.at("final_state")).relative, 1e-12);
      EXPECT_LE(Compare(early.at("dinitial_state"), all.at("dinitial_state")).relative, 1e-12);
    }
}

// Later tokens change no bit: outputs before a changed token, and dk and dv after a changed output
// gradient.
TEST(DecayAttentionCpu, CausalToTheBit) {
  for (const DecayKind kind : kKinds)
    for (const int t : {3, 40, 63, 64, 90}) {
      const RandomProblem problem = MakeProblem({.B = 1, .T = 100, .H = 1, .kind = kind}, 17);
      const ProblemConfig& c = problem.config;
      const Result before = RunCpu<float>(problem);
      const auto same = [&](const Result& after, const char* name, int begin, int end, int width) {
        EXPECT_EQ(std::memcmp(&before.at(name)[begin * width], &after.at(name)[begin * width],
                              sizeof(double) * (end - begin) * width),
                  0)
            << name << " at t " << t << ", kind " << static_cast<int>(kind);
      };
      RandomProblem changed = problem;
      for (int i = 0; i < c.K; ++i) changed.q[t * c.K + i] = changed.k[t * c.K + i] = 2;
      for (int i = 0; i < c.V; ++i) changed.v[t * c.V + i] = -3;
      if (IsPerToken(kind))
        for (int i = 0; i < c.decay_width(); ++i)
          changed.log_decay[t * c.decay_width() + i] = -0.25;
      same(RunCpu<float>(changed), "out", 0, t, c.V);
      changed = problem;
      for (int i = 0; i < c.V; ++i) changed.dout[t * c.V + i] = 5;
      const Result after = RunCpu<float>(changed);
      same(after, "dq", 0, t, c.K);
      same(after, "dq", t + 1, c.T, c.K);
      same(after, "dk", t + 1, c.T, c.K);
      same(after, "dv", t + 1, c.T, c.V);
    }
}

// The same decay expressed by different kinds.
TEST(DecayAttentionCpu, KindsThatMeanTheSameAgree) {
  const RandomProblem none = MakeProblem({.T = 150, .kind = DecayKind::kNone}, 18);
  const auto as = [&](DecayKind kind, const Values& per_head) {
    RandomProblem p = none;
    p.config.kind = kind;
    const ProblemConfig& c = p.config;
    p.log_decay.clear();
    for (int t = 0; t < (IsPerToken(kind) ? c.B * c.T : 1); ++t)
      for (int h = 0; h < c.H; ++h)
        p.log_decay.insert(p.log_decay.end(), c.decay_width(), per_head[h]);
    return p;
  };
  for (const Values& decays : {Values{0, 0}, Values{-0.125, -0.03125}}) {
    const RandomProblem per_head = as(DecayKind::kPerHead, decays);
    const Result want = RunCpu<float>(decays[0] == 0 ? none : per_head);
    const double dlambda = RunCpu<double>(per_head).at("dlambda")[0];
    for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                 DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
      const RandomProblem problem = as(kind, decays);
      const ProblemConfig& c = problem.config;
      const Result got = RunCpu<float>(problem);
      for (const char* name : {"out", "final_state", "dq", "dk", "dv", "dinitial_state"})
        EXPECT_LE(Compare(got.at(name), want.at(name)).relative, 1e-6)
            << name << ", kind " << static_cast<int>(kind);
      // dlambda is the sum of dg over tokens, channels and rows.
      const Values grads = RunCpu<double>(problem).at(IsPerToken(kind) ? "dlog_decay" : "dlambda");
      const int width = c.decay_width();
      double sum = 0;
      for (size_t i = 0; i < grads.size(); ++i)
        if (static_cast<int>(i) / width % c.H == 0) sum += grads[i];
      EXPECT_NEAR(sum, dlambda, 1e-11 * std::abs(dlambda)) << "kind " << static_cast<int>(kind);
    }
  }
}

TEST(DecayAttentionCpu, NormalisedOutputsAreAverages) {
  // With positive q and k, the weights of a row sum to one.
  for (const DecayKind kind : kKinds) {
    RandomProblem problem = MakeProblem(
        {.T = 100, .kind = kind, .normalised = true, .states = false, .positive = true}, 19);
    const Result any = RunCpu<float>(problem);
    const ProblemConfig& c = problem.config;
    const Values& out = any.at("out");
    const int64_t token = int64_t{1} * c.H * c.V, row = c.T * token;
    for (int64_t i = 0; i < row * c.B; i += row)
      for (int64_t channel = i; channel < i + token; ++channel) {  // The values that a token sees.
        double low = problem.v[channel], high = low;
        for (int64_t at = channel; at < i + row; at += token) {
          low = std::min(low, problem.v[at]), high = std::max(high, problem.v[at]);
          EXPECT_GE(out[at], low - 2e-6);
          EXPECT_LE(out[at], high + 2e-6);
        }
      }
    std::fill(problem.v.begin(), problem.v.end(), 0.75);
    const Result same = RunCpu<float>(problem);
    for (const double x : same.at("out")) EXPECT_NEAR(x, 0.75, 1e-6);
    std::fill(problem.k.begin(), problem.k.end(), 0.0);
    const Result zero = RunCpu<float>(problem);
    for (const double x : zero.at("out")) EXPECT_EQ(x, 0.0);
  }
}

// Expects that the summary of a whole sequence is its final state from a zero initial state, and
// that of the backward dL/d(initial state) for a zero dL/d(final state).
void ExpectSummaries(const RandomProblem& problem, const RunConfig& config) {
  const ProblemConfig& c = problem.config;
  CpuCall<double> setup(problem, config);
  const Result want = setup.Run();
  std::vector<double> log_transition(c.B * c.H * c.decay_width());
  std::vector<double> state(want.at("final_state").size()), norm(setup.final_norm.size());
  std::vector<std::byte> workspace(ForwardWorkspaceBytes(setup.args, setup.plan));
  setup.args.workspace = workspace.data();
  DecaySegmentArgs segment;
  segment.forward = setup.args;
  segment.dout = setup.dout.view();
  segment.log_transition = log_transition.data();
  segment.state = state.data();
  segment.norm = norm.data();
  const auto expect = [&](const char* state_name, const char* norm_name) {
    EXPECT_LE(Compare(state, want.at(state_name)).relative, 1e-13) << state_name;
    if (!c.normalised) return;
    EXPECT_LE(Compare(norm, want.at(norm_name)).relative, 1e-13) << norm_name;
  };
  cpu::Summarise(segment, setup.plan);
  expect("final_state", "final_norm");
  const int width = c.decay_width();
  for (int i = 0; i < c.H * width; ++i) {
    EXPECT_EQ(log_transition[i], kNever) << "row 0 holds a document start";
    double sum = 0;
    for (int t = 0; t < c.T && c.kind != DecayKind::kNone; ++t)
      sum += problem.log_decay[IsPerToken(c.kind) ? (c.T + t) * c.H * width + i : i];
    EXPECT_NEAR(log_transition[c.H * width + i], sum, 1e-12 * std::abs(sum));
  }
  cpu::BackwardSummarise(segment, setup.plan);
  expect("dinitial_state", "dinitial_norm");
}

TEST(DecayAttentionCpu, SegmentSummariesCompose) {
  for (const DecayKind kind : kKinds)
    for (const bool normalised : {false, true})
      for (const int segments : {1, 3}) {
        RandomProblem problem = MakeProblem({.T = 300,
                                             .kind = kind,
                                             .normalised = normalised,
                                             .key_scale = normalised,
                                             .positive = normalised,
                                             .document_starts = {77}},
                                            20);
        problem.initial_state.clear(), problem.initial_norm.clear();
        problem.dfinal_state.clear(), problem.dfinal_norm.clear();
        ExpectSummaries(problem, {.num_segments = segments, .checkpoint_every = 1});
      }
}

TEST(DecayAttentionCpu, StepIsAChunkOfOneToken) {
  for (const DecayKind kind : kKinds)
    for (const bool normalised : {false, true}) {
      const RandomProblem problem = MakeProblem({.B = 3,
                                                 .T = 1,
                                                 .H = 4,
                                                 .k_heads = 2,
                                                 .kind = kind,
                                                 .normalised = normalised,
                                                 .key_scale = true,
                                                 .positive = normalised},
                                                21);
      const Result want = Reference(problem);
      CpuCall<float> s(problem, {});
      const ProblemConfig& c = problem.config;
      std::vector<float> state = s.initial_state, norm = s.initial_norm;
      const std::vector<int32_t> slots = {0, 1, -1};
      DecayAttentionStepArgs step = s.StepArgs();
      step.state = state.data();
      step.norm = norm.data();
      step.slots = slots.data();
      cpu::Step(step);
      const Values out = s.out.Get();
      const int64_t values = 2 * c.H * c.V, states = 2 * c.H * c.K * c.V;
      const auto head = [](const auto& x, int64_t count) {
        return Values(x.begin(), x.begin() + count);
      };
      EXPECT_LE(Compare(head(out, values), head(want.at("out"), values)).relative, 2e-6);
      EXPECT_LE(Compare(head(state, states), head(want.at("final_state"), states)).relative, 1e-6);
      for (size_t i = values; i < out.size(); ++i) EXPECT_EQ(out[i], 0) << "a row without a slot";
      for (size_t i = states; i < state.size(); ++i) EXPECT_EQ(state[i], s.initial_state[i]);
    }
}

TEST(DecayAttentionCpu, SaysWhatIsMissing) {
  const RandomProblem problem = MakeProblem({}, 22);
  CpuCall<float> s(problem, {});
  s.args.chunks = nullptr;
  try {
    cpu::Forward(s.args, s.plan);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("chunks without their table"), std::string::npos);
  }
  s.SetArgs();
  s.grads.forward = s.args;
  try {
    cpu::Backward(s.grads, s.plan);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("without the forward's checkpoints"), std::string::npos);
  }
}

TEST(DecayAttentionCpu, SummariesOfTheNormaliserSayWhatIsMissing) {
  const RandomProblem problem = MakeProblem({.normalised = true, .positive = true}, 22);
  CpuCall<float> s(problem, {});
  DecaySegmentArgs segment;
  segment.forward = s.args;
  segment.dout = s.dout.view();
  segment.state = s.final_state.data();
  EXPECT_HL_ERROR(cpu::Summarise(segment, s.plan), ExitCode::kInternal,
                  "a summary without a buffer for its state and its sums of keys");
  segment.norm = s.final_norm.data();
  segment.forward.norm_denom = nullptr;
  EXPECT_HL_ERROR(cpu::BackwardSummarise(segment, s.plan), ExitCode::kInternal,
                  "a normalised backward summary needs the forward's out and norm_denom");
}

TEST(DecayAttentionCpu, StridesThatDoNotFit) {
  const RandomProblem problem = MakeProblem({.key_scale = true}, 23);
  ExpectStrideFaults([&](const GradientChange& change) {
    CpuCall<float> s(problem, {});
    std::vector<std::byte> checkpoints(CheckpointBytes(s.args, s.plan)),
        workspace(BackwardWorkspaceBytes(s.args, s.plan));
    s.grads.forward = s.args;
    s.grads.forward.checkpoints = checkpoints.data();
    s.grads.forward.workspace = workspace.data();
    change(s.grads);
    cpu::Forward(s.grads.forward, s.plan);
    cpu::Backward(s.grads, s.plan);
  });
}

TEST(DecayAttentionCpu, StepsThatDoNotFit) {
  ExpectStepFaults([](const DecayAttentionStepArgs& args) { cpu::Step(args); }, /*is_cuda=*/false);
}

}  // namespace
}  // namespace halflife::kernels::test
