#include "kernels/delta_rule/delta_rule_reference.h"

#include <cmath>

#include "core/error.h"

namespace halflife::kernels {
namespace {

using Values = std::vector<double>;

// One value head of one row of the batch.
struct HeadOfRow {
  const DeltaReferenceProblem& p;
  int64_t b, h;

  int64_t K() const { return p.head_dim_k; }
  int64_t V() const { return p.head_dim_v; }
  int64_t Token(int64_t t) const { return (b * p.seq_len + t) * p.num_value_heads + h; }
  int64_t Key(int64_t t) const {
    const int64_t head = h * p.num_heads / p.num_value_heads;
    return ((b * p.seq_len + t) * p.num_heads + head) * K();
  }
  int64_t State() const { return (b * p.num_value_heads + h) * K() * V(); }
  bool Starts(int64_t t) const { return !p.starts.empty() && p.starts[b * p.seq_len + t] != 0; }
  // Returns the index of channel c's log_decay.
  int64_t Decay(int64_t t, int64_t c) const {
    return p.decay == DeltaDecay::kPerToken ? Token(t) : Token(t) * K() + c;
  }
  // Returns the decay factor of channel c. A document start drops the earlier state, as a decay of
  // 0 does.
  double Factor(int64_t t, int64_t c) const {
    if (Starts(t)) return 0;
    return p.decay == DeltaDecay::kNone ? 1 : std::exp(p.log_decay[Decay(t, c)]);
  }
};

struct TokenHistory {
  Values before, decayed, after;  // [K, V]: S_{t-1}, S~ and S_t
  Values error;                   // [V]: v_t - k_t S~
};

TokenHistory Advance(const HeadOfRow& head, int64_t t, const Values& before) {
  const DeltaReferenceProblem& p = head.p;
  const int64_t K = head.K(), V = head.V();
  TokenHistory token = {before, Values(K * V), Values(K * V), Values(V)};
  const double* k = &p.k[head.Key(t)];
  for (int64_t j = 0; j < V; ++j) token.error[j] = p.v[head.Token(t) * V + j];
  for (int64_t c = 0; c < K; ++c)
    for (int64_t j = 0; j < V; ++j) {
      token.decayed[c * V + j] = head.Factor(t, c) * before[c * V + j];
      token.error[j] -= k[c] * token.decayed[c * V + j];
    }
  for (int64_t c = 0; c < K; ++c)
    for (int64_t j = 0; j < V; ++j)
      token.after[c * V + j] =
          token.decayed[c * V + j] + k[c] * p.beta[head.Token(t)] * token.error[j];
  return token;
}

std::vector<TokenHistory> ScanForward(const HeadOfRow& head, DeltaReferenceResult& result) {
  const DeltaReferenceProblem& p = head.p;
  const int64_t K = head.K(), V = head.V();
  Values state(K * V, 0.0);
  if (!p.initial_state.empty())
    state.assign(&p.initial_state[head.State()], &p.initial_state[head.State()] + K * V);
  std::vector<TokenHistory> history;
  for (int64_t t = 0; t < p.seq_len; ++t) {
    history.push_back(Advance(head, t, state));
    state = history.back().after;
    for (int64_t c = 0; c < K; ++c)
      for (int64_t j = 0; j < V; ++j)
        result.out[head.Token(t) * V + j] += p.scale * p.q[head.Key(t) + c] * state[c * V + j];
    if (p.dout.empty()) history.clear();
  }
  for (int64_t i = 0; i < K * V; ++i) result.final_state[head.State() + i] = state[i];
  return history;
}

// `adjoint` is dL/dS_t without the output of token t, and becomes dL/dS_{t-1}.
void StepBackward(const HeadOfRow& head, int64_t t, const TokenHistory& token, Values& adjoint,
                  DeltaReferenceResult& result) {
  const DeltaReferenceProblem& p = head.p;
  const int64_t K = head.K(), V = head.V(), key = head.Key(t), at = head.Token(t);
  Values du(V, 0.0);
  for (int64_t c = 0; c < K; ++c)
    for (int64_t j = 0; j < V; ++j) {
      const double dout = p.scale * p.dout[at * V + j];
      result.dq[key + c] += dout * token.after[c * V + j];
      adjoint[c * V + j] += dout * p.q[key + c];
      result.dk[key + c] += adjoint[c * V + j] * p.beta[at] * token.error[j];
      du[j] += adjoint[c * V + j] * p.k[key + c];
    }
  for (int64_t j = 0; j < V; ++j) {
    result.dbeta[at] += du[j] * token.error[j];
    result.dv[at * V + j] = p.beta[at] * du[j];
  }
  for (int64_t c = 0; c < K; ++c) {
    const double factor = head.Factor(t, c);
    double dfactor = 0;
    for (int64_t j = 0; j < V; ++j) {
      const double dread = -p.beta[at] * du[j];  // the gradient of k_t S~
      result.dk[key + c] += token.decayed[c * V + j] * dread;
      adjoint[c * V + j] += p.k[key + c] * dread;
      dfactor += adjoint[c * V + j] * token.before[c * V + j];
      adjoint[c * V + j] *= factor;
    }
    if (p.decay != DeltaDecay::kNone) result.dlog_decay[head.Decay(t, c)] += factor * dfactor;
  }
}

void CheckSizes(const DeltaReferenceProblem& p) {
  const size_t tokens = p.batch * p.seq_len * p.num_value_heads;
  const size_t keys = p.batch * p.seq_len * p.num_heads * p.head_dim_k;
  const size_t decays = p.decay == DeltaDecay::kNone       ? 0
                        : p.decay == DeltaDecay::kPerToken ? tokens
                                                           : tokens * p.head_dim_k;
  HL_CHECK(p.q.size() == keys && p.k.size() == keys && p.v.size() == tokens * p.head_dim_v &&
               p.log_decay.size() == decays && p.beta.size() == tokens,
           "delta reference: sizes of q, k, v, log_decay, beta do not match the shape");
}

}  // namespace

DeltaReferenceResult DeltaReference(const DeltaReferenceProblem& problem) {
  CheckSizes(problem);
  const size_t states =
      problem.batch * problem.num_value_heads * problem.head_dim_k * problem.head_dim_v;
  const bool backward = !problem.dout.empty() || !problem.dfinal_state.empty();
  DeltaReferenceProblem p = problem;
  if (backward && p.dout.empty()) p.dout.assign(p.v.size(), 0.0);
  DeltaReferenceResult result;
  result.out.assign(p.v.size(), 0.0);
  result.final_state.assign(states, 0.0);
  if (backward) {
    result.dq.assign(p.q.size(), 0.0);
    result.dk.assign(p.k.size(), 0.0);
    result.dv.assign(p.v.size(), 0.0);
    result.dlog_decay.assign(p.log_decay.size(), 0.0);
    result.dbeta.assign(p.beta.size(), 0.0);
    result.dinitial_state.assign(states, 0.0);
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.num_value_heads; ++h) {
      const HeadOfRow head = {p, b, h};
      const std::vector<TokenHistory> history = ScanForward(head, result);
      if (!backward) continue;
      const int64_t size = p.head_dim_k * p.head_dim_v;
      Values adjoint(size, 0.0);
      if (!p.dfinal_state.empty())
        adjoint.assign(&p.dfinal_state[head.State()], &p.dfinal_state[head.State()] + size);
      for (int64_t t = p.seq_len - 1; t >= 0; --t)
        StepBackward(head, t, history[t], adjoint, result);
      for (int64_t i = 0; i < size; ++i) result.dinitial_state[head.State() + i] = adjoint[i];
    }
  }
  return result;
}

}  // namespace halflife::kernels
