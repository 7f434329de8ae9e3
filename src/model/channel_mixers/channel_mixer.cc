#include "model/channel_mixers/channel_mixer.h"

#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

std::vector<ChannelMixerVariant> ChannelMixerVariants() {
  return {
#define HL_CHANNEL_MIXER(Make) Make(),
#include "model/channel_mixers/channel_mixers.inc"
#undef HL_CHANNEL_MIXER
  };
}

}  // namespace

const PartKind kChannelMixers = {"channel_mixer", "swiglu",
                                 [] { return InfosOf(ChannelMixerVariants()); }};

std::unique_ptr<ChannelMixer> MakeChannelMixer(const ChannelMixerConfig& config,
                                               const PartContext& context) {
  return MakePart(ChannelMixerVariants(), config, context.sizes, context);
}

}  // namespace halflife::model
