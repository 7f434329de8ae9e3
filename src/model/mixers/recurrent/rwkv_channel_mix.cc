// Channel mixing of RWKV (Peng et al., 2023), the half of its block that replaces the MLP. It reads
// a per-channel mix of a token and the one before it, and is therefore a mixer here:
//
//   rwkv4:  y = sigmoid(W_r mix(m_r)) * W_v relu(W_k mix(m_k))^2,  mix(m) = m x_t + (1 - m) x_{t-1}
//   rwkv7:  y = W_v relu(W_k (x_t + x_k (x_{t-1} - x_t)))^2
//
// A block of RWKV is two layers without a channel mixer: one with its time mixing, one with this
// mixer. Parameters are named as in RWKV's models.
#include <ATen/TensorOperators.h>

#include <cmath>
#include <functional>
#include <vector>

#include "model/activation.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/swiglu.h"
#include "ops/rows/token_shift.h"

namespace halflife::model {
namespace {

struct RwkvChannelMixOptions : OptionsOf<RwkvChannelMixOptions> {
  std::string form = "rwkv4";
  int64_t width = 0;  // 0: 4 model_dim
  std::vector<Option> Fields() override {
    return {{"form", &form, {.choices = {"rwkv4", "rwkv7"}}}, {"width", &width, {.min = 0}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList&) override {
    if (width == 0) width = 4 * sizes.model_dim;
  }
};

class RwkvChannelMix : public Mixer {
 public:
  RwkvChannelMix(const RwkvChannelMixOptions& options, const PartContext& context)
      : dim_(context.model_dim()), width_(options.width), has_receptance_(options.form == "rwkv4") {
    const double to_last =
        1 - static_cast<double>(context.layer) / static_cast<double>(context.sizes.num_layers);
    if (has_receptance_) {
      const auto mix = [to_last](double place) { return std::pow(place, to_last); };
      mix_k_ = DeclareMix(context, "time_mix_k", mix);
      mix_r_ = DeclareMix(context, "time_mix_r", mix);
      receptance_ =
          DeclareMatrix(context, "receptance.weight", {.out = dim_, .in = dim_, .float8 = true});
    } else {
      mix_k_ = DeclareMix(context, "x_k", [power = std::pow(to_last, 4)](double place) {
        return 1 - std::pow(place, power);
      });
    }
    key_ = DeclareMatrix(
        context, "key.weight",
        {.out = width_, .in = dim_, .init_scale = context.value_init_scale, .float8 = true});
    value_ = OutputProjection(context, width_, /*bias=*/false, {.name = "value"});
  }

  MixerTraits traits() const override {
    return {.state = {{.name = "x_tail", .shape = {1, dim_}, .exchange = StateExchange::kTail}}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const ops::TokenShiftInputs shift = {
        .x = call.x,
        .mixes = Mixes(),
        .tail = call.carried() ? call.initial->tensors[0] : at::Tensor(),
        .starts = call.slice.starts,
        .segment = call.slice.segment};
    MixerOutput result = {.y = Output(ops::TokenShift(shift)), .state = {}};
    if (call.want_state) result.state.tensors = {KeptTail(ops::TokenShiftTail(shift))};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    at::Tensor& tail = state.tensors[0];
    const at::Tensor y =
        Output(ops::TokenShift({.x = x.unsqueeze(1), .mixes = Mixes(), .tail = tail}));
    tail.select(1, 0).copy_(x);
    return y.squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_), width = static_cast<double>(width_);
    return {.matmul = 4 * dim * width + (has_receptance_ ? 2 * dim * dim : 0),
            .mixing = 3 * num_mixes() * dim};
  }
  // x, its mixes, the inner channels before and after their activation, and with a receptance both
  // factors of the output.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const double of_dim = 1 + num_mixes() + (has_receptance_ ? 2 : 0);
    return (of_dim * static_cast<double>(dim_) + 2 * static_cast<double>(width_)) *
           static_cast<double>(bytes_per_element);
  }

 private:
  // `value` maps the place of a channel, from 0 to below 1, to its mix.
  Parameter DeclareMix(const PartContext& context, const std::string& name,
                       const std::function<double(double place)>& value) const {
    const auto dim = static_cast<double>(dim_);
    return DeclareFp32(context, name, {dim_}, Init::Of([=](int64_t channel, double) {
                         return value(static_cast<double>(channel) / dim);
                       }));
  }

  double num_mixes() const { return has_receptance_ ? 2 : 1; }
  // Returns the weights of the token itself.
  std::vector<at::Tensor> Mixes() const {
    if (has_receptance_) return {*mix_k_, *mix_r_};
    return {1 - *mix_k_};
  }
  at::Tensor Output(const std::vector<at::Tensor>& mixed) const {
    const at::Tensor y = value_(squared_relu_(ops::Linear(mixed[0], *key_)));
    return has_receptance_ ? ops::Glu(ops::Linear(mixed[1], *receptance_), y) : y;
  }

  int64_t dim_, width_;
  bool has_receptance_;
  Activation squared_relu_ = Activation::Named("relu2");
  Parameter mix_k_, mix_r_, receptance_, key_;
  OutputProjection value_;
};

}  // namespace

MixerVariant RwkvChannelMixVariant() {
  return MixerVariantOf<RwkvChannelMixOptions, RwkvChannelMix>("rwkv_channel_mix");
}

}  // namespace halflife::model
