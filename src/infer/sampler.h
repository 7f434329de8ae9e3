// From logits to the next token: temperature, top-k, top-p. Every draw is a function of (seed,
// position) alone.
//
//   const Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 1});
//   const int32_t next = sampler.Sample(logits, position);
#pragma once

#include <cstdint>
#include <span>

namespace halflife::infer {

struct SamplerConfig {
  double temperature = 1;  // 0: the most likely token
  int top_k = 0;           // keep the k most likely; 0: all
  double top_p = 1;        // keep the smallest set whose probability reaches p
  uint64_t seed = 1;
};

class Sampler {
 public:
  // Error kUsage for values out of range.
  explicit Sampler(const SamplerConfig& config);
  // logits: [vocab] fp32, finite (else Error kNonFinite).
  int32_t Sample(std::span<const float> logits, uint64_t position) const;

 private:
  SamplerConfig config_;
};

}  // namespace halflife::infer
