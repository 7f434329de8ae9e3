#include "kernels/scans/wkv4_reference.h"

#include <cmath>

namespace halflife::kernels {
namespace {

// One channel of one sequence.
struct Channel {
  const WkvReferenceProblem& problem;
  int64_t sequence, channel;

  int64_t At(int64_t t) const { return (sequence * problem.seq_len + t) * problem.dim + channel; }
  int64_t OfState() const { return sequence * problem.dim + channel; }
  bool Starts(int64_t t) const {
    return !problem.starts.empty() && problem.starts[sequence * problem.seq_len + t] != 0;
  }
};

// The sums before each token, and those after the last.
struct History {
  std::vector<double> a, b;  // [T + 1]
};

History Forward(const Channel& one, WkvReferenceResult& result) {
  const WkvReferenceProblem& p = one.problem;
  const double decay = std::exp(p.log_decay[one.channel]), bonus = p.bonus[one.channel];
  double a = 0, b = 0;
  if (!p.initial.denominator.empty())
    a = p.initial.numerator[one.OfState()], b = p.initial.denominator[one.OfState()];
  History history;
  for (int64_t t = 0; t < p.seq_len; ++t) {
    if (one.Starts(t)) a = b = 0;
    history.a.push_back(a), history.b.push_back(b);
    const double k = p.k[one.At(t)], v = p.v[one.At(t)], own = std::exp(bonus + k);
    result.out[one.At(t)] = (a + own * v) / (b + own);
    a = decay * a + std::exp(k) * v, b = decay * b + std::exp(k);
  }
  history.a.push_back(a), history.b.push_back(b);
  result.final.numerator[one.OfState()] = a;
  result.final.denominator[one.OfState()] = b;
  return history;
}

void Backward(const Channel& one, const History& history, WkvReferenceResult& result) {
  const WkvReferenceProblem& p = one.problem;
  const double decay = std::exp(p.log_decay[one.channel]), bonus = p.bonus[one.channel];
  double da = 0, db = 0;  // dL/d(state after the token)
  if (!p.dfinal.denominator.empty())
    da = p.dfinal.numerator[one.OfState()], db = p.dfinal.denominator[one.OfState()];
  for (int64_t t = p.seq_len - 1; t >= 0; --t) {
    const int64_t at = one.At(t);
    const double k = p.k[at], v = p.v[at], own = std::exp(bonus + k), key = std::exp(k);
    const double da_out = p.dout[at] / (history.b[t] + own), db_out = -da_out * result.out[at];
    const double slope = own * (da_out * v + db_out);
    result.dk[at] = slope + key * (da * v + db);
    result.dv[at] = own * da_out + key * da;
    result.dbonus[one.channel] += slope;
    result.dlog_decay[one.channel] += decay * (da * history.a[t] + db * history.b[t]);
    da = decay * da + da_out, db = decay * db + db_out;
    if (one.Starts(t)) da = db = 0;
  }
  result.dinitial.numerator[one.OfState()] = da;
  result.dinitial.denominator[one.OfState()] = db;
}

}  // namespace

WkvReferenceResult WkvReference(const WkvReferenceProblem& problem) {
  const int64_t states = problem.batch * problem.dim, tokens = states * problem.seq_len;
  const bool backward = !problem.dout.empty();
  WkvReferenceResult result;
  const auto state = [&] {
    return WkvReferenceState{std::vector<double>(states), std::vector<double>(states)};
  };
  result.out.resize(tokens), result.final = state();
  if (backward) {
    result.dk.resize(tokens), result.dv.resize(tokens);
    result.dlog_decay.resize(problem.dim), result.dbonus.resize(problem.dim);
    result.dinitial = state();
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t c = 0; c < problem.dim; ++c) {
      const Channel one = {problem, b, c};
      const History history = Forward(one, result);
      if (backward) Backward(one, history, result);
    }
  }
  return result;
}

}  // namespace halflife::kernels
