// A decoder-only language model: embedding, L blocks of x += mixer(norm x), x += SwiGLU(norm x), final norm, head.
// Names of parameters are fla's without `model.` (embeddings.weight, layers.0.attn_norm.weight, lm_head.weight, ...).
//
//   LanguageModel model(config);
//   ... bind model.parameters() ...
//   const LossSums sums = model.Loss(inputs, targets, context);
//   (sums.objective / num_targets).backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/mixer.h"

namespace halflife::model {

// Layers that use another mixer than the rest of the model.
struct HybridLayers {
  std::vector<int64_t> layers;  // from 0
  MixerConfig mixer;
};

struct ModelConfig {
  int64_t vocab_size = 259;
  int64_t model_dim = 256;
  int64_t num_layers = 6;
  int64_t mlp_dim = 0;  // 0: 256 ceil(int(model_dim * mlp_ratio * 2/3) / 256)
  double mlp_ratio = 4;
  double norm_eps = 1e-6;
  bool tie_embeddings = false;
  double dropout = 0;  // on the embedding and on each branch before its residual add
  double initializer_range = 0.02;
  bool mlp_bias = false;  // of the MLP's three matrices
  MixerConfig mixer;
  std::vector<HybridLayers> hybrid;

  const MixerConfig& mixer_of(int64_t layer) const;
  int64_t resolved_mlp_dim() const;
};

// "gla", or of a hybrid "gla + softmax in 2 of 12 layers".
std::string MixerSummary(const ModelConfig& config);

// All problems at once, one line each with the value met and values that would work; empty: fine.
std::vector<std::string> Problems(const ModelConfig& config);
// The form a checkpoint keeps. FromJson: Error kNoUsableCheckpoint for text that is no such config.
std::string ToJson(const ModelConfig& config);
ModelConfig ModelConfigFromJson(const std::string& json);

struct ForwardContext {
  const SequenceSlice* slice = nullptr;
  bool training = false;  // dropout on
  double z_loss_weight = 0;
  uint64_t seed = 0;
  std::span<const uint64_t> samples = {};  // [B] global sample numbers; needed with dropout
};

// Scalars in fp32, sums over targets.
struct LossSums {
  at::Tensor objective;  // loss + context.z_loss_weight z_loss; differentiable, once
  at::Tensor loss;       // of -ln p
  at::Tensor z_loss;     // of (ln Z)^2
};

// fp32 sizes are exact: what `--dry-run` prints.
struct ParameterCount {
  int64_t embedding = 0, head = 0, mixer = 0, mlp = 0, norm = 0;
  int64_t total() const { return embedding + head + mixer + mlp + norm; }
};

struct ModelState {
  std::vector<MixerState> layers;
  int64_t num_tokens = 0;
  int64_t bytes() const;
};

class LanguageModel {
 public:
  // Declares parameters; throws Error kUsage with all Problems.
  explicit LanguageModel(const ModelConfig& config);
  ~LanguageModel();

  const ModelConfig& config() const { return config_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  at::Device device() const { return embeddings_->device(); }  // of the bound parameters

  // Allocates every parameter in fp32 on the CPU and initialises it: inference tools and tests.
  void BindOwnMemory(uint64_t seed, bool requires_grad);

  // tokens [B, T] int64 -> hidden [B, T, D] after the final norm. With `state` (may be empty at first) rows continue from
  // it and it is updated: prefill.
  at::Tensor Hidden(const at::Tensor& tokens, const ForwardContext& context,
                    ModelState* state = nullptr) const;
  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // targets [B, T] int64, data::kNoTarget = none.
  LossSums Loss(const at::Tensor& tokens, const at::Tensor& targets,
                const ForwardContext& context) const;
  // -ln p(target) per token, [B, T] fp32, 0 where there is no target. No gradient. `state` as Hidden's.
  at::Tensor TokenLosses(const at::Tensor& tokens, const at::Tensor& targets,
                         const ForwardContext& context, ModelState* state = nullptr) const;

  ModelState EmptyState(int64_t batch) const;
  // tokens [B] int64 -> logits [B, vocab] fp32; the state advances by one token.
  at::Tensor Step(const at::Tensor& tokens, ModelState& state) const;

  ParameterCount CountParameters() const;
  FlopCount FlopsPerToken(int64_t seq_len) const;  // forward; head included, embedding lookup not
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const;
  bool constant_state() const;  // of every layer

 private:
  struct Block;
  ModelConfig config_;
  ParameterSet parameters_;
  Parameter embeddings_, final_norm_, head_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace halflife::model
