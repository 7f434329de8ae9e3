// xPos (Sun et al., 2022, "A length-extrapolatable transformer"): rotary positions whose products
// also decay with the distance. Each pair has its own rate, and pairs that rotate faster decay
// faster. The product of pair j of H is multiplied by ((j/H + gamma) / (1 + gamma))^(1 /
// scale_base) per token. gamma and scale_base must be chosen together.
#include <cmath>

#include "model/positions/attention_variant.h"
#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::model {
namespace {

struct XposOptions : OptionsOf<XposOptions> {
  double gamma = 0.4, scale_base = 512;
  std::vector<Option> Fields() override { return {{"gamma", &gamma}, {"scale_base", &scale_base}}; }
  // The log decay of a pair per token. `part` is the share of the pairs that rotate faster.
  double Rate(double part) const { return std::log((part + gamma) / (1 + gamma)) / scale_base; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(gamma > 0, "option gamma is ", gamma, ". Use a number above 0.");
    problems.Require(scale_base > 0, "option scale_base is ", scale_base,
                     ". Use a number of tokens above 0.");
    const double least = Rate(0) / ops::kFastestDecay * scale_base;
    problems.Require(gamma <= 0 || scale_base <= 0 || scale_base >= least, "option scale_base is ",
                     scale_base, " with gamma ", gamma, ", so the fastest pair keeps only ",
                     std::exp(Rate(0)), " of a product per token. Use a scale_base of at least ",
                     least, ".");
  }
};

class Xpos : public RotaryPositions {
 public:
  Xpos(const XposOptions& options, const AttentionLayer& layer) : RotaryPositions(layer) {
    const int64_t half = layer.head_dim / 2;
    for (int64_t channel = 0; channel < layer.head_dim; ++channel) {
      const double part = static_cast<double>(channel % half) / static_cast<double>(half);
      rates_.push_back(options.Rate(part));
    }
  }
  std::vector<double> decay_rates() const override { return rates_; }

 private:
  std::vector<double> rates_;
};

}  // namespace

PositionsVariant XposPositionsVariant() { return AttentionVariantOf<XposOptions, Xpos>("xpos"); }

}  // namespace halflife::model
