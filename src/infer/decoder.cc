#include "infer/decoder.h"

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace halflife::infer {

Decoder::Decoder(const model::LanguageModel& model, model::ModelState state,
                 const DecoderConfig& config)
    : model_(model),
      state_(std::move(state)),
      use_graph_(config.use_graph && ops::DeviceGraph::IsOn(model.device()) &&
                 model.constant_state()) {}

at::Tensor Decoder::Step(const at::Tensor& tokens) {
  const c10::AutoGradMode no_grad(false);
  if (!model_.constant_state()) return model_.Step(tokens.to(model_.device()), state_);
  model_.RequirePosition(state_.num_tokens);
  const bool first = !tokens_.defined();
  if (first) {
    tokens_ = tokens.to(model_.device(), /*non_blocking=*/false, /*copy=*/true);
    positions_ = at::full({tokens.size(0), 1}, state_.num_tokens, tokens_.options());
  } else {
    tokens_.copy_(tokens);
  }
  // The first step is not recorded: it creates what later steps reuse, such as kernel tables and
  // workspaces of matrix products.
  if (use_graph_ && !first) {
    if (!graph_.is_recorded()) graph_.Record(model_.device(), [&] { Advance(); });
    graph_.Replay();
  } else {
    Advance();
  }
  ++state_.num_tokens;
  return logits_;
}

// Reads and writes tensors at the addresses of the first call, except for the logits.
void Decoder::Advance() {
  std::vector<model::MixerState> after = state_.layers;
  logits_ = model_.StepAt(model::SequenceSlice::OfToken(positions_), tokens_, after);
  for (size_t layer = 0; layer < after.size(); ++layer) {
    for (size_t i = 0; i < after[layer].tensors.size(); ++i) {
      const at::Tensor &to = state_.layers[layer].tensors[i], &from = after[layer].tensors[i];
      if (!from.is_same(to)) to.copy_(from);
    }
  }
  positions_.add_(1);
}

}  // namespace halflife::infer
