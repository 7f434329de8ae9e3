// One token of each row after another on a model's recurrent state.
//
// Where the state is of constant size a step is the same work each time: its tokens and places are
// tensors that it finds at the same addresses. So a GPU records it once and then starts it whole
// (kernels/torch/device_graph.h), in place of some twenty launches a layer, which take longer than
// what they compute. The numbers are those of LanguageModel::Step, to the bit.
//
//   Decoder decoder(model, std::move(state));    // as prefill left it
//   const at::Tensor logits = decoder.Step(tokens);
#pragma once

#include <ATen/core/Tensor.h>

#include "infer/config.h"
#include "kernels/torch/device_graph.h"
#include "model/language_model.h"

namespace halflife::infer {

class Decoder {
 public:
  // `model` is borrowed.
  Decoder(const model::LanguageModel& model, model::ModelState state,
          const DecoderConfig& config = {});

  // tokens [B] int64, on any device -> logits [B, vocab] fp32, which the next step may write over.
  // Error kUsage beyond the model's positions.
  at::Tensor Step(const at::Tensor& tokens);

  // Whether steps are recorded: on a GPU, of a model whose state is of constant size.
  bool uses_graph() const { return use_graph_; }
  int64_t num_tokens() const { return state_.num_tokens; }
  // After the last token.
  const model::ModelState& state() const { return state_; }

 private:
  void Advance();

  const model::LanguageModel& model_;
  model::ModelState state_;
  bool use_graph_;
  // What a step of constant size reads and leaves: [B], [B, 1], [B, vocab].
  at::Tensor tokens_, positions_, logits_;
  kernels::DeviceGraph graph_;
};

}  // namespace halflife::infer
