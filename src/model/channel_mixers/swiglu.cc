// SwiGLU: y = W_down (silu(W_gate x) * W_up x) (Shazeer, 2020), as in Llama and in fla's models. It
// has its own file because it uses a fused kernel and declares its parameters in its own order.
// glu.cc supports other activations.
#include "ops/rows/swiglu.h"
#include "model/channel_mixers/inner_channels.h"
#include "model/channel_mixers/variants.h"
#include "ops/linear/linear.h"

namespace halflife::model {
namespace {

struct SwiGluOptions : OptionsOf<SwiGluOptions> {
  WidthOptions inner;
  bool bias = false;
  std::vector<Option> Fields() override {
    return {{"width", &inner.width, {.min = 0}}, {"ratio", &inner.ratio}, {"bias", &bias}};
  }
  // The width is 2/3 of ratio * model_dim, because the gate adds a third matrix. It is rounded up
  // to a multiple of 256, as in fla.
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    inner.Resolve(static_cast<double>(sizes.model_dim) * inner.ratio * 2 / 3, 256, problems);
  }
};

class SwiGlu : public ChannelMixer {
 public:
  SwiGlu(const SwiGluOptions& options, const PartContext& context)
      : dim_(context.model_dim()), width_(options.inner.width) {
    const MatrixShape shape = {.out = width_, .in = dim_, .init_scale = context.value_init_scale};
    // All matrices are declared before all biases, because this order determines the parameter
    // layout.
    gate_ = DeclareMatrix(context, "gate_proj.weight", shape);
    up_ = DeclareMatrix(context, "up_proj.weight", shape);
    down_ = DownProjection(context, width_, /*with_bias=*/false);
    if (!options.bias) return;
    gate_bias_ = DeclareBias(context, "gate_proj.bias", width_);
    up_bias_ = DeclareBias(context, "up_proj.bias", width_);
    down_bias_ = DeclareBias(context, "down_proj.bias", dim_);
  }

  at::Tensor operator()(const at::Tensor& x) const override {
    const auto y = ops::SharedInputLinear(x, {*gate_, *up_});
    return AddBias(down_(ops::SwiGlu(AddBias(y[0], gate_bias_), AddBias(y[1], up_bias_))),
                   down_bias_);
  }
  FlopCount FlopsPerToken() const override {
    return {.matmul = 6 * static_cast<double>(dim_) * static_cast<double>(width_)};
  }
  // x, gate, up and their product.
  double ActivationsPerToken() const override { return static_cast<double>(dim_ + 3 * width_); }

 private:
  int64_t dim_, width_;
  Parameter gate_, up_, gate_bias_, up_bias_, down_bias_;
  OutputProjection down_;
};

}  // namespace

ChannelMixerVariant SwiGluVariant() {
  return VariantOf<SwiGluOptions, SwiGlu, ChannelMixer, PartContext>("swiglu");
}

}  // namespace halflife::model
