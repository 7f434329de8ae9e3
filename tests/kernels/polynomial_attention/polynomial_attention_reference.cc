#include "kernels/polynomial_attention/polynomial_attention_reference.h"

#include <cstddef>

#include "core/error.h"

namespace halflife::kernels {
namespace {

// One head of one row.
class Head {
 public:
  Head(const PolynomialReferenceProblem& problem, int64_t b, int64_t h,
       PolynomialReferenceResult& result)
      : p_(problem),
        r_(result),
        b_(b),
        h_(h),
        layout_(static_cast<int>(problem.head_dim), problem.weights),
        w_(ReferenceWeights(layout_, QueryWeights(problem.weights, problem.scale))) {}

  void Forward() {
    for (int64_t t = 0; t < p_.seq_len; ++t) {
      double* n = &r_.out[Value(t)];
      double& z = r_.norm[Token(t)];
      for (int64_t s = First(t); s <= t; ++s) {
        const double weight = Kappa(Score(t, s));
        for (int64_t j = 0; j < V(); ++j) n[j] += weight * p_.v[Value(s) + j];
        z += weight;
      }
      if (HearsInitial(t)) ReadInitial(t, n, z);
      if (!p_.normalise) continue;
      for (int64_t j = 0; j < V(); ++j) n[j] /= z + p_.norm_eps;
    }
    FinalState();
  }

  void Backward() {
    for (int64_t t = 0; t < p_.seq_len; ++t) {
      std::vector<double> dn(&p_.dout[Value(t)], &p_.dout[Value(t)] + V());
      double dz = 0;
      if (p_.normalise) {
        const double denominator = r_.norm[Token(t)] + p_.norm_eps;
        for (int64_t j = 0; j < V(); ++j) {
          dz -= dn[j] * r_.out[Value(t) + j] / denominator;
          dn[j] /= denominator;
        }
      }
      for (int64_t s = First(t); s <= t; ++s) PairGradient(t, s, dn, dz);
      if (HearsInitial(t)) InitialGradient(t, dn, dz);
    }
    FinalStateGradient();
  }

 private:
  int64_t d() const { return p_.head_dim; }
  int64_t V() const { return p_.head_dim_v; }
  int64_t Token(int64_t t) const { return (b_ * p_.seq_len + t) * p_.num_heads + h_; }
  int64_t Key(int64_t t) const { return Token(t) * d(); }
  int64_t Value(int64_t t) const { return Token(t) * V(); }
  int64_t Norm(int64_t f) const { return (b_ * p_.num_heads + h_) * layout_.count + f; }
  bool Starts(int64_t t) const { return !p_.starts.empty() && p_.starts[b_ * p_.seq_len + t] != 0; }
  int64_t First(int64_t t) const {
    while (t > 0 && !Starts(t)) --t;
    return t;
  }
  bool HearsInitial(int64_t t) const { return First(t) == 0 && !Starts(0); }
  double Score(int64_t t, int64_t s) const {
    double dot = 0;
    for (int64_t a = 0; a < d(); ++a) dot += p_.q[Key(t) + a] * p_.k[Key(s) + a];
    return p_.scale * dot;
  }
  double Kappa(double s) const { return p_.weights.a0 + p_.weights.a1 * s + p_.weights.a2 * s * s; }

