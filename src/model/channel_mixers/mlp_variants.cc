// The channel mixers with wider inner channels: mlp, glu and swiglu.
#include "model/channel_mixers/variants.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "model/activation.h"
#include "ops/linear/linear.h"
#include "ops/rows/swiglu.h"

namespace halflife::model {
void WidthOptions::Resolve(double derived, int64_t multiple, ProblemList& problems) {
  if (width > 0) return;
  const bool sane = ratio > 0 && ratio <= 1e6;
  problems.Require(sane, "ratio is ", ratio, ". Use a number above 0 (4 is usual).");
  if (!sane) return;
  const auto wanted = static_cast<int64_t>(derived);
  const int64_t rounded = (wanted + multiple - 1) / multiple * multiple;
  problems.Require(rounded >= 1 && rounded <= kMaxWidth, "ratio is ", ratio,
                   ", which gives a width of ", rounded,
                   ". Use a ratio that gives a width of 1 to ", kMaxWidth, ".");
  width = rounded;
}

std::vector<Option> ActivatedOptions::Fields() {
  return {{"width", &inner.width, {.min = 0}},
          {"ratio", &inner.ratio},
          {"activation", &activation, {.choices = Activation::Names()}},
          {"bias", &bias}};
}

Projection::Projection(const PartContext& context, const std::string& name,
                       const MatrixShape& shape, bool with_bias)
    : weight(DeclareMatrix(context, name + ".weight", shape)) {
  if (with_bias) bias = DeclareBias(context, name + ".bias", shape.out);
}

// The scale is part of the standard deviation of the initial values, as in DeclareMatrix. Scaling
// the drawn values afterwards would round some of them differently in the last bit.
OutputProjection DownProjection(const PartContext& context, int64_t width, bool with_bias) {
  return {context,
          width,
          with_bias,
          {.name = "down_proj", .init = context.MatrixInit(width, context.output_init_scale)}};
}

namespace {

// The MLP of a transformer: y = W_down act(W_up x). GPT-2 uses gelu_tanh and biases; Primer uses
// relu2.
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
        up_(context, "up_proj",
            {.out = width_, .in = dim_, .init_scale = context.value_init_scale, .float8 = true},
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

namespace {

// Gated linear unit: y = W_down (act(W_gate x) * W_up x) (Shazeer, 2020). It is GEGLU if act is
// gelu, and the original GLU if act is sigmoid.
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
    const MatrixShape shape = {
        .out = width_, .in = dim_, .init_scale = context.value_init_scale, .float8 = true};
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

namespace {

// SwiGLU: y = W_down (silu(W_gate x) * W_up x) (Shazeer, 2020), as in Llama and in fla's models. It
// is not a case of Glu, because it uses a fused kernel and declares its parameters in its own
// order.
struct SwiGluOptions : OptionsOf<SwiGluOptions> {
  WidthOptions inner;
  bool bias = false;
  // Factors of the gate before its SiLU, and of the output (Falcon-H1).
  double gate_multiplier = 1, down_multiplier = 1;
  std::vector<Option> Fields() override {
    return {{"width", &inner.width, {.min = 0}},
            {"ratio", &inner.ratio},
            {"bias", &bias},
            {"gate_multiplier", &gate_multiplier},
            {"down_multiplier", &down_multiplier}};
  }
  // The width is 2/3 of ratio * model_dim, because the gate adds a third matrix. It is rounded up
  // to a multiple of 256, as in fla.
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    inner.Resolve(static_cast<double>(sizes.model_dim) * inner.ratio * 2 / 3, 256, problems);
    problems.Require(std::isfinite(gate_multiplier) && std::isfinite(down_multiplier),
                     "gate_multiplier is ", gate_multiplier, " and down_multiplier ",
                     down_multiplier, ". Use finite numbers (1 is usual).");
  }
};

class SwiGlu : public ChannelMixer {
 public:
  SwiGlu(const SwiGluOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        width_(options.inner.width),
        gate_multiplier_(options.gate_multiplier),
        down_multiplier_(options.down_multiplier) {
    const MatrixShape shape = {
        .out = width_, .in = dim_, .init_scale = context.value_init_scale, .float8 = true};
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
    const at::Tensor gate = Times(AddBias(y[0], gate_bias_), gate_multiplier_);
    return Down(ops::SwiGlu(gate, AddBias(y[1], up_bias_)));
  }
  at::Tensor Apply(const NormedInput& x) const override {
    if (!gate_bias_.declared() && gate_multiplier_ == 1)
      if (const auto inner = x.SwiGluProducts(*gate_, *up_)) return Down(*inner);
    return (*this)(x.Tensor());
  }
  FlopCount FlopsPerToken() const override {
    return {.matmul = 6 * static_cast<double>(dim_) * static_cast<double>(width_)};
  }
  // x, gate, up and their product.
  double ActivationsPerToken() const override { return static_cast<double>(dim_ + 3 * width_); }

 private:
  static at::Tensor Times(const at::Tensor& x, double factor) {
    return factor == 1 ? x : x * factor;
  }
  at::Tensor Down(const at::Tensor& inner) const {
    return Times(AddBias(down_(inner), down_bias_), down_multiplier_);
  }
  int64_t dim_, width_;
  double gate_multiplier_, down_multiplier_;
  Parameter gate_, up_, gate_bias_, up_bias_, down_bias_;
  OutputProjection down_;
};

}  // namespace

ChannelMixerVariant SwiGluVariant() {
  return VariantOf<SwiGluOptions, SwiGlu, ChannelMixer, PartContext>("swiglu");
}

}  // namespace halflife::model
