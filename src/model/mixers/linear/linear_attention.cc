// Linear attention (Katharopoulos et al., 2020): o_t = phi(q_t) S_t / (phi(q_t) z_t), where S is
// the sum of phi(k)^T v and z is the sum of phi(k), both without decay. With `normalise` off and
// `output_norm` on it is fla's LinearAttention, whose option and parameter names it uses.
#include <ATen/TensorOperators.h>

#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"

namespace halflife::model {
namespace {

constexpr double kDenominatorEps = 1e-10;  // as in fla
constexpr double kSumEps = 1e-4;

struct LinearAttentionOptions : OptionsOf<LinearAttentionOptions, LinearHeadOptions> {
  std::string feature_map = "elu";
  bool tie_feature_map_qk = false;
  bool norm_q = false, norm_k = false;  // divide the features by their sum
  bool normalise = true;
  bool output_norm = false, norm_affine = true;

  LinearAttentionOptions() : OptionsOf(/*heads=*/4, /*k=*/1, /*v=*/1) {}
  std::vector<Option> Fields() override {
    std::vector<Option> fields = LinearHeadOptions::Fields();
    fields.push_back({"feature_map", &feature_map, {.choices = FeatureMapNames()}});
    fields.push_back({"tie_feature_map_qk", &tie_feature_map_qk});
    fields.push_back({"norm_q", &norm_q});
    fields.push_back({"norm_k", &norm_k});
    fields.push_back({"normalise", &normalise});
    fields.push_back({"output_norm", &output_norm});
    fields.push_back({"norm_affine", &norm_affine});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    LinearHeadOptions::Resolve(sizes, problems);
    const bool exp = feature_map == "exp";
    problems.Require(!exp || normalise,
                     "feature_map exp without normalise overflows. Use normalise, or another "
                     "feature_map.");
    problems.Require(!exp || !(norm_q || norm_k),
                     "feature_map exp with norm_q or norm_k. Use only normalise.");
  }
};

// Divides the features of another map by their sum.
class DividedBySum : public FeatureMap {
 public:
  explicit DividedBySum(std::shared_ptr<const FeatureMap> inner) : inner_(std::move(inner)) {}
  Features operator()(const at::Tensor& x) const override {
    const at::Tensor y = (*inner_)(x).x;
    return {y / (y.sum(-1, /*keepdim=*/true) + kSumEps)};
  }
  int64_t width() const override { return inner_->width(); }
  int64_t num_matrix_elements() const override { return inner_->num_matrix_elements(); }
  int64_t num_activations() const override { return inner_->num_activations() + inner_->width(); }

 private:
  std::shared_ptr<const FeatureMap> inner_;
};

LinearForm MakeLinearAttentionForm(const LinearAttentionOptions& options) {
  // Tied maps share their parameters. norm_q and norm_k still apply separately.
  const auto first = std::make_shared<std::shared_ptr<const FeatureMap>>();
  const auto make_map = [=](const PartContext& context,
                            bool divided) -> std::shared_ptr<const FeatureMap> {
    std::shared_ptr<const FeatureMap> map = *first;
    if (map == nullptr || !options.tie_feature_map_qk)
      *first = map = MakeFeatureMap(options.feature_map, context, options.head_dim_k);
    if (!divided) return map;
    return std::make_shared<DividedBySum>(std::move(map));
  };
  return {
      .make_map_q = [=](const PartContext& context) { return make_map(context, options.norm_q); },
      .make_map_k = [=](const PartContext& context) { return make_map(context, options.norm_k); },
      .make_recurrence = MakeDecayRecurrence(
          {.normaliser = options.normalise ? Normaliser::kKeys : Normaliser::kNone,
           .normaliser_eps = kDenominatorEps}),
      .output_gate = OutputGate::kNone,
      .norm_name = options.output_norm ? "norm.weight" : "",
      .norm_affine = options.norm_affine};
}

}  // namespace

MixerVariant LinearAttentionVariant() {
  return LinearVariantOf<LinearAttentionOptions, MakeLinearAttentionForm>("linear_attention");
}

}  // namespace halflife::model
