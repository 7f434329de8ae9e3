// Gated linear attention (Yang et al., 2024). The decay is per key channel,
//
//   ln alpha_t = logsigmoid(W2 W1 x_t + b) / 16,
//
// and a short convolution of q, k and v is optional. As in fla's GLA, the rank 16 of the gate and
// its normaliser 16 are constants.
#include <limits>

#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/decay_gates.h"

namespace halflife::model {
namespace {

constexpr int64_t kGateRank = 16;
constexpr double kGateNormaliser = 16;

struct GlaOptions : OptionsOf<GlaOptions, GatedHeadOptions> {
  bool use_short_conv = false;
  int64_t conv_size = 4;
  double clamp_min = -std::numeric_limits<double>::infinity();  // lower bound of the log decay

  GlaOptions() : OptionsOf(/*heads=*/4, /*k=*/0.5, /*v=*/1) {}
  std::vector<Option> Fields() override {
    std::vector<Option> fields = GatedHeadOptions::Fields();
    fields.push_back({"use_short_conv", &use_short_conv});
    fields.push_back({"conv_size", &conv_size});
    fields.push_back({"clamp_min", &clamp_min});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    GatedHeadOptions::Resolve(sizes, problems);
    problems.Require(clamp_min <= 0, "option clamp_min is ", clamp_min,
                     "; it bounds a logarithm <= 0 from below");
  }
};

class GateDecay : public LogDecay {
 public:
  GateDecay(const GlaOptions& options, const PartContext& context)
      : head_dim_k_(options.head_dim_k),
        gate_{.scale = 1 / kGateNormaliser, .floor = options.clamp_min},
        num_elements_(kGateRank * (context.model_dim() + options.heads().k_dim())),
        num_keys_(options.heads().k_dim()) {
    in_ = DeclareMatrix(context, "gk_proj.0.weight", {.out = kGateRank, .in = context.model_dim()});
    out_ = DeclareMatrix(
        context, "gk_proj.1.weight",
        {.out = options.heads().k_dim(), .in = kGateRank, .heads = options.heads().num_k_heads});
    bias_ = DeclareFp32(context, "gk_proj.1.bias", {options.heads().k_dim()}, Init::Zeros());
  }

  std::vector<at::Tensor> Weights() const override { return {*in_}; }
  // products[0] = W1 x [B, T, 16] -> [B, T, Hk, K] fp32.
  at::Tensor operator()(const at::Tensor&,
                        std::span<const ops::LinearPart> products) const override {
    const at::Tensor logits = ops::Linear(products[0].y, *out_, products[0].gradient);
    return SplitHeads(ops::DecayGate(logits, *bias_, gate_), head_dim_k_);
  }
  std::optional<ops::LowRankDecay> ToLowRank(
      std::span<const ops::LinearPart> products) const override {
    return ops::LowRankDecay{
        .hidden = products[0].y.squeeze(1), .weight = *out_, .bias = *bias_, .gate = gate_};
  }

  bool per_channel() const override { return true; }
  int64_t num_matrix_elements() const override { return num_elements_; }
  int64_t num_activations() const override { return kGateRank + num_keys_; }  // W1 x, logits
  int64_t num_fp32_activations() const override { return num_keys_; }         // log decay

 private:
  int64_t head_dim_k_;
  ops::DecayGateConfig gate_;
  int64_t num_elements_, num_keys_;
  Parameter in_, out_, bias_;
};

LinearForm MakeGlaForm(const GlaOptions& options) {
  LinearForm form = MakeLinearForm(options);
  if (options.use_short_conv) form.conv_size = options.conv_size;
  form.make_recurrence = MakeDecayRecurrence({.make_decay = [options](const PartContext& context) {
    return std::make_unique<GateDecay>(options, context);
  }});
  return form;
}

}  // namespace

MixerVariant GlaVariant() { return LinearVariantOf<GlaOptions, MakeGlaForm>("gla"); }

}  // namespace halflife::model
