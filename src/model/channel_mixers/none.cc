// No channel mixer, no norm for it and no second branch. Layers of Mamba, for example, consist of a
// mixer only.
#include "core/error.h"
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

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

}  // namespace halflife::model
