#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::infer {

Sampler::Sampler(const SamplerConfig& config) : config_(config) {
  HL_CHECK_AS(ExitCode::kUsage, std::isfinite(config_.temperature) && config_.temperature >= 0,
              "temperature is ", config_.temperature,
              ". Use 0 (most likely token) or more, for example 0.8.");
  HL_CHECK_AS(ExitCode::kUsage, config_.top_k >= 0, "top-k is ", config_.top_k,
              ". Use 0 (all tokens) or a count.");
  HL_CHECK_AS(ExitCode::kUsage, config_.top_p > 0 && config_.top_p <= 1, "top-p is ", config_.top_p,
              ". Use a probability in (0, 1].");
}

int32_t Sampler::Sample(std::span<const float> logits, uint64_t position) const {
  for (size_t i = 0; i < logits.size(); ++i) {
    HL_CHECK_AS(ExitCode::kNonFinite, std::isfinite(logits[i]), "the logit of token ", i,
                " at position ", position, " is ", logits[i]);
  }
  if (config_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Breaks ties by token id, so that the order is unique.
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  if (config_.top_k > 0 && static_cast<size_t>(config_.top_k) < order.size()) {
    order.resize(config_.top_k);
  }
  std::vector<double> weights(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[order[i]] - logits[order[0]]) / config_.temperature);
    total += weights[i];
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < order.size() && (kept == 0 || mass < config_.top_p * total))
    mass += weights[kept++];

  const RandomKey key = MakeRandomKey(config_.seed, RandomPurpose::kSampling, 0);
  const RandomCounter draw = Draw(key, position, 0, 0);
  const double target = ToUniform(draw.x[0], draw.x[1]) * mass;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weights[i];
    if (target < sum) return order[i];
  }
  return order[kept - 1];
}

}  // namespace halflife::infer
