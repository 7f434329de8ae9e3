// The gated convolution of Based's language models (Arora et al., 2024): (u, g) = W_in x + b_in and
// y = W_o (silu(conv(u)) * g) + b_o, with a short convolution. It differs from BaseConv, which the
// small models of associative recall use, in two points: W_in expands x by the factor `expand`, and
// there is no inner residual.
#include <ATen/TensorOperators.h>

#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"

namespace halflife::model {
namespace {

struct GatedConvOptions : OptionsOf<GatedConvOptions> {
  int64_t expand = 4;  // W_in has expand * D rows; one half is u, the other half is the gate
  int64_t conv_size = 3;
  std::vector<Option> Fields() override { return {{"expand", &expand}, {"conv_size", &conv_size}}; }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    const bool even = (expand % 2 == 0 || sizes.model_dim % 2 == 0);
    problems.Require(even, "expand ", expand, " of model_dim ", sizes.model_dim,
                     " must be an even number of channels, because half of them are the gate.");
    problems.Require(expand <= kMaxWidth / sizes.model_dim, "expand ", expand, " of model_dim ",
                     sizes.model_dim, " is too wide. Use at most ", kMaxWidth / sizes.model_dim,
                     "; 4 is usual.");
  }
};

class GatedConv : public Mixer {
 public:
  GatedConv(const GatedConvOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        width_(options.expand * dim_ / 2),
        in_(DeclareMatrix(context, "in_proj.weight",
                          {.out = 2 * width_,
                           .in = dim_,
                           .init_scale = context.value_init_scale,
                           .parts = EqualParts(2, width_)})),
        in_bias_(DeclareBias(context, "in_proj.bias", 2 * width_)),
        conv_(context, "conv", {.channels = width_, .taps = options.conv_size, .silu = true}),
        out_(context, width_, /*bias=*/true) {}

  MixerTraits traits() const override { return {.state = {conv_.tail("tail")}}; }

  MixerOutput Forward(const MixerCall& call) const override {
    const bool carried = call.carried();
    const std::vector<at::Tensor> parts = Project(call.x);
    MixerOutput result;
    if (call.want_state) result.state.tensors.resize(1);
    const at::Tensor u = conv_({.x = parts[0],
                                .slice = call.slice,
                                .tail = carried ? call.initial->tensors[0] : at::Tensor()},
                               call.want_state ? &result.state.tensors[0] : nullptr);
    result.y = out_(u * parts[1]);
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    const std::vector<at::Tensor> parts = Project(x);
    return out_(conv_.Step(parts[0], state.tensors[0]) * parts[1]);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    return {.matmul = 6 * static_cast<double>(dim_ * width_),
            .mixing = conv_.flops_per_token() + static_cast<double>(width_)};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, u before and after the convolution, the gate, and the product.
    return static_cast<double>((dim_ + 4 * width_) * bytes_per_element);
  }

 private:
  // u and the gate, [..., expand D / 2] each.
  std::vector<at::Tensor> Project(const at::Tensor& x) const {
    return AddBias(ops::Linear(x, *in_), in_bias_).split(width_, -1);
  }

  int64_t dim_, width_;
  Parameter in_, in_bias_;
  ShortConvolution conv_;
  OutputProjection out_;
};

}  // namespace

MixerVariant GatedConvVariant() {
  return MixerVariantOf<GatedConvOptions, GatedConv>("gated_conv");
}

}  // namespace halflife::model
