// Lightning attention (Qin et al., 2024) as in MiniMax-01: linear attention with a constant decay
// per head and layer, and without a scale,
//
//   S_t = exp(-lambda_h) S_{t-1} + k_t^T v_t,   o_t = q_t S_t,   q, k, v = silu of projections
//   y_t = W_o (RMSNorm(o_t) sigmoid(W_g x_t))
//
// where the norm is over the channels of all heads.
#include <cmath>

#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/log_decay.h"

namespace halflife::model {
namespace {

constexpr double kLightningNormEps = 1e-6;  // of the output norm, as in transformers

struct LightningOptions : OptionsOf<LightningOptions> {
  int64_t num_heads = 4;
  int64_t head_dim = 0;  // 0: model_dim / num_heads
  std::string decay = "minimax";

  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads},
            {"head_dim", &head_dim, {.min = 0}},
            {"decay", &decay, {.choices = {"minimax", "linear"}}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (head_dim > 0) return;
    const bool fits = sizes.model_dim % num_heads == 0;
    problems.Require(fits, "num_heads ", num_heads, " does not divide model_dim ", sizes.model_dim,
                     ". Use a divisor of ", sizes.model_dim, ", or set head_dim.");
    if (fits) head_dim = sizes.model_dim / num_heads;
  }
  LinearHeads heads() const { return {num_heads, num_heads, num_heads, head_dim, head_dim}; }
};

LinearForm MakeLightningForm(const LightningOptions& options) {
  const auto make_decay = [options](const PartContext& context) {
    const LayerNumber layer = {.index = context.layer, .count = context.sizes.num_layers};
    return std::make_unique<FixedDecay>(options.decay == "minimax"
                                            ? MiniMaxLogDecays(options.num_heads, layer)
                                            : LinearLogDecays(options.num_heads, layer));
  };
  return {
      .make_map_q =
          [dim = options.head_dim](const PartContext&) { return MakeActivationMap("silu", dim); },
      .v_activation = "silu",
      .make_recurrence = MakeDecayRecurrence({.make_decay = make_decay, .scale_queries = false}),
      .output_gate = OutputGate::kSigmoid,
      .norm_name = "g_norm.weight",
      .norm_across_heads = true,
      .norm_eps = kLightningNormEps};
}

}  // namespace

MixerVariant LightningVariant() {
  return LinearVariantOf<LightningOptions, MakeLightningForm>("lightning");
}

}  // namespace halflife::model
