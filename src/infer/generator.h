// Generates text from a prompt: prefill in pieces, then one token at a time on the recurrent state.
// For linear mixers, memory and time per token do not grow with the length.
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
  int64_t state_bytes = 0;  // After the last token.
  // True if the text ended before max_tokens because the model supports no further position.
  bool reached_limit = false;
};

// Throws kUsage if the model does not predict next tokens.
void RequireNextTokens(const model::LanguageModel& model);

// Throws kUsage if the prompt is empty, has ids outside the vocabulary, or has more tokens than the
// model's max_positions.
void RequirePrompt(const model::LanguageModel& model, std::span<const int32_t> prompt);

// Generates text on the model's device. `on_token` receives each new token and returns false to
// stop. Throws the errors of RequireNextTokens and RequirePrompt.
GenerateStats Generate(const model::LanguageModel& model, std::span<const int32_t> prompt,
                       const GenerateConfig& config, const std::function<bool(int32_t)>& on_token);

}  // namespace halflife::infer
