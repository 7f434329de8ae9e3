#include "kernels/decay_attention/decay_attention_reference.h"

#include <cmath>

#include "core/error.h"

namespace halflife::kernels {
namespace {

// The normaliser is stored as an additional column of v that is all ones. The state then has W = V
// + 1 columns, the last of which is z; without the normaliser, W = V.
struct Layout {
  const DecayReferenceProblem& problem;
  const int64_t T = problem.seq_len, H = problem.num_heads, K = problem.head_dim_k,
                V = problem.head_dim_v, W = V + (problem.normalised ? 1 : 0);

  int64_t Key(int64_t b, int64_t t, int64_t h) const { return ((b * T + t) * H + h) * K; }
  int64_t Value(int64_t b, int64_t t, int64_t h) const { return ((b * T + t) * H + h) * V; }
  int64_t Token(int64_t b, int64_t t, int64_t h) const { return (b * T + t) * H + h; }
  bool Starts(int64_t b, int64_t t) const {
    return !problem.starts.empty() && problem.starts[b * T + t] != 0;
  }
  double Decay(int64_t b, int64_t t, int64_t h, int64_t c) const {
    return Starts(b, t) ? 0.0 : std::exp(problem.log_decay[Key(b, t, h) + c]);
  }
  double KeyScale(int64_t b, int64_t t, int64_t h) const {
    return problem.key_scale.empty() ? 1.0 : problem.key_scale[Token(b, t, h)];
  }
  double ValueAt(int64_t b, int64_t t, int64_t h, int64_t j) const {
    return j < V ? problem.v[Value(b, t, h) + j] : 1.0;
  }
  // [K, W] of one head from [B, H, K, V] and [B, H, K]. An empty input is zero.
  std::vector<double> Gather(const std::vector<double>& state, const std::vector<double>& norm,
                             int64_t b, int64_t h) const {
    std::vector<double> joined(K * W, 0.0);
    for (int64_t c = 0; c < K; ++c) {
      for (int64_t j = 0; j < V && !state.empty(); ++j)
        joined[c * W + j] = state[((b * H + h) * K + c) * V + j];
      if (problem.normalised && !norm.empty()) joined[c * W + V] = norm[(b * H + h) * K + c];
    }
    return joined;
  }
  void Scatter(const double* joined, int64_t b, int64_t h, std::vector<double>& state,
               std::vector<double>& norm) const {
    for (int64_t c = 0; c < K; ++c) {
      for (int64_t j = 0; j < V; ++j) state[((b * H + h) * K + c) * V + j] = joined[c * W + j];
      if (problem.normalised) norm[(b * H + h) * K + c] = joined[c * W + V];
    }
  }
};

struct HeadHistory {
  std::vector<double> states;  // [T + 1, K, W]: before the first token and after each token
  std::vector<double> read;    // [T, W]: scale q_t S_t, the numerators and then the denominator
};

HeadHistory ScanForward(const Layout& layout, int64_t b, int64_t h, DecayReferenceResult& result) {
  const auto& p = layout.problem;
  const int64_t W = layout.W, size = layout.K * W;
  HeadHistory history = {std::vector<double>((layout.T + 1) * size, 0.0),
                         std::vector<double>(layout.T * W, 0.0)};
  const std::vector<double> initial = layout.Gather(p.initial_state, p.initial_norm, b, h);
  for (int64_t i = 0; i < size; ++i) history.states[i] = initial[i];
  for (int64_t t = 0; t < layout.T; ++t) {
    const double* before = &history.states[t * size];
    double* after = &history.states[(t + 1) * size];
    double* read = &history.read[t * W];
    for (int64_t c = 0; c < layout.K; ++c) {
      const double decay = layout.Decay(b, t, h, c);
      const double k = layout.KeyScale(b, t, h) * p.k[layout.Key(b, t, h) + c];
      const double q = p.scale * p.q[layout.Key(b, t, h) + c];
      for (int64_t j = 0; j < W; ++j) {
        after[c * W + j] = decay * before[c * W + j] + k * layout.ValueAt(b, t, h, j);
        read[j] += q * after[c * W + j];
      }
    }
    const double denominator = p.normalised ? read[layout.V] + p.norm_eps : 1.0;
    for (int64_t j = 0; j < layout.V; ++j)
      result.out[layout.Value(b, t, h) + j] = read[j] / denominator;
  }
  layout.Scatter(&history.states[layout.T * size], b, h, result.final_state, result.final_norm);
  return history;
}

// Returns the gradient of the values read from the state at one token, [W]. With the normaliser, it
// follows from the quotient rule.
std::vector<double> ReadGradient(const Layout& layout, const double* read, const double* dout) {
  std::vector<double> dread(dout, dout + layout.V);
  if (!layout.problem.normalised) return dread;
  const double denominator = read[layout.V] + layout.problem.norm_eps;
  double ddenominator = 0;
  for (int64_t j = 0; j < layout.V; ++j) {
    ddenominator -= dout[j] * read[j] / (denominator * denominator);
    dread[j] /= denominator;
  }
  dread.push_back(ddenominator);
  return dread;
}

// Scans in reverse with the adjoint state R_t = dL/dS_t: R_t = scale q_t^T do_t + exp(g_{t+1})
// R_{t+1}.
void ScanBackward(const Layout& layout, int64_t b, int64_t h, const HeadHistory& history,
                  DecayReferenceResult& result) {
  const auto& p = layout.problem;
  const int64_t W = layout.W, size = layout.K * W;
  std::vector<double> adjoint = layout.Gather(p.dfinal_state, p.dfinal_norm, b, h);
  for (int64_t t = layout.T - 1; t >= 0; --t) {
    const double* before = &history.states[t * size];
    const double* after = &history.states[(t + 1) * size];
    const std::vector<double> dread =
        ReadGradient(layout, &history.read[t * W], &p.dout[layout.Value(b, t, h)]);
    const double key_scale = layout.KeyScale(b, t, h);
    for (int64_t c = 0; c < layout.K; ++c) {
      const int64_t key = layout.Key(b, t, h) + c;
      const double decay = layout.Decay(b, t, h, c);
      double ddecay = 0;
      for (int64_t j = 0; j < W; ++j) {
        const int64_t i = c * W + j;
        const double v = layout.ValueAt(b, t, h, j);
        result.dq[key] += p.scale * after[i] * dread[j];
        adjoint[i] += p.scale * p.q[key] * dread[j];
        result.dk[key] += adjoint[i] * key_scale * v;
        result.dkey_scale[layout.Token(b, t, h)] += adjoint[i] * p.k[key] * v;
        if (j < layout.V) result.dv[layout.Value(b, t, h) + j] += adjoint[i] * key_scale * p.k[key];
        ddecay += adjoint[i] * before[i];
        adjoint[i] *= decay;
      }
      result.dlog_decay[key] = decay * ddecay;
    }
  }
  layout.Scatter(adjoint.data(), b, h, result.dinitial_state, result.dinitial_norm);
}

}  // namespace

DecayReferenceResult DecayReference(const DecayReferenceProblem& problem) {
  const Layout layout = {problem};
  const size_t tokens = problem.batch * layout.T * layout.H;
  const size_t keys = tokens * layout.K, values = tokens * layout.V;
  const size_t norms = problem.batch * layout.H * layout.K, states = norms * layout.V;
  HL_CHECK(problem.q.size() == keys && problem.k.size() == keys && problem.v.size() == values &&
               problem.log_decay.size() == keys,
           "decay reference: sizes of q, k, v, log_decay do not match the shape");
  DecayReferenceResult result;
  result.out.assign(values, 0.0);
  result.final_state.assign(states, 0.0);
  result.final_norm.assign(problem.normalised ? norms : 0, 0.0);
  const bool backward = !problem.dout.empty();
  if (backward) {
    result.dq.assign(keys, 0.0);
    result.dk.assign(keys, 0.0);
    result.dv.assign(values, 0.0);
    result.dlog_decay.assign(keys, 0.0);
    result.dkey_scale.assign(tokens, 0.0);
    result.dinitial_state.assign(states, 0.0);
    result.dinitial_norm.assign(problem.normalised ? norms : 0, 0.0);
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < layout.H; ++h) {
      const HeadHistory history = ScanForward(layout, b, h, result);
      if (backward) ScanBackward(layout, b, h, history, result);
    }
  }
  return result;
}

}  // namespace halflife::kernels
