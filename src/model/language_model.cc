#include "model/language_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"
#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/torch/dispatch.h"

namespace halflife::model {

struct LanguageModel::Block {
  Parameter attn_norm, mlp_norm, gate_proj, up_proj, down_proj;
  Parameter gate_bias, up_bias, down_bias;  // undeclared without mlp_bias
  std::unique_ptr<Mixer> mixer;

  at::Tensor Mlp(const at::Tensor& x) const {
    const auto y = kernels::SharedInputLinear(x, {*gate_proj, *up_proj});
    const at::Tensor product = kernels::SwiGlu(AddBias(y[0], gate_bias), AddBias(y[1], up_bias));
    return AddBias(kernels::Linear(product, *down_proj), down_bias);
  }
};

namespace {

// Where in the model a dropout stands: part of its key.
uint32_t EmbeddingSite() { return 0; }
uint32_t MixerSite(int64_t layer) { return static_cast<uint32_t>(1 + 2 * layer); }
uint32_t MlpSite(int64_t layer) { return static_cast<uint32_t>(2 + 2 * layer); }

at::Tensor DropAt(uint32_t site, const at::Tensor& x, double rate, const ForwardContext& context) {
  if (!context.training || rate == 0) return x;
  return kernels::Dropout(x, {.rate = rate,
                              .key = MakeRandomKey(context.seed, RandomPurpose::kDropout, site),
                              .samples = context.samples,
                              .first_position = context.slice->begin});
}

}  // namespace

int64_t ModelState::bytes() const {
  int64_t sum = 0;
  for (const MixerState& layer : layers) sum += layer.bytes();
  return sum;
}

LanguageModel::LanguageModel(const ModelConfig& config) : config_(config) {
  const std::vector<std::string> problems = Problems(config);
  HL_CHECK_AS(ExitCode::kUsage, problems.empty(), Join(problems, "\n"));
  const int64_t dim = config.model_dim, mlp_dim = config.resolved_mlp_dim();
  MixerContext context = {.model_dim = dim,
                          .norm_eps = config.norm_eps,
                          .initializer_range = config.initializer_range,
                          .prefix = "",
                          .parameters = &parameters_};
  const auto matrix = [&](const std::string& name, int64_t out, int64_t in,
                          std::vector<std::string> aliases = {}) {
    return parameters_.Declare(
        {.name = name, .shape = {out, in}, .weight_decay = true, .aliases = std::move(aliases)},
        Init::Normal(config.initializer_range));
  };
  const auto bias = [&](const std::string& name, int64_t out) {
    return parameters_.Declare({.name = name, .shape = {out}}, Init::Zeros());
  };
  const auto norm = [&](const std::string& name) {
    return parameters_.Declare({.name = name, .shape = {dim}, .region = dist::Region::kFp32},
                               Init::Ones());
  };
  // Tied: the engine adds up both uses before it accumulates, so grad_uses stays 1.
  embeddings_ = matrix("embeddings.weight", config.vocab_size, dim,
                       config.tie_embeddings ? std::vector<std::string>{"lm_head.weight"}
                                             : std::vector<std::string>{});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string prefix = Concat("layers.", i, ".");
    auto block = std::make_unique<Block>();
    block->attn_norm = norm(prefix + "attn_norm.weight");
    context.prefix = prefix + "attn.";
    block->mixer = MakeMixer(config.mixer_of(i), context);
    block->mlp_norm = norm(prefix + "mlp_norm.weight");
    block->gate_proj = matrix(prefix + "mlp.gate_proj.weight", mlp_dim, dim);
    block->up_proj = matrix(prefix + "mlp.up_proj.weight", mlp_dim, dim);
    block->down_proj = matrix(prefix + "mlp.down_proj.weight", dim, mlp_dim);
    if (config.mlp_bias) {
      block->gate_bias = bias(prefix + "mlp.gate_proj.bias", mlp_dim);
      block->up_bias = bias(prefix + "mlp.up_proj.bias", mlp_dim);
      block->down_bias = bias(prefix + "mlp.down_proj.bias", dim);
    }
    blocks_.push_back(std::move(block));
  }
  final_norm_ = norm("norm.weight");
  head_ = config.tie_embeddings ? embeddings_ : matrix("lm_head.weight", config.vocab_size, dim);
}

LanguageModel::~LanguageModel() = default;

void LanguageModel::BindOwnMemory(uint64_t seed, bool requires_grad) {
  for (int i = 0; i < parameters_.size(); ++i) {
    at::Tensor tensor = at::empty(parameters_.specs()[i].shape, at::kFloat);
    parameters_.Initialise(i, seed, tensor.mutable_data_ptr<float>());
    parameters_.Bind(i, tensor.requires_grad_(requires_grad));
  }
}

