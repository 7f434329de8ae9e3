// Generates text from a prompt: prefill in pieces, then one token at a time on the recurrent state.
// For linear mixers, memory and time per token do not grow with the length.
//
//   const GenerateStats stats = Generate(model, ids, {.max_tokens = 200, .sampler = {...}},
//                                        [](int32_t id) { return id != kStop; });
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "model/language_model.h"
#include "ops/torch/device_graph.h"

namespace halflife::infer {

// Decodes a model token by token (one token per row and step) on its recurrent state.
//
// If the state has a constant size, every step does the same work on tensors at fixed addresses. A
// GPU then records a step once and replays it as a graph (ops/torch/device_graph.h). This
// replaces about twenty launches per layer, which take longer than the computation. Results are
// bit-identical to those of LanguageModel::Step.
//
//   Decoder decoder(model, std::move(state));    // the state after prefill
//   const at::Tensor logits = decoder.Step(tokens);
class Decoder {
 public:
  // Borrows `model`.
  Decoder(const model::LanguageModel& model, model::ModelState state,
          const DecoderConfig& config = {});

  // Decodes one token per row: tokens [B] int64, on any device -> logits [B, vocab] fp32. The next
  // step may overwrite the logits. Throws kUsage beyond the model's positions.
  at::Tensor Step(const at::Tensor& tokens);

  // Returns true if steps are recorded: on a GPU, for a model whose state has a constant size and
  // whose parameters are all in memory.
  bool uses_graph() const { return use_graph_; }
  int64_t num_tokens() const { return state_.num_tokens; }
  // The state after the last token.
  const model::ModelState& state() const { return state_; }

 private:
  void Advance();

  const model::LanguageModel& model_;
  model::ModelState state_;
  bool use_graph_;
  // Inputs and outputs of a step with a state of constant size: [B], [B, 1], [B, vocab].
  at::Tensor tokens_, positions_, logits_;
  ops::DeviceGraph graph_;
};

struct GenerateStats {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t state_bytes = 0;  // After the last token.
  // True if the text ended before max_tokens because the model supports no further position.
  bool reached_limit = false;
  bool reached_eos = false;
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