  void ReadInitial(int64_t t, double* n, double& z) const {
    const std::vector<double> psi = ReferenceFeatures(layout_, &p_.q[Key(t)]);
    for (int64_t f = 0; f < layout_.count; ++f) {
      for (int64_t j = 0; j < V() && !p_.initial_state.empty(); ++j)
        n[j] += w_[f] * psi[f] * p_.initial_state[Norm(f) * V() + j];
      if (!p_.initial_norm.empty()) z += w_[f] * psi[f] * p_.initial_norm[Norm(f)];
    }
  }
  void FinalState() {
    const int64_t last = p_.seq_len - 1, first = p_.seq_len == 0 ? 0 : First(last);
    const bool carried = p_.seq_len == 0 || HearsInitial(last);
    for (int64_t f = 0; f < layout_.count && carried; ++f) {
      for (int64_t j = 0; j < V() && !p_.initial_state.empty(); ++j)
        r_.final_state[Norm(f) * V() + j] = p_.initial_state[Norm(f) * V() + j];
      if (!p_.initial_norm.empty()) r_.final_norm[Norm(f)] = p_.initial_norm[Norm(f)];
    }
    for (int64_t t = first; t < p_.seq_len; ++t) {
      const std::vector<double> psi = ReferenceFeatures(layout_, &p_.k[Key(t)]);
      for (int64_t f = 0; f < layout_.count; ++f) {
        for (int64_t j = 0; j < V(); ++j)
          r_.final_state[Norm(f) * V() + j] += psi[f] * p_.v[Value(t) + j];
        r_.final_norm[Norm(f)] += psi[f];
      }
    }
  }

  void PairGradient(int64_t t, int64_t s, const std::vector<double>& dn, double dz) {
    const double score = Score(t, s);
    double dkappa = dz;
    for (int64_t j = 0; j < V(); ++j) {
      dkappa += dn[j] * p_.v[Value(s) + j];
      r_.dv[Value(s) + j] += Kappa(score) * dn[j];
    }
    const double ddot = p_.scale * (p_.weights.a1 + 2 * p_.weights.a2 * score) * dkappa;
    for (int64_t a = 0; a < d(); ++a) {
      r_.dq[Key(t) + a] += ddot * p_.k[Key(s) + a];
      r_.dk[Key(s) + a] += ddot * p_.q[Key(t) + a];
    }
  }
  void InitialGradient(int64_t t, const std::vector<double>& dn, double dz) {
    const std::vector<double> psi = ReferenceFeatures(layout_, &p_.q[Key(t)]);
    std::vector<double> dpsi(layout_.count, 0.0);
    for (int64_t f = 0; f < layout_.count; ++f) {
      for (int64_t j = 0; j < V(); ++j) {
        r_.dinitial_state[Norm(f) * V() + j] += w_[f] * psi[f] * dn[j];
        if (!p_.initial_state.empty())
          dpsi[f] += w_[f] * p_.initial_state[Norm(f) * V() + j] * dn[j];
      }
      r_.dinitial_norm[Norm(f)] += w_[f] * psi[f] * dz;
      if (!p_.initial_norm.empty()) dpsi[f] += w_[f] * p_.initial_norm[Norm(f)] * dz;
    }
    AddThroughFeatures(&p_.q[Key(t)], dpsi, &r_.dq[Key(t)]);
  }
  void FinalStateGradient() {
    const auto dstate = [&](int64_t f, int64_t j) {
      return p_.dfinal_state.empty() ? 0.0 : p_.dfinal_state[Norm(f) * V() + j];
    };
    const auto dnorm = [&](int64_t f) {
      return p_.dfinal_norm.empty() ? 0.0 : p_.dfinal_norm[Norm(f)];
    };
    const int64_t last = p_.seq_len - 1, first = p_.seq_len == 0 ? 0 : First(last);
    for (int64_t t = first; t < p_.seq_len; ++t) {
      const std::vector<double> psi = ReferenceFeatures(layout_, &p_.k[Key(t)]);
      std::vector<double> dpsi(layout_.count, 0.0);
      for (int64_t f = 0; f < layout_.count; ++f) {
        for (int64_t j = 0; j < V(); ++j) {
          dpsi[f] += dstate(f, j) * p_.v[Value(t) + j];
          r_.dv[Value(t) + j] += psi[f] * dstate(f, j);
        }
        dpsi[f] += dnorm(f);
      }
      AddThroughFeatures(&p_.k[Key(t)], dpsi, &r_.dk[Key(t)]);
    }
    if (p_.seq_len > 0 && !HearsInitial(last)) return;
    for (int64_t f = 0; f < layout_.count; ++f) {
      for (int64_t j = 0; j < V(); ++j) r_.dinitial_state[Norm(f) * V() + j] += dstate(f, j);
      r_.dinitial_norm[Norm(f)] += dnorm(f);
    }
  }
  void AddThroughFeatures(const double* x, const std::vector<double>& dpsi, double* dx) const {
    const std::vector<double> own = ReferenceFeaturesBackward(layout_, x, dpsi.data());
    for (int64_t a = 0; a < d(); ++a) dx[a] += own[a];
  }

