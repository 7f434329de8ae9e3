// A language model composed of parts: embedding and positions, blocks with a mixer and a channel
// mixer on a residual stream, final norm, head. Parameter names are those of fla without `model.`
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

#include "model/config/model_config.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::model {

// The part of a forward pass that backward recomputes instead of keeping it. The gradients are
// bit-identical.
enum class Recompute : uint8_t {
  kNone,
  kMixer,  // Recomputes mixers from their inputs.
  kBlock,  // Recomputes blocks from the residual stream before them.
};

struct ForwardContext {
  const SequenceSlice* slice = nullptr;
  bool training = false;
  bool dropout = true;  // in training
  double z_loss_weight = 0;
  // Number of targets that are not negative, if the caller knows it; -1: unknown.
  int64_t num_targets = -1;
  // Used only in training. Everything that the context borrows must then live until backward has
  // run.
  Recompute recompute = Recompute::kNone;
  uint64_t seed = 0;
  at::Tensor samples = {};   // [B] int64, see ops::SampleNumbers. Required with dropout.
  at::Tensor segments = {};  // [B, T] int64. Undefined: all tokens belong to segment 0.
  // Called by Loss with the fp32 losses of the tokens, [B, T], if the objective is not their sum.
  // Returns the weight of each loss in LossSums::objective and loss, [B, T] fp32. Empty: 1.
  std::function<at::Tensor(const at::Tensor& token_losses)> weigh = {};
  // Called by attention layers with the inputs of the attention they are about to compute
  // (MixerCall::observe). May be empty.
  std::function<void(int64_t layer, const ops::SoftmaxAttentionInputs&,
                     const ops::SoftmaxAttentionConfig&)>
      observe = {};
  // Called before a layer's mixer runs, with the mixer and its call. May be empty.
  std::function<void(int64_t layer, const Mixer& mixer, const MixerCall& call)> before_mixer = {};
  // Called before the parameters of a layer (LayerOf) are read, so that it can wait for them.
  // Empty: that of LanguageModel::SetAwaitLayer.
  std::function<void(int64_t layer)> await_layer = {};
  // Called in backward before the parameters of a block are read, after the backward of all later
  // layers, once per backward. Layers without parameters in memory need it; empty: none.
  std::function<void(int64_t layer)> await_backward = {};
};

// Scalars in fp32, summed over targets.
struct LossSums {
  at::Tensor objective;  // loss + context.z_loss_weight * z_loss. Can be differentiated once.
  at::Tensor loss;       // Sum of -ln p.
  at::Tensor z_loss;     // Sum of (ln Z)^2.
};

struct TokenScores {
  at::Tensor losses;   // [B, T] fp32: -ln p(target), or 0 if the token has no target.
  at::Tensor correct;  // [B, T] fp32: 1 if the target is the most likely token, else 0.
  // [P, num_classes] fp32: the classifier's ln p for each of the slice's P documents. Undefined
  // without a classifier.
  at::Tensor class_log_probs = {};
};

struct ModelState {
  std::vector<MixerState> layers;
  int64_t num_tokens = 0;  // Tokens of each row so far, which is the position of the next token.
  int64_t bytes() const;
};

class DocumentPooler;

class LanguageModel {
 public:
  // Declares the parameters. Throws kUsage with all Problems of the config.
  explicit LanguageModel(const ModelConfig& config);
  ~LanguageModel();

  const ModelConfig& config() const { return config_; }  // As passed to the constructor.
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  at::Device device() const {
    return embedding_->table()->device();
  }  // The bound parameters' device.
  const Objective& objective() const { return *objective_; }
  const Positions& positions() const { return *positions_; }

  // Allocates every parameter in fp32 and initialises it on the CPU, then copies it to `device`, so
  // that the bits are the same on every device. For tests and benchmarks. Trainers and loaders bind
  // their own memory.
  void BindOwnMemory(uint64_t seed, bool requires_grad, at::Device device = at::kCPU);

  // Sets what every pass calls before it reads the parameters of a layer, in the order of the
  // layers, if its context has no await_layer. Empty: all parameters are available.
  void SetAwaitLayer(std::function<void(int64_t layer)> await_layer) {
    await_layer_ = std::move(await_layer);
  }
  bool awaits_layers() const { return static_cast<bool>(await_layer_); }

  // Computes hidden [B, T, D], after the final norm, from tokens [B, T] int64. With `state`
  // (prefill), rows continue from it and it is updated; an empty state starts from zero.
  at::Tensor Hidden(const at::Tensor& tokens, const ForwardContext& context,
                    ModelState* state = nullptr) const;
  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // targets [B, T] int64; a negative target has no loss.
  LossSums Loss(const at::Tensor& tokens, const at::Tensor& targets,
                const ForwardContext& context) const;
  // Returns -ln p(target) per token, [B, T] fp32, or 0 for tokens without a target. Computes no
  // gradient. See Hidden for `state`.
  at::Tensor TokenLosses(const at::Tensor& tokens, const at::Tensor& targets,
                         const ForwardContext& context, ModelState* state = nullptr) const;

