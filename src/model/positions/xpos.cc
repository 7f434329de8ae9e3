// xPos (Sun et al., 2022, "A length-extrapolatable transformer"): rotary positions whose products
// decay with the distance, each pair at its own rate, the faster the pair turns. Pair j of H loses
// ln((j/H + gamma) / (1 + gamma)) / scale_base a token; gamma and scale_base belong together.
#include <cmath>

#include "model/positions/attention_variant.h"

namespace halflife::model {
namespace {

struct XposOptions : OptionsOf<XposOptions> {
  double gamma = 0.4, scale_base = 512;
  std::vector<Option> Fields() override { return {{"gamma", &gamma}, {"scale_base", &scale_base}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(gamma > 0, "option gamma is ", gamma, "; a number above 0 would work");
    problems.Require(scale_base > 0, "option scale_base is ", scale_base,
                     "; a number of tokens above 0 would work");
  }
};

class Xpos : public RotaryPositions {
 public:
  Xpos(const XposOptions& options, const AttentionLayer& layer) : RotaryPositions(layer) {
    const int64_t half = layer.head_dim / 2;
    for (int64_t channel = 0; channel < layer.head_dim; ++channel) {
      const double part = static_cast<double>(channel % half) / static_cast<double>(half);
      rates_.push_back(std::log((part + options.gamma) / (1 + options.gamma)) / options.scale_base);
    }
  }
  std::vector<double> decay_rates() const override { return rates_; }

 private:
  std::vector<double> rates_;
};

}  // namespace

PositionsVariant XposPositionsVariant() { return AttentionVariantOf<XposOptions, Xpos>("xpos"); }

}  // namespace halflife::model
