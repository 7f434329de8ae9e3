#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
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
  HL_CHECK_AS(ExitCode::kUsage,
              std::isfinite(config_.repetition_penalty) && config_.repetition_penalty > 0,
              "repetition-penalty is ", config_.repetition_penalty,
              ". Use 1 (off) or a number above 1, for example 1.1.");
}

namespace {

bool HasPenalty(const SamplerConfig& config) {
  return config.repetition_penalty != 1 || config.frequency_penalty != 0 ||
         config.presence_penalty != 0;
}

// Returns the logits with the repetition penalty applied once to each distinct token of the text,
// and the other two to the tokens after the prompt.
std::vector<float> Penalised(std::span<const float> logits, std::span<const int32_t> text,
                             size_t num_prompt, const SamplerConfig& config) {
  std::unordered_map<int32_t, int> times_generated;  // 0: only in the prompt
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] >= 0 && text[i] < std::ssize(logits))
      times_generated[text[i]] += i >= num_prompt ? 1 : 0;
  std::vector<float> result(logits.begin(), logits.end());
  for (const auto& [id, times] : times_generated) {
    double logit = logits[id];
    logit = logit > 0 ? logit / config.repetition_penalty : logit * config.repetition_penalty;
    logit -= times * config.frequency_penalty;
    if (times > 0) logit -= config.presence_penalty;
    result[id] = static_cast<float>(logit);
  }
  return result;
}

}  // namespace

int32_t Sampler::Sample(std::span<const float> logits, uint64_t position,
                        std::span<const int32_t> text, size_t num_prompt) const {
  for (size_t i = 0; i < logits.size(); ++i) {
    HL_CHECK_AS(ExitCode::kNonFinite, std::isfinite(logits[i]), "the logit of token ", i,
                " at position ", position, " is ", logits[i]);
  }
  std::vector<float> penalised;
  if (HasPenalty(config_) && !text.empty()) {
    penalised = Penalised(logits, text, num_prompt, config_);
    logits = penalised;
  }
  if (config_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Breaks ties by token id, so that the order is unique.
  const auto more_likely = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (config_.top_k > 0 && static_cast<size_t>(config_.top_k) < order.size()) {
    std::nth_element(order.begin(), order.begin() + config_.top_k, order.end(), more_likely);
    order.resize(config_.top_k);
  }
  // Sorts only as many of the most likely tokens as the draw reads.
  size_t sorted = 0;
  const double most = logits[*std::min_element(order.begin(), order.end(), more_likely)];
  const auto weight = [&](int32_t id) {
    return std::exp((logits[id] - most) / config_.temperature);
  };
  const auto id_at = [&](size_t rank) {
    if (rank == sorted) {
      sorted = std::min(order.size(), std::max<size_t>(256, 4 * sorted));
      std::partial_sort(order.begin() + static_cast<std::ptrdiff_t>(rank),
                        order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                        more_likely);
    }
    return order[rank];
  };
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  size_t kept = order.size();
  double mass = total;
  if (config_.top_p < 1) {
    for (kept = 0, mass = 0; kept < order.size() && (kept == 0 || mass < config_.top_p * total);)
      mass += weight(id_at(kept++));
  }

  const RandomKey key = MakeRandomKey(config_.seed, RandomPurpose::kSampling, 0);
  const RandomCounter draw = Draw(key, position, 0, 0);
  const double target = ToUniform(draw.x[0], draw.x[1]) * mass;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weight(id_at(i));
    if (target < sum) return order[i];
  }
  return order[kept - 1];
}

}  // namespace halflife::infer
