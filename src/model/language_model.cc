#include "model/language_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "model/forward_pass.h"
#include "model/vocabulary_layers.h"
#include "ops/cross_entropy/linear_cross_entropy.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {

int64_t ModelState::bytes() const {
  int64_t sum = 0;
  for (const MixerState& layer : layers) sum += layer.bytes();
  return sum;
}

LanguageModel::LanguageModel(const ModelConfig& config) : config_(config) {
  const std::vector<std::string> problems = Problems(config);
  HL_CHECK_AS(ExitCode::kUsage, problems.empty(), Join(problems, "\n"));
  const ModelConfig resolved = Resolved(config);
  objective_ = MakeObjective(config.objective, config.vocab_size);
  const PartContext context = {.sizes = config.sizes(),
                               .parameters = &parameters_,
                               .initializer_range = config.initializer_range,
                               .fan_in_init = config.initializer == "fan_in",
                               .norm_eps = resolved.norm.Has("eps")
                                               ? resolved.norm.Get<double>("eps")
                                               : PartContext().norm_eps};
  auto added = [this, before = int64_t{0}]() mutable {
    return parameters_.num_elements() - std::exchange(before, parameters_.num_elements());
  };
  // A tied table counts as one reader, because autograd adds up the gradients of both uses before
  // it accumulates them.
  embedding_ = std::make_unique<TokenEmbedding>(
      resolved.embedding, context, config.vocab_size,
      config.head.tied ? std::vector<std::string>{"lm_head.weight"} : std::vector<std::string>{});
  positions_ = MakePositions(config.positions, context.Below("positions."));
  if (resolved.embedding.norm)
    embedding_norm_ = MakeNorm(resolved.norm, context.Below("embedding_norm."), config.model_dim);
  count_.embedding = added();
  for (int64_t i = 0; i < config.num_layers; ++i) {
    first_params_.push_back(parameters_.size());
    PartContext of_layer = context.Below(Concat("layers.", i, "."));
    of_layer.layer = i;
    parameters_.BeginLayer();
    of_layer.positions = positions_.get();
    blocks_.push_back(MakeBlock(config.block_of(i), {.part = std::move(of_layer),
                                                     .norm = resolved.norm,
                                                     .mixer = config.mixer_of(i),
                                                     .channel_mixer = config.channel_mixer_of(i)}));
    blocks_.back()->CountParameters(count_);
  }
  added();
  first_params_.push_back(parameters_.size());
  HL_CHECK_AS(ExitCode::kUsage, blocks_.back()->needs_final_norm() || !config.final_norm,
              "the block ", config.block_of(config.num_layers - 1).name(),
              " already ends with a norm. Remove final_norm.");
  if (blocks_.back()->needs_final_norm())
    final_norm_ = MakeNorm(resolved.final_norm ? *resolved.final_norm : resolved.norm,
                           context.Below("norm."), config.model_dim);
  count_.norm += added();
  MakeHead(resolved.head, context);
  count_.head = added();
  HL_CHECK_AS(
      ExitCode::kUsage,
      !positions_->in_attention() ||
          std::ranges::any_of(
              blocks_, [](const auto& block) { return block->mixer().traits().takes_positions; }),
      "positions: ", config.positions.name(),
      " needs an attention layer (softmax or gau), and this model has none. Use positions { none "
      "{} } "
      "or add an attention layer.");
  RequireValues();
  for (size_t i = 0; i < blocks_.size(); ++i)
    HL_CHECK_AS(ExitCode::kUsage,
                !objective_->predicts_next_token() || blocks_[i]->mixer().traits().causal,
                "objective ", config.objective.name(), ": the mixer of layer ", i, ", ",
                config.mixer_of(static_cast<int64_t>(i)).name(),
                ", sees later tokens. Use a causal mixer or the objective masked_token.");
}

LanguageModel::~LanguageModel() = default;

void LanguageModel::RequireValues() const {
  bool published = false;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const MixerTraits traits = blocks_[i]->mixer().traits();
    HL_CHECK_AS(ExitCode::kUsage, published || !traits.reads_values, "rwkv7 in layer ", i,
                " reads the values of rwkv7 in layer 0, but layer 0 publishes none. Use rwkv7 with "
                "value_residual: true in layer 0, or value_residual: false in layer ",
                i, ".");
    published |= traits.publishes_values;
  }
}

void LanguageModel::MakeHead(const HeadOptions& options, const PartContext& context) {
  const std::optional<ClassifierOptions> classifier = objective_->classifier();
  if (!classifier) {
    head_ = std::make_unique<OutputHead>(options, context, config_.vocab_size, embedding_->table());
    return;
  }
  const std::string name = config_.objective.name();
  HL_CHECK_AS(ExitCode::kUsage, !options.tied && !options.bias && options.logit_scale == 1,
              "objective ", name,
              " uses a classifier instead of a head over the vocabulary, but the recipe's head is ",
              options.tied   ? "tied"
              : options.bias ? "one with a bias"
                             : "one with a logit_scale",
              ". Use --set model.head.tied=false --set model.head.bias=false "
              "--set model.head.logit_scale=1.");
  const bool looks_back = std::ranges::all_of(
      blocks_, [](const auto& block) { return block->mixer().traits().causal; });
  HL_CHECK_AS(
      ExitCode::kUsage, classifier->pooling != "first" || !looks_back, "objective ", name,
      ": pooling first reads only the first token, which sees no other token in causal layers. "
      "Use pooling mean or last.");
  pooler_ = std::make_unique<DocumentPooler>(*classifier, context);
  head_ = std::make_unique<OutputHead>(context, classifier->num_classes);
}