  TokenScores Scores(const at::Tensor& tokens, const at::Tensor& targets,
                     const ForwardContext& context) const;

  ModelState EmptyState(int64_t batch) const;
  // Decodes one token per row: tokens [B] int64 -> logits [B, vocab] fp32. Advances the state by
  // one token. Throws kUsage beyond max_positions.
  at::Tensor Step(const at::Tensor& tokens, ModelState& state) const;
  // Like Step, with positions given by `token` [B, 1] (see Mixer::Step). It neither checks the
  // position nor counts tokens.
  at::Tensor StepAt(const SequenceSlice& token, const at::Tensor& tokens,
                    std::vector<MixerState>& layers) const;
  // Applies the mixer of a layer to one token of each row: x [B, D] -> [B, D]. `first_values` as in
  // Mixer::StepWithValues.
  using MixToken = std::function<at::Tensor(size_t layer, const Mixer& mixer, const NormedInput& x,
                                            at::Tensor& first_values)>;
  // Like StepAt, for callers that keep the states themselves: `mix` runs every mixer. The rows may
  // be at different positions [B, 1].
  at::Tensor StepWith(const at::Tensor& tokens, const at::Tensor& positions,
                      const MixToken& mix) const;
  // Throws kUsage if the model does not support a token at this position of a row.
  void RequirePosition(int64_t position) const;

  // Returns the layer that reads a parameter: -1 for the embedding and positions, 0 to num_layers -
  // 1 for the blocks, num_layers for the final norm and the head. The weight of a tied head belongs
  // to the embedding.
  int64_t LayerOf(int param) const;
  const ParameterCount& CountParameters() const { return count_; }
  const Block& block(int64_t layer) const { return *blocks_.at(static_cast<size_t>(layer)); }
  const DocumentPooler* pooler() const { return pooler_.get(); }  // Null without a classifier.
  const OutputHead& head() const { return *head_; }
  bool constant_state() const;  // True if the state of every layer has a constant size.
  // Returns true if the mixer of any layer has the trait:
  // AnyLayerHas(&MixerTraits::asks_row_length).
  bool AnyLayerHas(bool MixerTraits::*trait) const;
  // Returns the number of tokens per row that the position table and every mixer support. 0:
  // unlimited.
  int64_t max_positions() const;
  // Describes what sets max_positions, for messages: "the model's table of 512 positions".
  std::string LimitOfPositions() const;
  // Returns the first layer that does not support several documents per row, as "the mixer of layer
  // 0, hyena,". Empty if every layer does.
  std::string LayerOfOneDocument() const;
  // Returns the first layer that does not support rows whose slices are on several ranks, in the
  // same form.
  std::string LayerOfWholeRows() const;
  // Returns the first layer whose launches depend on where documents start (MixerTraits), in the
  // same form, or the head of a classifier. Empty: a recorded CUDA graph may be replayed for other
  // documents.
  std::string LayerOfFixedDocuments() const;

 private:
  at::Tensor Embed(const at::Tensor& tokens, const at::Tensor& positions,
                   const at::Tensor& segments) const;
  // The rows that the head evaluates: tokens, or documents if there is a classifier.
  struct HeadRows {
    at::Tensor hidden, targets;  // [N, D], [N]
  };
  HeadRows RowsOf(const at::Tensor& hidden, const at::Tensor& targets,
                  const ForwardContext& context) const;
  // Places the head's result per row at the row's token: [B, T], with 0 elsewhere.
  at::Tensor AtTokens(const at::Tensor& of_rows, const at::Tensor& tokens,
                      const ForwardContext& context) const;
  void MakeHead(const HeadOptions& options, const PartContext& context);
  // Throws if a mixer reads values that no earlier layer publishes.
  void RequireValues() const;
  // Returns the name of the first layer whose mixer satisfies `is`, or "" if no mixer does.
  std::string FirstLayer(const std::function<bool(const MixerTraits&)>& is) const;
  // Runs embedded tokens [..., D] through all blocks and the final norm. `run` runs one block.
  using RunBlock = std::function<void(size_t layer, const Block& block, ResidualStream& stream)>;
  using Await = std::function<void(int64_t layer)>;
  at::Tensor RunBlocks(at::Tensor x, const RunBlock& run, const Await& await = {}) const;

  ModelConfig config_;
  ParameterSet parameters_;
  Await await_layer_;
  ParameterCount count_;
  // First parameter of layers 0 to num_layers, numbered as in LayerOf.
  std::vector<int> first_params_;
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<Positions> positions_;
  std::unique_ptr<Norm> embedding_norm_;  // Null: no norm.
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> final_norm_;        // Null if the last block already norms its output.
  std::unique_ptr<DocumentPooler> pooler_;  // Null if the head evaluates every token.
  std::unique_ptr<OutputHead> head_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace halflife::model
