// Decodes a model token by token (one token per row and step) on its recurrent state.
//
// If the state has a constant size, every step does the same work on tensors at fixed addresses. A
// GPU then records a step once and replays it as a graph (ops/torch/device_graph.h). This
// replaces about twenty launches per layer, which take longer than the computation. Results are
// bit-identical to those of LanguageModel::Step.
//
//   Decoder decoder(model, std::move(state));    // the state after prefill
//   const at::Tensor logits = decoder.Step(tokens);
#pragma once

#include <ATen/core/Tensor.h>

#include "infer/config.h"
#include "model/language_model.h"
#include "ops/torch/device_graph.h"

namespace halflife::infer {

class Decoder {
 public:
  // Borrows `model`.
  Decoder(const model::LanguageModel& model, model::ModelState state,
          const DecoderConfig& config = {});

  // Decodes one token per row: tokens [B] int64, on any device -> logits [B, vocab] fp32. The next
  // step may overwrite the logits. Throws kUsage beyond the model's positions.
  at::Tensor Step(const at::Tensor& tokens);

  // True if steps are recorded: on a GPU, for a model whose state has a constant size.
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

}  // namespace halflife::infer