  const PolynomialReferenceProblem& p_;
  PolynomialReferenceResult& r_;
  const int64_t b_, h_;
  const FeatureLayout layout_;
  const std::vector<double> w_;
};

}  // namespace

std::vector<double> ReferenceFeatures(const FeatureLayout& layout, const double* x) {
  std::vector<double> psi(layout.count);
  if (layout.has0) psi[0] = 1;
  for (int a = 0; a < layout.dim && layout.has1; ++a) psi[layout.order1 + a] = x[a];
  for (int a = 0; a < layout.dim && layout.has2; ++a)
    for (int b = a; b < layout.dim; ++b) psi[layout.Pair(a, b)] = x[a] * x[b];
  return psi;
}

std::vector<double> ReferenceFeaturesBackward(const FeatureLayout& layout, const double* x,
                                              const double* dpsi) {
  std::vector<double> dx(layout.dim, 0.0);
  for (int a = 0; a < layout.dim; ++a) {
    if (layout.has1) dx[a] += dpsi[layout.order1 + a];
    for (int b = a; b < layout.dim && layout.has2; ++b) {
      dx[a] += dpsi[layout.Pair(a, b)] * x[b];
      dx[b] += dpsi[layout.Pair(a, b)] * x[a];
    }
  }
  return dx;
}

std::vector<double> ReferenceWeights(const FeatureLayout& layout, const FeatureWeights& weights) {
  std::vector<double> w(layout.count);
  if (layout.has0) w[0] = weights.order0;
  for (int a = 0; a < layout.dim && layout.has1; ++a) w[layout.order1 + a] = weights.order1;
  for (int a = 0; a < layout.dim && layout.has2; ++a)
    for (int b = a; b < layout.dim; ++b)
      w[layout.Pair(a, b)] = a == b ? weights.square : weights.pair;
  return w;
}

PolynomialReferenceResult PolynomialReference(const PolynomialReferenceProblem& problem) {
  const size_t tokens = problem.batch * problem.seq_len * problem.num_heads;
  const size_t keys = tokens * problem.head_dim, values = tokens * problem.head_dim_v;
  const FeatureLayout layout(static_cast<int>(problem.head_dim), problem.weights);
  const size_t norms = problem.batch * problem.num_heads * layout.count;
  const size_t states = norms * problem.head_dim_v;
  HL_CHECK(problem.q.size() == keys && problem.k.size() == keys && problem.v.size() == values,
           "polynomial reference: sizes of q, k, v do not match the shape");
  PolynomialReferenceResult result;
  result.out.assign(values, 0.0);
  result.norm.assign(tokens, 0.0);
  result.final_state.assign(states, 0.0);
  result.final_norm.assign(norms, 0.0);
  const bool backward = !problem.dout.empty();
  if (backward) {
    result.dq.assign(keys, 0.0);
    result.dk.assign(keys, 0.0);
    result.dv.assign(values, 0.0);
    result.dinitial_state.assign(states, 0.0);
    result.dinitial_norm.assign(norms, 0.0);
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.num_heads; ++h) {
      Head head(problem, b, h, result);
      head.Forward();
      if (backward) head.Backward();
    }
  }
  return result;
}

}  // namespace halflife::kernels