void LanguageModel::BindOwnMemory(uint64_t seed, bool requires_grad, at::Device device) {
  for (int i = 0; i < parameters_.size(); ++i) {
    at::Tensor tensor = at::empty(parameters_.specs()[i].shape, at::kFloat);
    parameters_.Initialise(i, seed, tensor.mutable_data_ptr<float>());
    parameters_.Bind(i, ops::Upload(tensor, device).requires_grad_(requires_grad));
  }
}

at::Tensor LanguageModel::Embed(const at::Tensor& tokens, const at::Tensor& positions,
                                const at::Tensor& segments) const {
  const at::Tensor x = positions_->AddTo((*embedding_)(tokens, segments), positions);
  return embedding_norm_ == nullptr ? x : (*embedding_norm_)(x);
}

at::Tensor LanguageModel::RunBlocks(at::Tensor x, const RunBlock& run, const Await& await) const {
  ResidualStream stream(std::move(x));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (await) await(static_cast<int64_t>(i));
    run(i, *blocks_[i], stream);
  }
  if (await) await(static_cast<int64_t>(blocks_.size()));
  return final_norm_ == nullptr ? stream.Sum() : stream.Normed(*final_norm_);
}

at::Tensor LanguageModel::Hidden(const at::Tensor& tokens, const ForwardContext& context,
                                 ModelState* state) const {
  HL_CHECK(context.slice != nullptr && tokens.dim() == 2 &&
               tokens.size(0) == context.slice->batch && tokens.size(1) == context.slice->seq_len,
           "tokens of shape ", tokens.sizes(), " do not match their slice");
  const SequenceSlice& slice = *context.slice;
  RequirePosition(slice.begin + slice.seq_len - 1);
  if (state != nullptr) state->layers.resize(blocks_.size());
  const auto pass = std::make_shared<const ForwardPass>(config_, context, state);
  const Await& await = context.await_layer ? context.await_layer : await_layer_;
  if (await) await(-1);
  const at::Tensor x = Embed(tokens, slice.position_ids(), context.segments);
  const auto run = [&](size_t layer, const Block& block, ResidualStream& stream) {
    pass->Run(layer, block, stream);
    if (context.await_backward) pass->AwaitInBackward(layer, stream);
  };
  const at::Tensor hidden = RunBlocks(pass->DropFromEmbedding(x), run, await);
  if (state != nullptr) state->num_tokens += slice.seq_len;
  return hidden;
}

LanguageModel::HeadRows LanguageModel::RowsOf(const at::Tensor& hidden, const at::Tensor& targets,
                                              const ForwardContext& context) const {
  if (pooler_ == nullptr) return {hidden.flatten(0, 1), targets.flatten()};
  const at::Tensor firsts = FirstTokens(*context.slice);
  return {(*pooler_)(hidden, firsts), targets.flatten().index_select(0, firsts)};
}

at::Tensor LanguageModel::AtTokens(const at::Tensor& of_rows, const at::Tensor& tokens,
                                   const ForwardContext& context) const {
  if (pooler_ == nullptr) return of_rows.view(tokens.sizes());
  const at::Tensor all = at::zeros({tokens.numel()}, of_rows.options());
  return all.index_copy(0, FirstTokens(*context.slice), of_rows).view(tokens.sizes());
}

at::Tensor LanguageModel::Logits(const at::Tensor& hidden) const { return head_->Logits(hidden); }

LossSums LanguageModel::Loss(const at::Tensor& tokens, const at::Tensor& targets,
                             const ForwardContext& context) const {
  const HeadRows rows = RowsOf(Hidden(tokens, context), targets, context);
  at::Tensor weights;
  if (context.weigh) {
    const at::NoGradGuard no_grad;
    const at::Tensor losses =
        head_->TokenLosses(rows.hidden, rows.targets, {.num_targets = context.num_targets});
    weights = context.weigh(AtTokens(losses, tokens, context)).flatten();
  }
  const ops::LinearCrossEntropySums sums = head_->Loss(
      rows.hidden, rows.targets,
      {.z_loss_weight = context.z_loss_weight, .num_targets = context.num_targets}, weights);
  return {sums.objective, sums.loss, sums.z_loss};
}

at::Tensor LanguageModel::TokenLosses(const at::Tensor& tokens, const at::Tensor& targets,
                                      const ForwardContext& context, ModelState* state) const {
  const at::NoGradGuard no_grad;
  const HeadRows rows = RowsOf(Hidden(tokens, context, state), targets, context);
  return AtTokens(head_->TokenLosses(rows.hidden, rows.targets), tokens, context);
}

