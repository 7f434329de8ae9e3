// A language model of parts: embedding and positions, blocks of a mixer and a channel mixer on a
// residual stream, final norm, head. Names of parameters are fla's without `model.`
// (embeddings.weight, layers.0.attn_norm.weight, lm_head.weight, ...).
//
//   LanguageModel model(config);
//   ... bind model.parameters() ...
//   const LossSums sums = model.Loss(inputs, targets, context);
//   (sums.objective / num_targets).backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "model/config/model_config.h"

namespace halflife::model {

// What backward computes a second time in place of keeping it; the gradients are the same bits.
enum class Recompute : uint8_t {
  kNone,
  kMixer,  // mixers from their inputs
  kBlock,  // blocks from the residual stream before them
};

struct ForwardContext {
  const SequenceSlice* slice = nullptr;
  bool training = false;  // dropout on
  double z_loss_weight = 0;
  int64_t num_targets = -1;  // that are not negative, where the caller knows
  // Counts in training alone. All that the context borrows then lives until backward has run.
  Recompute recompute = Recompute::kNone;
  uint64_t seed = 0;
  at::Tensor samples = {};   // [B] int64, as kernels::SampleNumbers; needed with dropout
  at::Tensor segments = {};  // [B, T] int64, or undefined: all tokens are of segment 0
  // Called by layers of attention with what they are about to compute (MixerCall::observe).
  std::function<void(int64_t layer, const kernels::SoftmaxAttentionInputs&,
                     const kernels::SoftmaxAttentionConfig&)>
      observe = {};
  // Called before a layer's mixer runs, with what it is given; may be empty.
  std::function<void(int64_t layer, const Mixer& mixer, const MixerCall& call)> before_mixer = {};
  // Called before the parameters of a layer (LayerOf) are read; empty: they are there.
  std::function<void(int64_t layer)> await_layer = {};
};

// Scalars in fp32, sums over targets.
struct LossSums {
  at::Tensor objective;  // loss + context.z_loss_weight z_loss; differentiable, once
  at::Tensor loss;       // of -ln p
  at::Tensor z_loss;     // of (ln Z)^2
};

struct TokenScores {
  at::Tensor losses;   // [B, T] fp32, -ln p(target), 0 where there is no target
  at::Tensor correct;  // [B, T] fp32, 1 where the target is the likeliest token, else 0
  // ln p of the slice's P documents by a classifier, [P, num_classes] fp32; undefined without one.
  at::Tensor class_log_probs = {};
};

struct ModelState {
  std::vector<MixerState> layers;
  int64_t num_tokens = 0;  // of each row so far: the position of the next one
  int64_t bytes() const;
};

class DocumentPooler;

class LanguageModel {
 public:
  // Declares parameters; throws Error kUsage with all Problems.
  explicit LanguageModel(const ModelConfig& config);
  ~LanguageModel();

  const ModelConfig& config() const { return config_; }  // as given
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  at::Device device() const { return embedding_->table()->device(); }  // of the bound parameters
  const Objective& objective() const { return *objective_; }
  const Positions& positions() const { return *positions_; }

  // Allocates every parameter in fp32 and initialises it, on the CPU and then perhaps moved: the
  // same bits on every device. For tests and benchmarks: trainers and loaders bind memory of their
  // own.
  void BindOwnMemory(uint64_t seed, bool requires_grad, at::Device device = at::kCPU);

  // tokens [B, T] int64 -> hidden [B, T, D] after the final norm. With `state` (may be empty at
  // first) rows continue from it and it is updated: prefill.
  at::Tensor Hidden(const at::Tensor& tokens, const ForwardContext& context,
                    ModelState* state = nullptr) const;
  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // targets [B, T] int64; negative: none.
  LossSums Loss(const at::Tensor& tokens, const at::Tensor& targets,
                const ForwardContext& context) const;
  // -ln p(target) per token, [B, T] fp32, 0 where there is no target. No gradient. `state` as
  // Hidden's.
  at::Tensor TokenLosses(const at::Tensor& tokens, const at::Tensor& targets,
                         const ForwardContext& context, ModelState* state = nullptr) const;

  TokenScores Scores(const at::Tensor& tokens, const at::Tensor& targets,
                     const ForwardContext& context) const;

  ModelState EmptyState(int64_t batch) const;
  // tokens [B] int64 -> logits [B, vocab] fp32; the state advances by one token. Error kUsage
  // beyond max_positions.
  at::Tensor Step(const at::Tensor& tokens, ModelState& state) const;
  // The same of tokens whose place `token` [B, 1] tells, as Mixer::Step; neither checks nor counts.
  at::Tensor StepAt(const SequenceSlice& token, const at::Tensor& tokens,
                    std::vector<MixerState>& layers) const;
  // Error kUsage where a row's token of this position has no place in the model.
  void RequirePosition(int64_t position) const;

  // The layer that reads a parameter: -1 the embedding and positions, 0 to num_layers - 1 the
  // blocks, num_layers the final norm and the head (a tied one has its weight from the embedding).
  int64_t LayerOf(int param) const;
  const ParameterCount& CountParameters() const { return count_; }
  const Block& block(int64_t layer) const { return *blocks_.at(static_cast<size_t>(layer)); }
  const DocumentPooler* pooler() const { return pooler_.get(); }  // null: no classifier
  const OutputHead& head() const { return *head_; }
  bool constant_state() const;  // of every layer
  // Whether the mixer of some layer has the trait: AnyLayerHas(&MixerTraits::asks_row_length).
  bool AnyLayerHas(bool MixerTraits::*trait) const;
  // Tokens of a row that the position table and every mixer know; 0: any number.
  int64_t max_positions() const;
  // What sets that number, for messages: "the model's table of 512 positions".
  std::string LimitOfPositions() const;
  // Empty where every layer takes rows of several documents; else the first that does not: "the
  // mixer of layer 0, hyena,".
  std::string LayerOfOneDocument() const;
  // Likewise, of rows whose slices lie on several ranks.
  std::string LayerOfWholeRows() const;

 private:
  at::Tensor Embed(const at::Tensor& tokens, const at::Tensor& positions,
                   const at::Tensor& segments) const;
  // What the head is asked of: tokens, or with a classifier documents.
  struct HeadRows {
    at::Tensor hidden, targets;  // [N, D], [N]
  };
  HeadRows RowsOf(const at::Tensor& hidden, const at::Tensor& targets,
                  const ForwardContext& context) const;
  // What the head says of its rows, at their tokens: [B, T], 0 elsewhere.
  at::Tensor AtTokens(const at::Tensor& of_rows, const at::Tensor& tokens,
                      const ForwardContext& context) const;
  void MakeHead(const HeadOptions& options, const PartContext& context);
  // By its name; "": none.
  std::string FirstLayer(const std::function<bool(const MixerTraits&)>& is) const;
  // Embedded tokens [..., D] through all blocks and the final norm; `run` takes one block on.
  using RunBlock = std::function<void(size_t layer, const Block& block, ResidualStream& stream)>;
  using Await = std::function<void(int64_t layer)>;
  at::Tensor RunBlocks(at::Tensor x, const RunBlock& run, const Await& await = {}) const;

  ModelConfig config_;
  ParameterSet parameters_;
  ParameterCount count_;
  std::vector<int> first_params_;  // of layers 0 to num_layers, as LayerOf counts them
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<Positions> positions_;
  std::unique_ptr<Norm> embedding_norm_;  // null: none
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> final_norm_;        // null: the last block norms its output
  std::unique_ptr<DocumentPooler> pooler_;  // null: the head is asked of every token
  std::unique_ptr<OutputHead> head_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace halflife::model
