// The MLP of a transformer: y = W_down act(W_up x). GPT-2 uses gelu_tanh and biases; Primer uses
// relu2.
#include "model/activation.h"
#include "model/channel_mixers/inner_channels.h"
#include "model/channel_mixers/variants.h"
#include "ops/linear/linear.h"

namespace halflife::model {
namespace {

struct MlpOptions : OptionsOf<MlpOptions, ActivatedOptions> {
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    inner.Resolve(static_cast<double>(sizes.model_dim) * inner.ratio, 1, problems);
  }
};

class Mlp : public ChannelMixer {
 public:
  Mlp(const MlpOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        width_(options.inner.width),
        activation_(Activation::Named(options.activation)),
        up_(context, "up_proj", {.out = width_, .in = dim_, .init_scale = context.value_init_scale},
            options.bias),
        down_(DownProjection(context, width_, options.bias)) {}

  at::Tensor operator()(const at::Tensor& x) const override {
    return down_(activation_(AddBias(ops::Linear(x, *up_.weight), up_.bias)));
  }
  FlopCount FlopsPerToken() const override {
    return {.matmul = 4 * static_cast<double>(dim_) * static_cast<double>(width_)};
  }
  // x, and the inner channels before and after the activation.
  double ActivationsPerToken() const override { return static_cast<double>(dim_ + 2 * width_); }

 private:
  int64_t dim_, width_;
  Activation activation_;
  Projection up_;
  OutputProjection down_;
};

}  // namespace

ChannelMixerVariant MlpVariant() {
  return VariantOf<MlpOptions, Mlp, ChannelMixer, PartContext>("mlp");
}

}  // namespace halflife::model
