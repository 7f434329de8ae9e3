// Text from a prompt: prefill in pieces, then one token at a time on the recurrent state. For
// linear mixers memory and time per token do not grow with the length.
//
//   const GenerateStats stats = Generate(model, ids, {.max_tokens = 200, .sampler = {...}},
//                                        [](int32_t id) { return id != kStop; });
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/config.h"
#include "model/language_model.h"

namespace halflife::infer {

struct GenerateStats {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t state_bytes = 0;  // after the last token
  // The text ended because the model has no position for another token, before max_tokens.
  bool reached_limit = false;
};

// Error kUsage where the model predicts other things than the next token.
void RequireNextTokens(const model::LanguageModel& model);

// Error kUsage where a prompt is empty, has ids outside the vocabulary, or more tokens than the
// model's max_positions.
void RequirePrompt(const model::LanguageModel& model, std::span<const int32_t> prompt);

// Runs on the model's device. As RequireNextTokens and RequirePrompt. `on_token` gets each new
// token and returns false to stop.
GenerateStats Generate(const model::LanguageModel& model, std::span<const int32_t> prompt,
                       const GenerateConfig& config, const std::function<bool(int32_t)>& on_token);

}  // namespace halflife::infer
