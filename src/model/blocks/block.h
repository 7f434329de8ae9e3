// A layer: a mixer and a channel mixer, their norms, and how both join the residual stream. Adding
// one is a file here, a line in blocks.inc and a message in the schema.
//
//   const auto block = MakeBlock(config.block, {.part = context,
//                                               .norm = config.norm,
//                                               .mixer = config.mixer_of(3),
//                                               .channel_mixer = config.channel_mixer_of(3)});
//   block->Forward(stream, pass);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "model/blocks/residual_stream.h"
#include "model/channel_mixers/channel_mixer.h"
#include "model/mixer.h"

namespace halflife::model {

// fp32 sizes are exact: what `--dry-run` prints.
struct ParameterCount {
  int64_t embedding = 0, head = 0, mixer = 0, mlp = 0, norm = 0;
  int64_t total() const { return embedding + head + mixer + mlp + norm; }
};

// How the model at hand runs its mixers (a whole slice, or one token of decode) and drops branches.
struct LayerPass {
  std::function<at::Tensor(const Mixer& mixer, const at::Tensor& x)> mix;
  // Dropout on the layer's first or second branch.
  enum Branch { kMixer = 0, kChannelMixer = 1 };
  std::function<at::Tensor(Branch branch, const at::Tensor& x)> drop;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual void Forward(ResidualStream& stream, const LayerPass& pass) const = 0;
  // Elements of the residual stream that backward keeps per token, what its parts keep left out.
  virtual double ActivationsPerToken() const = 0;
  // False: the last block's output is normed already.
  virtual bool needs_final_norm() const { return true; }

  const Mixer& mixer() const { return *mixer_; }
  const ChannelMixer& channel_mixer() const { return *channel_mixer_; }
  void CountParameters(ParameterCount& count) const;

 protected:
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<ChannelMixer> channel_mixer_;
  std::unique_ptr<Norm> mixer_norm_, channel_norm_;  // the latter null: no second branch

  // Makes the four in the order of the forward pass: attn_norm, attn, mlp_norm, mlp.
  void MakeParts(const struct BlockContext& context, const PartContext& branch);
  double num_branches() const { return channel_norm_ == nullptr ? 1 : 2; }

  // x += channel_mixer(norm x), where there is one.
  void AddChannelMixer(ResidualStream& stream, const LayerPass& pass) const;

 private:
  int64_t num_mixer_ = 0, num_channel_mixer_ = 0, num_norm_ = 0;  // elements
};

// Borrows the configs while the block is made.
struct BlockContext {
  PartContext part;  // prefix "layers.3."
  const PartConfig& norm;
  const MixerConfig& mixer;
  const ChannelMixerConfig& channel_mixer;
};

extern const PartKind kBlocks;
using BlockConfig = ConfigOf<kBlocks>;

// Errors as MakePart's.
std::unique_ptr<Block> MakeBlock(const BlockConfig& config, const BlockContext& context);

}  // namespace halflife::model
