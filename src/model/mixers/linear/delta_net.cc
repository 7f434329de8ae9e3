// DeltaNet (Schlag et al., 2021; Yang et al., 2024): linear attention that replaces the value of a
// key instead of adding to it,
//
//   S_t = (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,   beta_t = sigmoid(W_b x_t)
//
// with |q_t| = |k_t| = 1 after a short convolution. Parameters are named as in fla.
#include "model/mixers/linear/delta_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"

namespace halflife::model {
namespace {

struct DeltaNetOptions : OptionsOf<DeltaNetOptions> {
  LinearHeadOptions widths{/*heads=*/4, /*k=*/1, /*v=*/1};
  bool use_beta = true, use_output_gate = false, use_short_conv = true;
  int64_t conv_size = 4;
  bool allow_neg_eigval = false;
  std::string qk_norm = "l2", qk_activation = "silu";

  std::vector<Option> Fields() override {
    return {{"num_heads", &widths.num_heads},
            {"expand_k", &widths.expand_k},
            {"expand_v", &widths.expand_v},
            {"use_beta", &use_beta},
            {"use_output_gate", &use_output_gate},
            {"use_short_conv", &use_short_conv},
            {"conv_size", &conv_size},
            {"allow_neg_eigval", &allow_neg_eigval},
            {"qk_norm", &qk_norm, {.choices = {"l2", "sum"}}},
            {"qk_activation", &qk_activation, {.choices = {"silu", "relu", "elu", "none"}}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    widths.Resolve(sizes, problems);
  }
  LinearHeads heads() const { return widths.heads(); }
};

LinearForm MakeDeltaNetForm(const DeltaNetOptions& options) {
  LinearForm form = {.recurrence_next_to_projections = true,
                     .output_gate = options.use_output_gate ? OutputGate::kSilu : OutputGate::kNone,
                     .norm_name = "o_norm.weight"};
  if (options.use_short_conv) {
    form.conv_size = options.conv_size;
    form.conv_silu_qk = options.qk_activation == "silu";
  } else {
    form.v_activation = "silu";
  }
  const bool in_convolution = options.use_short_conv && form.conv_silu_qk;
  const std::string map = in_convolution ? "none" : options.qk_activation;
  form.make_map_q = [map, dim = options.widths.head_dim_k](
                        const PartContext& context) -> std::shared_ptr<const FeatureMap> {
    if (map == "elu") return MakeFeatureMap("elu", context, dim);  // elu + 1, as in fla
    return MakeActivationMap(map, dim);
  };
  form.make_recurrence = MakeDeltaRecurrence({.use_beta = options.use_beta,
                                              .beta_scale = options.allow_neg_eigval ? 2.0 : 1.0,
                                              .norm_by_sum = options.qk_norm == "sum"});
  return form;
}

}  // namespace

MixerVariant DeltaNetVariant() {
  return LinearVariantOf<DeltaNetOptions, MakeDeltaNetForm>("delta_net");
}

}  // namespace halflife::model
