// Decays that break the usual shortcuts (differences of cumulative sums, products of rounded
// factors, 1 / b). Controls show that the error bounds detect mistakes.
#include "kernels/decay_attention/cpu/run_cpu.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

void ExpectFinite(const RandomProblem& problem, const Result& result) {
  for (const auto& [name, values] : result)
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_TRUE(std::isfinite(values[i]))
          << name << " at " << Where(problem, name, static_cast<int64_t>(i)) << ", seed "
          << problem.seed;
}

TEST(DecayAttentionAdversarial, AnyDecay) {
  for (const DecayKind kind : kKinds)
    for (const Strength strength :
         {Strength::kOne, Strength::kNearOne, Strength::kStrong, Strength::kVanish,
          Strength::kResets, Strength::kMixed, Strength::kRandom}) {
      const RandomProblem problem = MakeProblem({.T = 200, .kind = kind, .strength = strength}, 31);
      const Result got = RunCpu<float>(problem), want = Reference(problem);
      ExpectFinite(problem, got);
      ExpectClose(problem, got, want, kFloatGates);
      ExpectClose(problem, RunCpu<double>(problem), want, kDoubleGates);
      // Exactly zero where the decay is zero.
      const Values& grads = got.at(IsPerToken(kind) ? "dlog_decay" : "dlambda");
      for (size_t i = 0; i < grads.size(); ++i)
        EXPECT_TRUE(problem.log_decay[i] != kNever || grads[i] == 0.0) << i << ": " << grads[i];
    }
}

// Sums up to 60 over a chunk give weights of e^60 together with weights of 1. fp32 sums of this
// size have an error of a few times 60 x 6e-8 in the exponent, so the bound is wider.
TEST(DecayAttentionAdversarial, GrowthUpToSixtyAChunk) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem =
        MakeProblem({.B = 1, .T = 64, .H = 1, .kind = kind, .strength = Strength::kGrowth}, 32);
    const Result got = RunCpu<float>(problem), want = Reference(problem);
    ExpectFinite(problem, got);
    ExpectClose(problem, got, want, {1e-5, 2e-5, 2e-5});
    ExpectClose(problem, RunCpu<double>(problem), want, kDoubleGates);
  }
}

// A decay that is rounded once per token would have an error of 16384 x 3e-8 = 5e-4 after 16384
// tokens.
TEST(DecayAttentionAdversarial, NearOneOverALongSequence) {
  for (const DecayKind kind : kKinds) {
    const RandomProblem problem = MakeProblem(
        {.B = 1, .T = 16384, .H = 1, .K = 8, .V = 8, .kind = kind, .strength = Strength::kNearOne},
        33);
    ExpectClose(problem, RunCpu<float>(problem), Reference(problem), {1e-5, 1e-5, 1e-5});
  }
}

// A log decay of -inf at a token, a document that starts there, and two sequences are equivalent.
TEST(DecayAttentionAdversarial, ThreeWaysToForget) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int t : {1, 40, 64, 130}) {
      RandomProblem decayed = MakeProblem({.B = 1, .T = 150, .kind = kind}, 34);
      const ProblemConfig& c = decayed.config;
      for (int i = 0; i < c.H * c.decay_width(); ++i)
        decayed.log_decay[t * c.H * c.decay_width() + i] = kNever;
      RandomProblem document = decayed;
      document.config.document_starts = {t};
      RandomProblem packed = decayed;
      packed.config.cu_seqlens = {0, t, c.T};
      const auto twice = [](Values& x, bool first) {  // The other sequence's states are zero.
        Values zero(x.size(), 0.0);
        zero.insert(first ? zero.end() : zero.begin(), x.begin(), x.end());
        x = zero;
      };
      twice(packed.initial_state, false);
      twice(packed.dfinal_state, true);
      const Result want = RunCpu<float>(decayed), a = RunCpu<float>(document),
                   b = RunCpu<float>(packed);
      for (const char* name : {"out", "dq", "dk", "dv", "dlog_decay"}) {
        EXPECT_LE(Compare(a.at(name), want.at(name)).relative, 1e-6) << name << ", t " << t;
        EXPECT_LE(Compare(b.at(name), want.at(name)).relative, 1e-6) << name << ", t " << t;
      }
      EXPECT_LE(Compare(a.at("final_state"), want.at("final_state")).relative, 1e-6);
      EXPECT_LE(Compare(a.at("dinitial_state"), want.at("dinitial_state")).relative, 1e-6);
    }
}

// Makes mistakes in the kernels' inputs or results by hand.
TEST(DecayAttentionAdversarial, TheGatesNoticeMistakes) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    const RandomProblem problem = MakeProblem({.B = 1, .T = 130, .H = 1, .kind = kind}, 35);
    const ProblemConfig& c = problem.config;
    const Result want = Reference(problem);
    const auto wrong = [&](const RandomProblem& changed, const char* name) {
      EXPECT_GT(Compare(RunCpu<float>(changed).at(name), want.at(name)).relative,
                kFloatGates.Of(name))
          << name;
    };
    RandomProblem changed = problem;  // A decay is shifted by one token.
    std::rotate(changed.log_decay.begin(), changed.log_decay.begin() + c.decay_width(),
                changed.log_decay.end());
    wrong(changed, "out");
    wrong(changed, "dlog_decay");
    changed = problem;  // The last chunk's gradient of the state is dropped.
    changed.dfinal_state.clear();
    for (const char* name : {"dk", "dv", "dlog_decay"}) wrong(changed, name);
    changed = problem;  // The final state is decayed once too often, as by a padded tail.
    for (int i = 0; i < c.decay_width(); ++i)
      changed.log_decay[(c.T - 1) * c.decay_width() + i] -= 1e-4;
    wrong(changed, "final_state");
    changed = problem;  // One element of one key changes by a thousandth.
    changed.k[120 * c.K] *= 1.001;
    wrong(changed, "dq");
    wrong(changed, "final_state");
    // E is dropped: for decays near 1, most of dg comes from the part that passes through the whole
    // chunk.
    const Values& dg = want.at("dlog_decay");
    Values without = dg;
    for (size_t i = 0; i < without.size(); ++i) without[i] *= 1 - 1e-5;
    EXPECT_GT(Compare(without, dg).relative, kFloatGates.dlog_decay);
  }
}

// The shortcut that the kernels avoid: dlog_decay as a running sum of q dq - k dk over the
// sequence, in fp32.
TEST(DecayAttentionAdversarial, ARunningSumOverTheSequenceWouldFail) {
  RandomProblem problem = MakeProblem({.B = 1,
                                       .T = 4096,
                                       .H = 1,
                                       .K = 16,
                                       .V = 16,
                                       .kind = DecayKind::kPerToken,
                                       .strength = Strength::kStrong},
                                      36);
  problem.dfinal_state.clear();
  const ProblemConfig& c = problem.config;
  const Result got = RunCpu<float>(problem), want = Reference(problem);
  float sum = 0;
  Values shortcut(c.T);
  for (int t = c.T - 1; t >= 0; --t) {
    for (int i = 0; i < c.K; ++i) {
      const int at = t * c.K + i;
      sum +=
          static_cast<float>(problem.q[at] * got.at("dq")[at] - problem.k[at] * got.at("dk")[at]);
    }
    shortcut[t] = sum;
  }
  const Values& dg = want.at("dlog_decay");
  EXPECT_GT(Compare(shortcut, dg).relative, 3 * kFloatGates.dlog_decay);
  EXPECT_LE(Compare(got.at("dlog_decay"), dg).relative, kFloatGates.dlog_decay);
}

}  // namespace
}  // namespace halflife::kernels::test
