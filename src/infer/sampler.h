// Samples the next token from logits: temperature, top-k, top-p. Every draw is a function of (seed,
// position).
//
//   const Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 1});
//   const int32_t next = sampler.Sample(logits, position);
#pragma once

#include <cstdint>
#include <span>

namespace halflife::infer {

struct SamplerConfig {
  double temperature = 1;  // 0: always the most likely token.
  int top_k = 0;           // Keeps the k most likely tokens. 0: all.
  double top_p = 1;        // Keeps the smallest set of tokens whose probability reaches p.
  uint64_t seed = 1;
};

class Sampler {
 public:
  // Throws kUsage for values that are out of range.
  explicit Sampler(const SamplerConfig& config);
  // Samples from logits [vocab] fp32. Throws kNonFinite if a logit is not finite.
  int32_t Sample(std::span<const float> logits, uint64_t position) const;

 private:
  SamplerConfig config_;
};

}  // namespace halflife::infer
