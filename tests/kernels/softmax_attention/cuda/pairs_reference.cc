#include "kernels/softmax_attention/cuda/pairs_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace halflife::kernels::test {
namespace {

// A query of one head and its visible keys.
struct Row {
  const PairsProblem& p;
  int b, t, h;
  std::vector<int> keys;
  std::vector<double> weights, slopes;  // Per key; slopes: dP / dS of a squared ReLU.
  double log_sum = -std::numeric_limits<double>::infinity();

  size_t token() const { return size_t(b) * p.num_queries + t; }
  size_t query() const { return token() * p.heads + h; }
  size_t key(int s) const {
    return (size_t(b) * p.num_keys() + s) * p.kv_heads + h / (p.heads / p.kv_heads);
  }
  size_t BiasPlace(int s) const { return p.bias_zero - (p.num_past + t - s); }

  double Score(int s) const {
    double score = 0;
    for (int c = 0; c < p.dim; ++c) score += p.q[query() * p.dim + c] * p.k[key(s) * p.dim + c];
    score *= p.scale;
    if (p.bias.empty()) return score;
    return score + p.bias[h * p.bias_stride + BiasPlace(s)] * BiasScale();
  }
  // Returns the dropout factor of a key's weight.
  double Kept(int s) const {
    if (p.dropout == 0) return 1;
    const uint64_t sample = p.samples[b] + (static_cast<uint64_t>(h) << 48);
    const RandomCounter words = Draw(p.key, sample, p.num_past + t, s / 4);
    return ToUniform(words.x[s % 4]) < p.dropout ? 0 : 1 / (1 - p.dropout);
  }
  double BiasScale() const { return p.bias_scale.empty() ? 1 : p.bias_scale[token()]; }

  Row(const PairsProblem& problem, int row, int query, int head)
      : p(problem), b(row), t(query), h(head) {
    for (int s = 0; s < p.num_keys(); ++s) {
      const bool sink = s >= p.sinks[token()] && s < p.sinks[token()] + p.num_sinks;
      if (s < p.end[token()] && (s >= p.first[token()] || sink)) keys.push_back(s);
    }
    std::vector<double> scores;
    for (const int s : keys) scores.push_back(Score(s));
    const auto count = static_cast<double>(keys.size());
    if (p.squared_relu) {
      for (const double score : scores) {
        weights.push_back(std::pow(std::max(0.0, score), 2) / count);
        slopes.push_back(2 * std::max(0.0, score) / count);
      }
      return;
    }
    double sum = 0;
    for (const double score : scores) sum += std::exp(score);
    log_sum = std::log(sum);
    for (const double score : scores) weights.push_back(std::exp(score - log_sum));
  }
};

void AddRow(const Row& row, PairsResult& result) {
  const PairsProblem& p = row.p;
  const double* const dout = &p.dout[row.query() * p.dim_v];
  // dO . O with the stored O.
  double delta = 0, delta_bound = 0;
  for (int j = 0; j < p.dim_v; ++j) {
    const size_t at = row.query() * p.dim_v + j;
    for (size_t i = 0; i < row.keys.size(); ++i) {
      const double v = row.Kept(row.keys[i]) * p.v[row.key(row.keys[i]) * p.dim_v + j];
      result.out.Add(at, row.weights[i] * v, std::abs(row.weights[i] * v));
    }
    result.out.bound[at] += std::abs(result.out.value[at]);
    if (p.squared_relu) continue;
    delta += dout[j] * result.out.value[at];
    delta_bound += std::abs(dout[j]) * result.out.bound[at];
  }
  for (size_t i = 0; i < row.keys.size(); ++i) {
    const size_t key = row.key(row.keys[i]);
    const double kept = row.Kept(row.keys[i]);
    double dweight = 0;
    for (int j = 0; j < p.dim_v; ++j) dweight += kept * dout[j] * p.v[key * p.dim_v + j];
    const double weight = row.weights[i];
    const double dscore = p.squared_relu ? row.slopes[i] * dweight : weight * (dweight - delta);
    const double off = weight * delta_bound, rounded = std::abs(dscore) + off;
    for (int j = 0; j < p.dim_v; ++j)
      result.dv.Add(key * p.dim_v + j, weight * kept * dout[j], std::abs(weight * kept * dout[j]));
    for (int c = 0; c < p.dim; ++c) {
      const size_t of_q = row.query() * p.dim + c, of_k = key * p.dim + c;
      result.dq.Add(of_q, p.scale * dscore * p.k[of_k], rounded * std::abs(p.scale * p.k[of_k]));
      result.dk.Add(of_k, p.scale * dscore * p.q[of_q], rounded * std::abs(p.scale * p.q[of_q]));
    }
    if (p.bias.empty()) continue;
    const size_t place =
        (size_t(row.b) * p.heads + row.h) * p.bias_stride + row.BiasPlace(row.keys[i]);
    result.dbias.Add(place, dscore * row.BiasScale(), off * std::abs(row.BiasScale()));
  }
}

}  // namespace

PairsResult PairsReference(const PairsProblem& p) {
  PairsResult result = {.out = Bounded(p.dout.size()),
                        .dq = Bounded(p.q.size()),
                        .dk = Bounded(p.k.size()),
                        .dv = Bounded(p.v.size()),
                        .dbias = Bounded(p.batch * p.bias.size()),
                        .log_sum = {}};
  for (int b = 0; b < p.batch; ++b)
    for (int t = 0; t < p.num_queries; ++t)
      for (int h = 0; h < p.heads; ++h) {
        const Row row(p, b, t, h);
        result.log_sum.push_back(row.log_sum);
        AddRow(row, result);
      }
  for (Bounded* x : {&result.dq, &result.dk, &result.dv})  // Stored in bf16.
    for (size_t i = 0; i < x->value.size(); ++i) x->bound[i] += std::abs(x->value[i]);
  return result;
}

}  // namespace halflife::kernels::test
