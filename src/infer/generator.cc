#include "infer/generator.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace halflife::infer {

Decoder::Decoder(const model::LanguageModel& model, model::ModelState state,
                 const DecoderConfig& config)
    : model_(model),
      state_(std::move(state)),
      use_graph_(config.use_graph && ops::DeviceGraph::IsOn(model.device()) &&
                 model.constant_state() && !model.awaits_layers()) {}

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

namespace {

// Processes the prompt in pieces and returns the logits after its last token, [1, vocab].
at::Tensor Prefill(const model::LanguageModel& model, std::span<const int32_t> prompt,
                   int64_t chunk, model::ModelState& state) {
  at::Tensor logits;
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const auto length = static_cast<int64_t>(std::min<size_t>(chunk, prompt.size() - begin));
    const at::Tensor tokens =
        at::from_blob(const_cast<int32_t*>(prompt.data() + begin), {1, length}, at::kInt)
            .to(model.device(), at::kLong);
    const auto slice =
        model::SequenceSlice::Contiguous(1, length, static_cast<int64_t>(begin), model.device());
    const at::Tensor hidden = model.Hidden(tokens, {.slice = &slice}, &state);
    logits = model.Logits(hidden.select(1, length - 1));
  }
  return logits;
}

}  // namespace

void RequireNextTokens(const model::LanguageModel& model) {
  HL_CHECK_AS(ExitCode::kUsage, model.objective().predicts_next_token(),
              "the model's objective is ", model.config().objective.name(),
              ", which cannot generate text. Use a model with the objective next_token.");
}

void RequirePrompt(const model::LanguageModel& model, std::span<const int32_t> prompt) {
  HL_CHECK_AS(ExitCode::kUsage, !prompt.empty(),
              "the prompt is empty. Give at least one character or token.");
  for (const int32_t id : prompt) {
    HL_CHECK_AS(ExitCode::kUsage, id >= 0 && id < model.config().vocab_size, "prompt token ", id,
                " is outside the model's vocabulary of ", model.config().vocab_size,
                ". Use ids of 0 to ", model.config().vocab_size - 1, ".");
  }
  const int64_t limit = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, limit == 0 || std::ssize(prompt) <= limit, "the prompt has ",
              prompt.size(), " tokens, too many for ", model.LimitOfPositions(), ". Use at most ",
              limit, ".");
}

GenerateStats Generate(const model::LanguageModel& model, std::span<const int32_t> prompt,
                       const GenerateConfig& config, const std::function<bool(int32_t)>& on_token) {
  const c10::InferenceMode inference;
  RequireNextTokens(model);
  RequirePrompt(model, prompt);
  const Sampler sampler(config.sampler);
  GenerateStats stats{.prompt_tokens = static_cast<int64_t>(prompt.size())};
  Stopwatch watch;
  const int64_t limit = model.max_positions();
  model::ModelState state = model.EmptyState(1);
  at::Tensor logits = Prefill(model, prompt, config.prefill_chunk, state);
  stats.prefill_seconds = watch.Lap();
  Decoder decoder(model, std::move(state), config.decoder);
  std::vector<int32_t> text(prompt.begin(), prompt.end());

  while (stats.new_tokens < config.max_tokens) {
    const at::Tensor row = logits.cpu().contiguous();
    const int64_t vocab =
        config.vocab_size > 0 ? std::min(config.vocab_size, row.numel()) : row.numel();
    const int32_t next =
        sampler.Sample({row.const_data_ptr<float>(), static_cast<size_t>(vocab)},
                       static_cast<uint64_t>(decoder.num_tokens()), text, prompt.size());
    stats.reached_eos = next == config.eos_id;
    if (stats.reached_eos) break;
    text.push_back(next);
    ++stats.new_tokens;
    if (!on_token(next) || stats.new_tokens == config.max_tokens) break;
    // The last token of a text is never fed to the model, so it needs no position.
    stats.reached_limit = decoder.num_tokens() == limit;
    if (stats.reached_limit) break;
    logits = decoder.Step(
        at::full({1}, static_cast<int64_t>(next), at::dtype(at::kLong).device(model.device())));
  }
  stats.decode_seconds = watch.Seconds();
  stats.state_bytes = decoder.state().bytes();
  return stats;
}

}  // namespace halflife::infer
