// y = W act(x) + b.
#include "model/activation.h"
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

struct ToyOptions : OptionsOf<ToyOptions> {
  std::string activation = "relu";
  bool bias = false;
  std::vector<Option> Fields() override {
    return {{"activation", &activation, {.choices = Activation::Names()}}, {"bias", &bias}};
  }
};

class Toy : public ChannelMixer {
 public:
  Toy(const ToyOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        activation_(Activation::Named(options.activation)),
        down_(DownProjection(context, dim_, options.bias)) {}

  at::Tensor operator()(const at::Tensor& x) const override { return down_(activation_(x)); }
  FlopCount FlopsPerToken() const override {
    return {.matmul = 2 * static_cast<double>(dim_) * static_cast<double>(dim_)};
  }
  // x before and after the activation.
  double ActivationsPerToken() const override { return 2 * static_cast<double>(dim_); }

 private:
  int64_t dim_;
  Activation activation_;
  OutputProjection down_;
};

}  // namespace

ChannelMixerVariant ToyChannelMixerVariant() {
  return VariantOf<ToyOptions, Toy, ChannelMixer, PartContext>("toy");
}

}  // namespace halflife::model
