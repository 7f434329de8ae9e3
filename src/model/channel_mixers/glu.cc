// Gated linear unit: y = W_down (act(W_gate x) * W_up x) (Shazeer, 2020). It is GEGLU if act is
// gelu, and the original GLU if act is sigmoid.
#include <ATen/TensorOperators.h>

#include "model/activation.h"
#include "model/channel_mixers/inner_channels.h"
#include "model/channel_mixers/variants.h"
#include "ops/linear/linear.h"

namespace halflife::model {
namespace {

struct GluOptions : OptionsOf<GluOptions, ActivatedOptions> {
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    inner.Resolve(static_cast<double>(sizes.model_dim) * inner.ratio * 2 / 3, 256, problems);
  }
};

class Glu : public ChannelMixer {
 public:
  Glu(const GluOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        width_(options.inner.width),
        activation_(Activation::Named(options.activation)) {
    const MatrixShape shape = {.out = width_, .in = dim_, .init_scale = context.value_init_scale};
    gate_ = Projection(context, "gate_proj", shape, options.bias);
    up_ = Projection(context, "up_proj", shape, options.bias);
    down_ = DownProjection(context, width_, options.bias);
  }

  at::Tensor operator()(const at::Tensor& x) const override {
    const auto y = ops::SharedInputLinear(x, {*gate_.weight, *up_.weight});
    return down_(activation_(AddBias(y[0], gate_.bias)) * AddBias(y[1], up_.bias));
  }
  FlopCount FlopsPerToken() const override {
    return {.matmul = 6 * static_cast<double>(dim_) * static_cast<double>(width_)};
  }
  // x, the gate, the activated gate, up and the product.
  double ActivationsPerToken() const override { return static_cast<double>(dim_ + 4 * width_); }

 private:
  int64_t dim_, width_;
  Activation activation_;
  Projection gate_, up_;
  OutputProjection down_;
};

}  // namespace

ChannelMixerVariant GluVariant() {
  return VariantOf<GluOptions, Glu, ChannelMixer, PartContext>("glu");
}

}  // namespace halflife::model
