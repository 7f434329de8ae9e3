#include "model/channel_mixers/channel_mixer.h"

#include "core/error.h"
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

// y = x, for blocks whose mixer does all the work, such as small models for associative recall.
struct IdentityOptions : OptionsOf<IdentityOptions> {};

class Identity : public ChannelMixer {
 public:
  Identity(const IdentityOptions&, const PartContext& context) : dim_(context.model_dim()) {}
  at::Tensor operator()(const at::Tensor& x) const override { return x; }
  FlopCount FlopsPerToken() const override { return {}; }
  double ActivationsPerToken() const override { return static_cast<double>(dim_); }

 private:
  int64_t dim_;
};

}  // namespace

ChannelMixerVariant IdentityVariant() {
  return VariantOf<IdentityOptions, Identity, ChannelMixer, PartContext>("identity");
}

namespace {

// No channel mixer, no norm for it and no second branch. Layers of Mamba, for example, consist of a
// mixer only.
struct NoneOptions : OptionsOf<NoneOptions> {};

class None : public ChannelMixer {
 public:
  None(const NoneOptions&, const PartContext&) {}
  at::Tensor operator()(const at::Tensor& x) const override {
    HL_CHECK(false, "the channel mixer `none` was called, but its layers have no second branch");
    return x;
  }
  FlopCount FlopsPerToken() const override { return {}; }
  double ActivationsPerToken() const override { return 0; }
};

}  // namespace

ChannelMixerVariant NoneVariant() {
  return VariantOf<NoneOptions, None, ChannelMixer, PartContext>(kNoChannelMixer);
}

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
