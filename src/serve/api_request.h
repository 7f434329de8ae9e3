// The requests of the API as plain values: /v1/completions and /v1/chat/completions in OpenAI's
// form, and /tokenize and /detokenize in vLLM's.
//
//   const ApiCall call = ReadCompletion(body, limits, tokenizer);  // Throws ApiError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "infer/sampler.h"

namespace halflife::serve {

struct ApiLimits {
  int64_t vocab_size = 0;         // The tokenizer's: token ids of prompts are below it.
  int64_t max_prompt_tokens = 0;  // Per prompt.
  int64_t max_new_tokens = 0;     // Per text. Larger requests are refused.
  int64_t max_texts = 128;        // Prompts times n.
  std::string model;              // The name that `model` of a request must have.
};

struct ApiPrompt {
  std::vector<int32_t> ids;
  std::string text;  // For `echo`.
};

struct ApiCall {
  bool is_chat = false;
  std::vector<ApiPrompt> prompts;
  int64_t num_choices = 1;  // `n`: texts per prompt.
  int64_t max_tokens = 16;
  infer::SamplerConfig sampler;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_ids;  // In addition to the tokenizer's eos.
  int top_logprobs = -1;          // -1: no logprobs.
  bool echo = false, stream = false, include_usage = false, ignore_eos = false;

  int64_t num_texts() const { return num_choices * static_cast<int64_t>(prompts.size()); }
};

ApiCall ReadCompletion(const std::string& body, const ApiLimits& limits,
                       const data::Tokenizer& tokenizer);
ApiCall ReadChatCompletion(const std::string& body, const ApiLimits& limits,
                           const data::Tokenizer& tokenizer, const data::ChatTemplate& chat);

}  // namespace halflife::serve
