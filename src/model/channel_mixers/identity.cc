// y = x, for blocks whose mixer does all the work, such as small models for associative recall.
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

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

}  // namespace halflife::model
