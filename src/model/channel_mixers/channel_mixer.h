// A channel mixer is what a block applies to each token separately, after its mixer: the MLP. To
// add a channel mixer, add a class to this folder, a line to channel_mixers.inc and a message to
// the schema.
//
//   const auto mlp = MakeChannelMixer(config.channel_mixer, {.prefix = "layers.0.mlp.", ...});
//   x = x + (*mlp)(norm(x));
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/cost.h"
#include "model/norms/norm.h"
#include "model/part_context.h"

namespace halflife::model {

class ChannelMixer {
 public:
  virtual ~ChannelMixer() = default;
  // x [..., D] -> [..., D].
  virtual at::Tensor operator()(const at::Tensor& x) const = 0;
  // The same for the norm in front of a channel mixer, which may compute it in its first kernel.
  virtual at::Tensor Apply(const NormedInput& x) const { return (*this)(x.Tensor()); }
  virtual FlopCount FlopsPerToken() const = 0;
  // Elements of the compute dtype that backward keeps per token, including the channel mixer's
  // input.
  virtual double ActivationsPerToken() const = 0;
};

// The variant for layers that end with their mixer: they have no second branch and no norm for it.
inline constexpr const char* kNoChannelMixer = "none";

extern const PartKind kChannelMixers;
using ChannelMixerConfig = ConfigOf<kChannelMixers>;

// Throws the errors of MakePart.
std::unique_ptr<ChannelMixer> MakeChannelMixer(const ChannelMixerConfig& config,
                                               const PartContext& context);

}  // namespace halflife::model
