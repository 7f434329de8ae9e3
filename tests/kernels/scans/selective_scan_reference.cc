#include "kernels/scans/selective_scan_reference.h"

#include <cmath>

namespace halflife::kernels {
namespace {

// One channel of one sequence.
struct Channel {
  const ScanReferenceProblem& problem;
  int64_t sequence, channel;

  int64_t Token(int64_t t) const { return sequence * problem.seq_len + t; }
  int64_t At(int64_t t) const { return Token(t) * problem.channels + channel; }
  int64_t OfState(int64_t n) const {
    return (sequence * problem.channels + channel) * problem.states + n;
  }
  bool Starts(int64_t t) const { return !problem.starts.empty() && problem.starts[Token(t)] != 0; }
  double RawStep(int64_t t) const { return problem.delta[At(t)] + problem.delta_bias[channel]; }
  double Step(int64_t t) const {
    const double raw = RawStep(t);
    return raw > 0 ? raw + std::log1p(std::exp(-raw)) : std::log1p(std::exp(raw));
  }
  double A(int64_t n) const { return problem.a[channel * problem.states + n]; }
  double B(int64_t t, int64_t n) const { return problem.b[Token(t) * problem.states + n]; }
  double C(int64_t t, int64_t n) const { return problem.c[Token(t) * problem.states + n]; }
};

// The states before each token, after any reset, and those after it: [T, N] each.
struct History {
  std::vector<double> before, after;
};

History Forward(const Channel& one, ScanReferenceResult& result) {
  const ScanReferenceProblem& p = one.problem;
  History history;
  std::vector<double> h(p.states, 0.0);
  for (int64_t n = 0; n < p.states && !p.initial.empty(); ++n) h[n] = p.initial[one.OfState(n)];
  for (int64_t t = 0; t < p.seq_len; ++t) {
    if (one.Starts(t)) h.assign(p.states, 0.0);
    history.before.insert(history.before.end(), h.begin(), h.end());
    const double x = p.x[one.At(t)], step = one.Step(t);
    double y = p.skip[one.channel] * x;
    for (int64_t n = 0; n < p.states; ++n) {
      h[n] = std::exp(step * one.A(n)) * h[n] + step * x * one.B(t, n);
      y += one.C(t, n) * h[n];
    }
    result.y[one.At(t)] = y;
    history.after.insert(history.after.end(), h.begin(), h.end());
  }
  for (int64_t n = 0; n < p.states; ++n) result.final[one.OfState(n)] = h[n];
  return history;
}

void Backward(const Channel& one, const History& history, ScanReferenceResult& result) {
  const ScanReferenceProblem& p = one.problem;
  std::vector<double> later(p.states, 0.0);  // dL/dh from the later tokens
  for (int64_t n = 0; n < p.states && !p.dfinal.empty(); ++n) later[n] = p.dfinal[one.OfState(n)];
  for (int64_t t = p.seq_len - 1; t >= 0; --t) {
    const double x = p.x[one.At(t)], step = one.Step(t), dy = p.dy[one.At(t)];
    double dstep = 0, dinput = 0;  // dinput: gradient of step x
    for (int64_t n = 0; n < p.states; ++n) {
      const double dh = later[n] + dy * one.C(t, n), decay = std::exp(step * one.A(n));
      const double dlog = dh * decay * history.before[t * p.states + n];
      result.dc[one.Token(t) * p.states + n] += dy * history.after[t * p.states + n];
      result.db[one.Token(t) * p.states + n] += dh * step * x;
      result.da[one.channel * p.states + n] += dlog * step;
      dstep += dlog * one.A(n);
      dinput += dh * one.B(t, n);
      later[n] = one.Starts(t) ? 0.0 : dh * decay;
    }
    result.dx[one.At(t)] = dinput * step + p.skip[one.channel] * dy;
    result.dskip[one.channel] += dy * x;
    const double ddelta = (dstep + dinput * x) / (1 + std::exp(-one.RawStep(t)));
    result.ddelta[one.At(t)] = ddelta;
    result.ddelta_bias[one.channel] += ddelta;
  }
  for (int64_t n = 0; n < p.states; ++n) result.dinitial[one.OfState(n)] = later[n];
}

}  // namespace

ScanReferenceResult ScanReference(const ScanReferenceProblem& problem) {
  ScanReferenceResult result;
  result.y.resize(problem.x.size());
  result.final.resize(problem.batch * problem.channels * problem.states);
  const bool backward = !problem.dy.empty();
  if (backward) {
    result.dx = result.ddelta = std::vector<double>(problem.x.size());
    result.ddelta_bias = result.dskip = std::vector<double>(problem.channels);
    result.da.resize(problem.a.size());
    result.db = result.dc = std::vector<double>(problem.b.size());
    result.dinitial.resize(result.final.size());
  }
  for (int64_t s = 0; s < problem.batch; ++s) {
    for (int64_t i = 0; i < problem.channels; ++i) {
      const Channel one = {problem, s, i};
      const History history = Forward(one, result);
      if (backward) Backward(one, history, result);
    }
  }
  return result;
}

}  // namespace halflife::kernels
