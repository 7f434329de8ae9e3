#include "kernels/decay_attention/reference.h"

#include <cmath>

#include "core/error.h"

namespace halflife::kernels {
namespace {

struct Walker {
  const DecayReferenceProblem& problem;
  const int64_t T = problem.seq_len, H = problem.num_heads, K = problem.head_dim_k,
                V = problem.head_dim_v;

  int64_t Key(int64_t b, int64_t t, int64_t h) const { return ((b * T + t) * H + h) * K; }
  int64_t Value(int64_t b, int64_t t, int64_t h) const { return ((b * T + t) * H + h) * V; }
  int64_t State(int64_t b, int64_t h) const { return (b * H + h) * K * V; }
  bool Starts(int64_t b, int64_t t) const {
    return !problem.starts.empty() && problem.starts[b * T + t] != 0;
  }
  double Decay(int64_t b, int64_t t, int64_t h, int64_t c) const {
    return Starts(b, t) ? 0.0 : std::exp(problem.log_decay[Key(b, t, h) + c]);
  }
};

// States before the first and after each token of one head, [T + 1, K, V].
std::vector<double> WalkForward(const Walker& walker, int64_t b, int64_t h,
                                DecayReferenceResult& result) {
  const auto& p = walker.problem;
  const int64_t size = walker.K * walker.V;
  std::vector<double> states((walker.T + 1) * size, 0.0);
  if (!p.initial_state.empty())
    for (int64_t i = 0; i < size; ++i) states[i] = p.initial_state[walker.State(b, h) + i];
  for (int64_t t = 0; t < walker.T; ++t) {
    const double* before = &states[t * size];
    double* after = &states[(t + 1) * size];
    for (int64_t c = 0; c < walker.K; ++c) {
      const double decay = walker.Decay(b, t, h, c);
      const double k = p.k[walker.Key(b, t, h) + c], q = p.q[walker.Key(b, t, h) + c];
      for (int64_t j = 0; j < walker.V; ++j) {
        after[c * walker.V + j] =
            decay * before[c * walker.V + j] + k * p.v[walker.Value(b, t, h) + j];
        result.out[walker.Value(b, t, h) + j] += p.scale * q * after[c * walker.V + j];
      }
    }
  }
  for (int64_t i = 0; i < size; ++i)
    result.final_state[walker.State(b, h) + i] = states[walker.T * size + i];
  return states;
}

// The adjoint state R_t = dL/dS_t runs backwards: R_t = scale q_t^T do_t + exp(g_{t+1}) R_{t+1}.
void WalkBackward(const Walker& walker, int64_t b, int64_t h, const std::vector<double>& states,
                  DecayReferenceResult& result) {
  const auto& p = walker.problem;
  const int64_t size = walker.K * walker.V;
  std::vector<double> adjoint(size, 0.0);
  if (!p.dfinal_state.empty())
    for (int64_t i = 0; i < size; ++i) adjoint[i] = p.dfinal_state[walker.State(b, h) + i];
  for (int64_t t = walker.T - 1; t >= 0; --t) {
    const double* before = &states[t * size];
    const double* after = &states[(t + 1) * size];
    for (int64_t c = 0; c < walker.K; ++c) {
      const int64_t key = walker.Key(b, t, h) + c;
      const double decay = walker.Decay(b, t, h, c);
      double ddecay = 0;
      for (int64_t j = 0; j < walker.V; ++j) {
        const int64_t i = c * walker.V + j, value = walker.Value(b, t, h) + j;
        const double dout = p.dout[value];
        result.dq[key] += p.scale * after[i] * dout;
        adjoint[i] += p.scale * p.q[key] * dout;
        result.dk[key] += adjoint[i] * p.v[value];
        result.dv[value] += adjoint[i] * p.k[key];
        ddecay += adjoint[i] * before[i];
        adjoint[i] *= decay;
      }
      result.dlog_decay[key] = decay * ddecay;
    }
  }
  for (int64_t i = 0; i < size; ++i) result.dinitial_state[walker.State(b, h) + i] = adjoint[i];
}

}  // namespace

DecayReferenceResult DecayReference(const DecayReferenceProblem& problem) {
  const Walker walker = {problem};
  const size_t keys = problem.batch * walker.T * walker.H * walker.K;
  const size_t values = problem.batch * walker.T * walker.H * walker.V;
  const size_t states = problem.batch * walker.H * walker.K * walker.V;
  HL_CHECK(problem.q.size() == keys && problem.k.size() == keys && problem.v.size() == values &&
               problem.log_decay.size() == keys,
           "decay reference: sizes of q, k, v, log_decay do not match the shape");
  DecayReferenceResult result;
  result.out.assign(values, 0.0);
  result.final_state.assign(states, 0.0);
  const bool backward = !problem.dout.empty();
  if (backward) {
    result.dq.assign(keys, 0.0);
    result.dk.assign(keys, 0.0);
    result.dv.assign(values, 0.0);
    result.dlog_decay.assign(keys, 0.0);
    result.dinitial_state.assign(states, 0.0);
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < walker.H; ++h) {
      const std::vector<double> head_states = WalkForward(walker, b, h, result);
      if (backward) WalkBackward(walker, b, h, head_states, result);
    }
  }
  return result;
}

}  // namespace halflife::kernels
