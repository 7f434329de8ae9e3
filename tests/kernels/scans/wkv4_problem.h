// Random problems of RWKV-4's time mixing, and the oracle's results, for tests of the CPU's loops
// and of the emulated CUDA kernels.
#pragma once

#include <cmath>
#include <string>

#include "kernels/rows_support.h"
#include "kernels/scans/wkv4_reference.h"

namespace halflife::kernels::test {

struct WkvCase {
  int64_t seq_len, dim;
  bool documents = false, initial = false;
  double key_scale = 1;
};

inline std::string Name(const WkvCase& c) {
  return "T " + std::to_string(c.seq_len) + ", D " + std::to_string(c.dim) +
         (c.documents ? ", documents" : "") + (c.initial ? ", initial state" : "") + ", keys of " +
         std::to_string(c.key_scale);
}

// Rounds values to T.
template <typename T>
Values Rounded(Values values) {
  return Array<T>(values).values();
}

inline constexpr int64_t kWkvBatch = 2;

// T is the storage type of k, v and dout. The state has the kernels' form.
template <typename T>
struct WkvProblem {
  explicit WkvProblem(const WkvCase& c) : dim(c.dim) {
    const int64_t tokens = kWkvBatch * c.seq_len * c.dim, states = kWkvBatch * c.dim;
    oracle = {.batch = kWkvBatch,
              .seq_len = c.seq_len,
              .dim = c.dim,
              .k = Rounded<T>(Random(tokens, 1, c.key_scale)),
              .v = Rounded<T>(Random(tokens, 2)),
              .dout = Rounded<T>(Random(tokens, 3))};
    // Decays from almost none to those that clear the state within a token, for both kinds of
    // wkv4's recurrence.
    for (int64_t i = 0; i < c.dim; ++i)
      oracle.log_decay.push_back(
          static_cast<float>(-std::exp(-5 + 8.0 * static_cast<double>(i % 7) / 6)));
    oracle.bonus = Rounded<float>(Random(c.dim, 4));
    oracle.starts.assign(c.documents ? kWkvBatch * c.seq_len : 0, 0);
    for (int64_t t = 0; c.documents && t < c.seq_len; ++t)
      oracle.starts[t] = t % 23 == 0, oracle.starts[c.seq_len + t] = t == 3 || t == 4 || t == 140;
    p = Rounded<float>(Random(states, 5)), q = p, o = Rounded<float>(Random(states, 6));
    for (int64_t i = 0; i < states; ++i)
      q[i] = i % 5 == 4 ? 0 : std::abs(q[i]) + 0.5F, p[i] *= i % 5 == 4 ? 0 : 1;
    dp = Rounded<float>(Random(states, 7)), dq = Rounded<float>(Random(states, 8));
    if (!c.initial) return;
    for (int64_t i = 0; i < states; ++i) {
      oracle.initial.numerator.push_back(p[i] * std::exp(o[i]));
      oracle.initial.denominator.push_back(q[i] * std::exp(o[i]));
    }
  }

  // Returns the oracle's results for a loss that also reads the final state, at the log scale that
  // a kernel returned.
  WkvReferenceResult Solve(const Values& final_log_scale) {
    oracle.dfinal = {dp, dq};
    for (size_t i = 0; i < dp.size(); ++i) {
      oracle.dfinal.numerator[i] *= std::exp(-final_log_scale[i]);
      oracle.dfinal.denominator[i] *= std::exp(-final_log_scale[i]);
    }
    return WkvReference(oracle);
  }

  int64_t dim;
  WkvReferenceProblem oracle;
  Values p, q, o;  // The initial state. Every fifth channel has seen no token.
  Values dp, dq;   // Gradients of the final state.
};

// The results of a kernel.
struct WkvGot {
  Values out, p, q, o, dk, dv, dlog_decay, dbonus, dp, dq;
};

// Compares a kernel with the oracle. `fp32` allows for the rounding errors of a weight: a factor
// e^w with an error of 2^-25 per token over about 150 tokens of the slowest decay, exponents of up
// to a few times the largest key, and sums over as many tokens for the gradients of decay and
// bonus.
template <typename T>
void ExpectOracle(WkvProblem<T>& problem, const WkvGot& got, bool initial, double fp32) {
  const WkvReferenceResult want = problem.Solve(got.o);
  ExpectClose<T>("out", got.out, want.out, fp32);
  Values averages, want_averages, logs, want_logs;
  for (size_t i = 0; i < got.p.size(); ++i) {
    averages.push_back(got.p[i] / got.q[i]);
    want_averages.push_back(want.final.numerator[i] / want.final.denominator[i]);
    logs.push_back(std::log(got.q[i]) + got.o[i]);
    want_logs.push_back(std::log(want.final.denominator[i]));
  }
  ExpectClose<float>("final average", averages, want_averages, fp32);
  ExpectClose<float>("final log denominator", logs, want_logs, fp32);
  ExpectClose<T>("dk", got.dk, want.dk, fp32);
  ExpectClose<T>("dv", got.dv, want.dv, fp32);
  ExpectClose<float>("dlog_decay", got.dlog_decay, want.dlog_decay, 4 * fp32);
  ExpectClose<float>("dbonus", got.dbonus, want.dbonus, 4 * fp32);
  if (!initial) return;
  Values dp, dq;
  for (size_t i = 0; i < got.dp.size(); ++i) {
    const bool seen = problem.q[i] != 0;  // An empty state has no gradient.
    dp.push_back(seen ? want.dinitial.numerator[i] * std::exp(problem.o[i]) : 0);
    dq.push_back(seen ? want.dinitial.denominator[i] * std::exp(problem.o[i]) : 0);
  }
  ExpectClose<float>("dnumerator", got.dp, dp, fp32);
  ExpectClose<float>("ddenominator", got.dq, dq, fp32);
}

// Covers lengths around tiles of 16 tokens and a GPU's segments of 128; channels around blocks of
// 64; large keys of both signs.
inline std::vector<WkvCase> WkvCases() {
  std::vector<WkvCase> cases;
  for (const int64_t seq_len : {1, 2, 15, 16, 17, 70})
    for (const bool rest : {false, true}) cases.push_back({seq_len, 7, rest, rest});
  for (const int64_t dim : {1, 63, 64, 130}) cases.push_back({19, dim, true, true});
  for (const bool documents : {false, true}) {
    cases.push_back({300, 7, documents, true});
    cases.push_back({300, 7, documents, false});
    cases.push_back({200, 7, documents, true, /*key_scale=*/25});
  }
  return cases;
}
constexpr double WkvTolerance(const WkvCase& c) { return c.key_scale > 1 ? 4e-5 : 1e-5; }

}  // namespace halflife::kernels::test
