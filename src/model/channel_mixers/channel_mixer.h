// What a block does to each token alone, after its mixer: the MLP. Adding one is a file here, a
// line in channel_mixers.inc and a message in the schema.
//
//   const auto mlp = MakeChannelMixer(config.channel_mixer, {.prefix = "layers.0.mlp.", ...});
//   x = x + (*mlp)(norm(x));
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/cost.h"
#include "model/part_context.h"

namespace halflife::model {

class ChannelMixer {
 public:
  virtual ~ChannelMixer() = default;
  // x [..., D] -> [..., D].
  virtual at::Tensor operator()(const at::Tensor& x) const = 0;
  virtual FlopCount FlopsPerToken() const = 0;
  // Elements of the compute dtype that backward keeps per token, its own input included.
  virtual double ActivationsPerToken() const = 0;
};

// The variant of layers that end with their mixer: no branch, and no norm for one.
inline constexpr const char* kNoChannelMixer = "none";

extern const PartKind kChannelMixers;
using ChannelMixerConfig = ConfigOf<kChannelMixers>;

// Errors as MakePart's.
std::unique_ptr<ChannelMixer> MakeChannelMixer(const ChannelMixerConfig& config,
                                               const PartContext& context);

}  // namespace halflife::model
