// What Based and ReBased share: q and k of a few channels a head (feature_dim), a similarity of
// them of degree 2, s = q.k / sqrt(feature_dim), and outputs that are divided by its sum,
//
//   o_t = sum over j <= t of kappa(s_tj) v_j / (sum over j <= t of kappa(s_tj) + eps),
//
// then o_proj. Values have floor(model_dim / num_heads) channels a head, so that the heads together
// may be narrower than the model. Nothing is rotated, gated or decayed, and no projection has a
// bias. The state is the sum of the packed features of k (kernels/polynomial_attention/features.h)
// with v, and alone.
//
// Parameters are named as in fla (q_proj, k_proj, v_proj, o_proj); the authors' proj_q, proj_k,
// proj_v and proj_o are the same matrices.
#pragma once

#include <functional>

#include "kernels/polynomial_attention/features.h"
#include "model/mixers/variants.h"
#include "model/output_projection.h"
#include "ops/linear/linear.h"

namespace halflife::model {

// Options of both; each mixer's own struct derives from it.
struct PolynomialOptions : OptionsOf<PolynomialOptions> {
  int64_t num_heads = 12, feature_dim = 16;
  double eps = 1e-12;
  int64_t head_dim_v = 0;  // set by Resolve

  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
  int64_t key_dim() const { return num_heads * feature_dim; }
  int64_t value_dim() const { return num_heads * head_dim_v; }
};

// What stands between the projections and the heads of q and k, [..., H d] -> [..., H d]; null:
// nothing.
struct QueryKeyMaps {
  struct Mapped {
    at::Tensor q, k;
  };
  std::function<Mapped(const ops::LinearPart& q, const ops::LinearPart& k)> both;
  // Whether gradients of its inputs go to the places that the parts have.
  bool takes_places = false;
  int64_t num_activations = 0;  // that a backward keeps for both, per token, in fp32
};

// How a mixer departs from the family.
struct PolynomialForm {
  kernels::PolynomialWeights weights;  // of kappa
  // kappa is the sum of the channels' squares, q_a^2 k_a^2 / d, in place of that.
  bool elementwise = false;
  // Declares what the maps learn, between the projections and the output.
  std::function<QueryKeyMaps(const PartContext&)> make_maps = {};
};

class PolynomialMixer : public Mixer {
 public:
  // `options` are resolved.
  PolynomialMixer(const PolynomialOptions& options, const PartContext& context,
                  const PolynomialForm& form);

  MixerTraits traits() const override;
  MixerOutput Forward(const MixerCall& call) const override;
  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override;
  FlopCount FlopsPerToken(int64_t seq_len) const override;
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // [..., H, d], [..., H, V]
    ops::ColumnPlace q_gradient, k_gradient, v_gradient;
  };
  Heads Project(const at::Tensor& x) const;
  int64_t num_features() const;

  PolynomialOptions options_;
  int64_t model_dim_;
  kernels::PolynomialWeights weights_;
  bool elementwise_;
  Parameter q_, k_, v_;
  QueryKeyMaps maps_;
  OutputProjection out_;
};

}  // namespace halflife::model
