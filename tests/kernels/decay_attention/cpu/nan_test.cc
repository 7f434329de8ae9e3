// In the CPU kernels, a NaN affects its own token and later ones of its document and head, and
// nothing else.
#include "kernels/decay_attention/cpu/run_cpu.h"

namespace halflife::kernels::test {
namespace {

struct Operand {
  const char* name;
  Values RandomProblem::*values;
  int width;
  bool stays_in_its_token = false;
};

constexpr int kTokens = 200, kHeads = 2, kNanHead = 1;
constexpr int kDocuments[] = {0, 90, 140, kTokens};  // Starts in row 0.

struct Place {
  int b, t, h;
};
int DocumentOf(int t) { return t < kDocuments[1] ? 0 : t < kDocuments[2] ? 1 : 2; }

// Returns whether the NaN must not affect this token, row or head.
bool IsBeyond(const Place& nan, const Place& at) {
  return at.b != nan.b || at.h != nan.h || DocumentOf(at.t) != DocumentOf(nan.t);
}

// Compares [B, T, H, width] of two runs: equal bits where the NaN has no effect, and NaN in a whole
// row where it must have one.
template <typename Silent, typename Loud>
void ExpectHeard(const Values& got, const Values& clean, int width, Silent silent, Loud loud) {
  size_t row = 0;
  for (int b = 0; b < 2; ++b)
    for (int t = 0; t < kTokens; ++t)
      for (int h = 0; h < kHeads; ++h, row += width) {
        const Place at = {b, t, h};
        bool same = true, nan = true;
        for (size_t i = row; i < row + width; ++i) {
          same = same && got[i] == clean[i];
          nan = nan && std::isnan(got[i]);
        }
        ASSERT_TRUE(same || !silent(at)) << "heard at b " << b << " t " << t << " h " << h;
        ASSERT_TRUE(nan || !loud(at)) << "not heard at b " << b << " t " << t << " h " << h;
      }
}

void ExpectNanStays(const ProblemConfig& config, const Operand& operand, int token,
                    const RunConfig& run) {
  SCOPED_TRACE(Concat("NaN in ", operand.name, " of token ", token, ", kind ",
                      static_cast<int>(config.kind), ", ", run.num_segments, " segments"));
  const RandomProblem clean = MakeProblem(config, 31);
  RandomProblem poisoned = clean;
  for (int c = 0; c < operand.width; ++c)
    (poisoned.*operand.values)[(int64_t{1} * token * kHeads + kNanHead) * operand.width + c] = NAN;
  const Result want = RunCpu<float>(clean, run), got = RunCpu<float>(poisoned, run);
  const Place nan = {0, token, kNanHead};
  ExpectHeard(
      got.at("out"), want.at("out"), config.V,
      [&](const Place& at) {
        return IsBeyond(nan, at) || at.t < token || (operand.stays_in_its_token && at.t > token);
      },
      [&](const Place& at) {
        return !IsBeyond(nan, at) && at.t >= token &&
               (at.t == token || !operand.stays_in_its_token);
      });
  for (const char* const name : {"dq", "dk", "dv", "dlog_decay"}) {
    SCOPED_TRACE(name);
    if (want.contains(name))
      ExpectHeard(
          got.at(name), want.at(name),
          std::string(name) == "dv" ? config.V
          : name[1] == 'l'          ? config.decay_width()
                                    : config.K,
          [&](const Place& at) { return IsBeyond(nan, at); }, [](const Place&) { return false; });
  }
  const bool reaches_the_end = DocumentOf(token) == 2 && !operand.stays_in_its_token;
  const int64_t size = int64_t{1} * config.K * config.V;
  for (int64_t i = 0; i < 2 * kHeads * size; ++i) {
    const double state = got.at("final_state")[i];
    if (reaches_the_end && i / size == kNanHead) {
      ASSERT_TRUE(std::isnan(state)) << i;
    } else {
      ASSERT_EQ(state, want.at("final_state")[i]) << i;
    }
  }
}

TEST(DecayAttentionCpuNan, StaysInItsDocumentAndHeadAndAfterItsToken) {
  ProblemConfig config = {.B = 2, .T = kTokens, .H = kHeads, .K = 24, .V = 40};
  config.document_starts = {kDocuments[0], kDocuments[1], kDocuments[2], kTokens};
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                               DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    config.kind = kind;
    const Operand q = {"q", &RandomProblem::q, config.K, true},
                  k = {"k", &RandomProblem::k, config.K}, v = {"v", &RandomProblem::v, config.V},
                  decay = {"log_decay", &RandomProblem::log_decay, config.decay_width()};
    for (const int segments : {1, 4}) {
      const RunConfig run = {.chunk_size = 64, .num_segments = segments, .checkpoint_every = 1};
      for (const int token : {37, 97, 173})
        for (const Operand& operand : {q, k, v, decay})
          if (operand.values != &RandomProblem::log_decay || IsPerToken(kind))
            ExpectNanStays(config, operand, token, run);
    }
  }
}

// A decay of 0 separates a segment from earlier tokens, even if the segment contains a NaN
// elsewhere.
TEST(DecayAttentionCpuNan, ZeroDecayClosesTheTransition) {
  struct Tokens {
    int zero, nan;
  };
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int segments : {1, 2, 4})
      for (const Tokens at : {Tokens{150, 10}, {10, 150}, {20, 10}, {10, 20}}) {
        SCOPED_TRACE(Concat("0 at ", at.zero, ", NaN at ", at.nan, ", ", segments, " segments"));
        RandomProblem problem = MakeProblem({.B = 1, .T = kTokens, .H = 1, .kind = kind}, 32);
        const int width = problem.config.decay_width(), last = width - 1;
        std::vector<double> sums(width);
        for (size_t i = 0; i < problem.log_decay.size(); ++i)
          sums[i % width] += problem.log_decay[i];
        problem.log_decay[at.zero * width + last] = kNever;
        problem.log_decay[at.nan * width + last] = NAN;
        CpuCall<float> call(problem, {.num_segments = segments, .checkpoint_every = 1});
        std::vector<std::byte> workspace(ForwardWorkspaceBytes(call.args, call.plan));
        call.args.workspace = workspace.data();
        std::vector<float> log_transition(width), state(call.final_state.size());
        cpu::Summarise({.forward = call.args,
                        .dout = {},
                        .log_transition = log_transition.data(),
                        .state = state.data()},
                       call.plan);
        EXPECT_EQ(log_transition[last], static_cast<float>(kNever));
        for (int c = 0; c < last; ++c)
          EXPECT_NEAR(log_transition[c], sums[c], 1e-6 * std::abs(sums[c]));
      }
}

}  // namespace
}  // namespace halflife::kernels::test
