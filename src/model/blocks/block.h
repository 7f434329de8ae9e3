// A block is one layer of the model: a mixer, a channel mixer, their norms, and the way in which
// both are added to the residual stream. To add a block, add a class and a line of
// BlockVariants() to block.cc, and a message to the schema.
//
//   const auto block = MakeBlock(config.block_of(3), {.part = context,
//                                               .norm = config.norm,
//                                               .mixer = config.mixer_of(3),
//                                               .channel_mixer = config.channel_mixer_of(3)});
//   block->Forward(stream, pass);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>

#include "model/channel_mixers/channel_mixer.h"
#include "model/mixer.h"
#include "model/norms/norm.h"

namespace halflife::model {

// The residual stream: the sum that runs through all blocks. A new branch is kept separate until
// the next norm reads the sum. The norm can then add and normalise in one pass over memory.
//
//   stream.Add(mixer(stream.Normed(*norm)));
class ResidualStream {
 public:
  explicit ResidualStream(at::Tensor x, at::Tensor branch = {})
      : x_(std::move(x)), branch_(std::move(branch)) {}

  // The current sum and pending branch, in the form that the constructor accepts.
  const at::Tensor& x() const { return x_; }
  const at::Tensor& branch() const { return branch_; }

  void Add(at::Tensor branch) {
    x_ = Sum();
    branch_ = std::move(branch);
  }
  // Returns the norm of the sum.
  at::Tensor Normed(const Norm& norm) {
    if (!branch_.defined()) return norm(x_);
    const at::Tensor branch = std::move(branch_);
    branch_.reset();
    return norm.AddAndNorm(x_, branch);
  }
  // The same as the input of a branch. It is computed at the first use, which must come before the
  // stream's next operation.
  NormedInput Input(const Norm& norm) { return NormedInput(norm, x_, std::exchange(branch_, {})); }
  at::Tensor Sum() {
    if (branch_.defined()) x_ = x_ + branch_;
    branch_.reset();
    return x_;
  }
  void Replace(at::Tensor x) {
    x_ = std::move(x);
    branch_.reset();
  }

  // Values that a layer publishes for later ones (MixerCall::first_values). Undefined: none yet.
  at::Tensor first_values;

 private:
  at::Tensor x_, branch_;  // [..., D]; branch_ is undefined if no branch is pending.
};

// Number of parameters (elements, not bytes) by kind of part, as printed by `--dry-run`.
struct ParameterCount {
  int64_t embedding = 0, head = 0, mixer = 0, mlp = 0, norm = 0;
  int64_t total() const { return embedding + head + mixer + mlp + norm; }
};

// How the model runs the mixers of a block (on a whole slice, or on one token of decoding) and how
// it applies dropout to the branches.
struct LayerPass {
  std::function<at::Tensor(const Mixer& mixer, const NormedInput& x)> mix;
  // Applies the dropout of the layer's first or second branch.
  enum Branch { kMixer = 0, kChannelMixer = 1 };
  std::function<at::Tensor(Branch branch, const at::Tensor& x)> drop;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual void Forward(ResidualStream& stream, const LayerPass& pass) const = 0;
  // Elements of the residual stream that backward keeps per token. Elements that the block's parts
  // keep are not included.
  virtual double ActivationsPerToken() const = 0;
  // Returns false if the block already ends with a norm, so that the model needs no final norm.
  virtual bool needs_final_norm() const { return true; }

  const Mixer& mixer() const { return *mixer_; }
  const ChannelMixer& channel_mixer() const { return *channel_mixer_; }
  void CountParameters(ParameterCount& count) const;

 protected:
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<ChannelMixer> channel_mixer_;
  // channel_norm_ is null if there is no second branch.
  std::unique_ptr<Norm> mixer_norm_, channel_norm_;

  // Makes the four parts in the order of the forward pass: attn_norm, attn, mlp_norm, mlp.
  void MakeParts(const struct BlockContext& context, const PartContext& branch);
  double num_branches() const { return channel_norm_ == nullptr ? 1 : 2; }

 private:
  int64_t num_mixer_ = 0, num_channel_mixer_ = 0, num_norm_ = 0;  // Elements.
};

// The references to configs need to live only while the block is made.
struct BlockContext {
  PartContext part;  // Its prefix is "layers.3.", for example.
  const PartConfig& norm;
  const MixerConfig& mixer;
  const ChannelMixerConfig& channel_mixer;
};

extern const PartKind kBlocks;
using BlockConfig = ConfigOf<kBlocks>;

// Throws the errors of MakePart.
std::unique_ptr<Block> MakeBlock(const BlockConfig& config, const BlockContext& context);

}  // namespace halflife::model
