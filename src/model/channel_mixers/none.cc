// No branch, and no norm before it: layers of a mixer alone, as Mamba's.
#include "core/error.h"
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

struct NoneOptions : OptionsOf<NoneOptions> {};

class None : public ChannelMixer {
 public:
  None(const NoneOptions&, const PartContext&) {}
  at::Tensor operator()(const at::Tensor& x) const override {
    HL_CHECK(false, "a layer called the channel mixer that it has not");
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