at::Tensor LanguageModel::Hidden(const at::Tensor& tokens, const ForwardContext& context,
                                 ModelState* state) const {
  HL_CHECK(context.slice != nullptr && tokens.dim() == 2 &&
               tokens.size(0) == context.slice->batch && tokens.size(1) == context.slice->seq_len,
           "tokens of shape ", tokens.sizes(), " do not match their slice");
  const double rate = config_.dropout;
  if (state != nullptr) state->layers.resize(blocks_.size());
  at::Tensor x = DropAt(EmbeddingSite(), at::embedding(*embeddings_, tokens), rate, context);
  at::Tensor normed = kernels::RmsNorm(x, *blocks_.front()->attn_norm, config_.norm_eps);
  // x += branch, and the input of the layer that `norm` stands before
  const auto add = [&](const at::Tensor& branch, const Parameter& norm) {
    const auto next = kernels::AddRmsNorm(x, branch, *norm, config_.norm_eps);
    x = next.sum, normed = next.normed;
  };
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = *blocks_[i];
    const auto layer = static_cast<int64_t>(i);
    MixerOutput mixed =
        block.mixer->Forward(normed, *context.slice, state == nullptr ? nullptr : &state->layers[i],
                             /*want_state=*/state != nullptr);
    if (state != nullptr) state->layers[i] = std::move(mixed.state);
    add(DropAt(MixerSite(layer), mixed.y, rate, context), block.mlp_norm);
    add(DropAt(MlpSite(layer), block.Mlp(normed), rate, context),
        i + 1 < blocks_.size() ? blocks_[i + 1]->attn_norm : final_norm_);
  }
  if (state != nullptr) state->num_tokens += tokens.size(1);
  return normed;
}

at::Tensor LanguageModel::Logits(const at::Tensor& hidden) const {
  const at::ScalarType compute = kernels::ComputeType(hidden);
  return at::linear(hidden.to(compute), head_->to(compute));
}

LossSums LanguageModel::Loss(const at::Tensor& tokens, const at::Tensor& targets,
                             const ForwardContext& context) const {
  const kernels::LinearCrossEntropySums sums = kernels::LinearCrossEntropy(
      {Hidden(tokens, context).flatten(0, 1), *head_, targets.flatten()},
      {.z_loss_weight = context.z_loss_weight});
  return {sums.objective, sums.loss, sums.z_loss};
}

at::Tensor LanguageModel::TokenLosses(const at::Tensor& tokens, const at::Tensor& targets,
                                      const ForwardContext& context, ModelState* state) const {
  const at::NoGradGuard no_grad;
  return kernels::LinearTokenCrossEntropy(
             {Hidden(tokens, context, state).flatten(0, 1), *head_, targets.flatten()})
      .view(tokens.sizes());
}

ModelState LanguageModel::EmptyState(int64_t batch) const {
  ModelState state;
  for (const auto& block : blocks_)
    state.layers.push_back(block->mixer->EmptyState(batch, device()));
  return state;
}

at::Tensor LanguageModel::Step(const at::Tensor& tokens, ModelState& state) const {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::embedding(*embeddings_, tokens);  // [B, D]
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = *blocks_[i];
    x = x +
        block.mixer->Step(kernels::RmsNorm(x, *block.attn_norm, config_.norm_eps), state.layers[i]);
    x = x + block.Mlp(kernels::RmsNorm(x, *block.mlp_norm, config_.norm_eps));
  }
  ++state.num_tokens;
  return Logits(kernels::RmsNorm(x, *final_norm_, config_.norm_eps));
}

ParameterCount LanguageModel::CountParameters() const {
  ParameterCount count;
  for (const dist::ParamSpec& spec : parameters_.specs()) {
    const auto has = [&](const char* piece) { return spec.name.find(piece) != std::string::npos; };
    int64_t& part = spec.name == "embeddings.weight" ? count.embedding
                    : spec.name == "lm_head.weight"  ? count.head
                    : has(".attn.")                  ? count.mixer
                    : has(".mlp.")                   ? count.mlp
                                                     : count.norm;
    part += spec.count();
  }
  return count;
}

FlopCount LanguageModel::FlopsPerToken(int64_t seq_len) const {
  const auto dim = static_cast<double>(config_.model_dim);
  FlopCount sum = {.matmul = 2 * dim * static_cast<double>(config_.vocab_size), .mixing = 0};
  for (const auto& block : blocks_) {
    const FlopCount mixer = block->mixer->FlopsPerToken(seq_len);
    sum.matmul += mixer.matmul + 6 * dim * static_cast<double>(config_.resolved_mlp_dim());
    sum.mixing += mixer.mixing;
  }
  return sum;
}

double LanguageModel::ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const {
  const auto dim = static_cast<double>(config_.model_dim),
             mlp = static_cast<double>(config_.resolved_mlp_dim()),
             bytes = static_cast<double>(bytes_per_element);
  // Per block: x before either norm, the MLP's normed input, gate, up and product; the mixer counts its own input.
  double sum = 2 * dim * bytes;
  for (const auto& block : blocks_) {
    sum += (3 * dim + 3 * mlp) * bytes;
    sum += block->mixer->ActivationBytesPerToken(seq_len, bytes_per_element);
  }
  return sum;
}

bool LanguageModel::constant_state() const {
  return std::ranges::all_of(blocks_,
                             [](const auto& block) { return block->mixer->constant_state(); });
}

}  // namespace halflife::model