TokenScores LanguageModel::Scores(const at::Tensor& tokens, const at::Tensor& targets,
                                  const ForwardContext& context) const {
  const at::NoGradGuard no_grad;
  const HeadRows rows = RowsOf(Hidden(tokens, context), targets, context);
  if (pooler_ == nullptr) {
    const ops::TokenScores scores =
        head_->TokenScores(rows.hidden, rows.targets, {.num_targets = context.num_targets});
    return {AtTokens(scores.loss, tokens, context), AtTokens(scores.correct, tokens, context)};
  }
  const at::Tensor log_probs = at::log_softmax(Logits(rows.hidden).to(at::kFloat), -1);
  const at::Tensor asked = rows.targets.ge(0);
  const at::Tensor of_target =
      log_probs.gather(1, rows.targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor correct = log_probs.argmax(1).eq(rows.targets);
  return {AtTokens((-of_target).masked_fill(asked.logical_not(), 0.0), tokens, context),
          AtTokens(correct.to(at::kFloat), tokens, context), log_probs};
}

ModelState LanguageModel::EmptyState(int64_t batch) const {
  const at::ScalarType compute = embedding_->table()->scalar_type();
  ModelState state;
  for (const auto& block : blocks_)
    state.layers.push_back(model::EmptyState(block->mixer().traits(), batch, device(), compute));
  return state;
}

at::Tensor LanguageModel::Step(const at::Tensor& tokens, ModelState& state) const {
  RequirePosition(state.num_tokens);
  const auto token =
      SequenceSlice::Contiguous(tokens.size(0), 1, state.num_tokens, tokens.device());
  const at::Tensor logits = StepAt(token, tokens, state.layers);
  ++state.num_tokens;
  return logits;
}

at::Tensor LanguageModel::StepAt(const SequenceSlice& token, const at::Tensor& tokens,
                                 std::vector<MixerState>& layers) const {
  return StepWith(
      tokens, token.positions,
      [&](size_t layer, const Mixer& mixer, const NormedInput& x, at::Tensor& first_values) {
        return mixer.StepOnInput(x, token, layers[layer], first_values);
      });
}

at::Tensor LanguageModel::StepWith(const at::Tensor& tokens, const at::Tensor& positions,
                                   const MixToken& mix) const {
  const at::NoGradGuard no_grad;
  const auto run = [&](size_t layer, const Block& block, ResidualStream& stream) {
    block.Forward(stream, {.mix =
                               [&](const Mixer& mixer, const NormedInput& x) {
                                 return mix(layer, mixer, x, stream.first_values);
                               },
                           .drop = [](LayerPass::Branch, const at::Tensor& x) { return x; }});
  };
  if (await_layer_) await_layer_(-1);
  return Logits(RunBlocks(Embed(tokens, positions.squeeze(1), {}), run, await_layer_));
}

void LanguageModel::RequirePosition(int64_t position) const {
  const int64_t most = max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || position < most, "position ", position, " is beyond ",
              LimitOfPositions(), ". Use shorter texts.");
}

int64_t LanguageModel::LayerOf(int param) const {
  const auto after = std::ranges::upper_bound(first_params_, param);
  return after - first_params_.begin() - 1;
}

bool LanguageModel::constant_state() const {
  return std::ranges::all_of(
      blocks_, [](const auto& block) { return block->mixer().traits().constant_state(); });
}

bool LanguageModel::AnyLayerHas(bool MixerTraits::*trait) const {
  return std::ranges::any_of(blocks_,
                             [&](const auto& block) { return block->mixer().traits().*trait; });
}

int64_t LanguageModel::max_positions() const {
  int64_t most = positions_->max_positions();
  for (const auto& block : blocks_) {
    const int64_t tokens = block->mixer().traits().max_tokens;
    if (tokens > 0) most = most == 0 ? tokens : std::min(most, tokens);
  }
  return most;
}

std::string LanguageModel::LimitOfPositions() const {
  const int64_t most = max_positions();
  if (positions_->max_positions() == most)
    return Concat("the model's table of ", most, " positions");
  const std::string layer =
      FirstLayer([&](const MixerTraits& traits) { return traits.max_tokens == most; });
  return Concat("the ", most, " tokens per row that ", layer, " supports");
}

std::string LanguageModel::FirstLayer(const std::function<bool(const MixerTraits&)>& is) const {
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (is(blocks_[i]->mixer().traits())) return config_.NameOfMixer(static_cast<int64_t>(i));
  return "";
}

std::string LanguageModel::LayerOfOneDocument() const {
  return FirstLayer([](const MixerTraits& traits) { return !traits.packs_documents; });
}

std::string LanguageModel::LayerOfWholeRows() const {
  return FirstLayer([](const MixerTraits& traits) { return !traits.splits_rows; });
}

std::string LanguageModel::LayerOfFixedDocuments() const {
  if (pooler_) return "the classifier";  // one row per document
  return FirstLayer([](const MixerTraits& traits) { return !traits.replays_documents; });
}

}  // namespace halflife::model
