// Samples the next token from logits: penalties, temperature, top-k, top-p. Every draw is
// a function of (seed, position). Also defines the options of text generation. This header does not
// use LibTorch.
//
//   const Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 1});
//   const int32_t next = sampler.Sample(logits, position);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace halflife::infer {

struct SamplerConfig {
  double temperature = 1;  // 0: always the most likely token.
  int top_k = 0;           // Keeps the k most likely tokens. 0: all.
  double top_p = 1;        // Keeps the smallest set of tokens whose probability reaches p.
  // Makes tokens that the text already contains less likely: divides their positive logits and
  // multiplies their negative ones (Keskar et al., CTRL, 2019). 1: off.
  double repetition_penalty = 1;
  // Subtracted from the logit of a token that was generated c > 0 times: c times the frequency
  // penalty, plus the presence penalty (OpenAI's API reference). The prompt does not count. 0: off.
  double frequency_penalty = 0, presence_penalty = 0;
  uint64_t seed = 1;
};

class Sampler {
 public:
  // Throws kUsage for values that are out of range.
  explicit Sampler(const SamplerConfig& config);
  // Samples from logits [vocab] fp32. Throws kNonFinite if a logit is not finite. `text`: the
  // tokens so far, which begin with the `num_prompt` tokens of the prompt. Only the penalties read
  // them.
  int32_t Sample(std::span<const float> logits, uint64_t position,
                 std::span<const int32_t> text = {}, size_t num_prompt = 0) const;

 private:
  SamplerConfig config_;
};

// Options of Decoder and Generate. They are in this header, because the command line sets them, and
// it does not use LibTorch.
struct DecoderConfig {
  bool use_graph = true;  // On a GPU, if the model's state has a constant size.
};

struct GenerateConfig {
  int64_t max_tokens = 200;
  // Generation stops at this id. -1: it does not stop at any id.
  int32_t eos_id = -1;
  // Samples only ids below this number (a tokenizer's vocabulary), if the model has more. 0: all
  // ids.
  int64_t vocab_size = 0;
  // Tokens of the prompt per forward pass of the prefill, which bounds its memory.
  int64_t prefill_chunk = 2048;
  DecoderConfig decoder;
  SamplerConfig sampler;
};

}  // namespace halflife::infer
