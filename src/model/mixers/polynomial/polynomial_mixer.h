// The base class of Based and ReBased. q and k have few channels per head (feature_dim). Their
// similarity is a polynomial kappa of degree 2 of s = q.k / sqrt(feature_dim). Outputs are divided
// by the sum of similarities,
//
//   o_t = sum over j <= t of kappa(s_tj) v_j / (sum over j <= t of kappa(s_tj) + eps),
//
// followed by o_proj. There is no rotation, gate, decay or bias. Values have floor(model_dim /
// num_heads) channels per head, so all heads together may be narrower than the model. The state is
// the sum of the packed features of k (kernels/polynomial_attention/features.h) times v, and the
// sum of these features.
//
// Parameters are named as in fla (q_proj, k_proj, v_proj, o_proj); the authors' proj_q, proj_k,
// proj_v and proj_o are the same matrices.
#pragma once

#include <functional>

#include "kernels/polynomial_attention/features.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"

namespace halflife::model {

// The options of both mixers. Each mixer derives its own struct.
struct PolynomialOptions : OptionsOf<PolynomialOptions> {
  int64_t num_heads = 12, feature_dim = 16;
  double eps = 1e-12;
  int64_t head_dim_v = 0;  // computed by Resolve

  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
  int64_t key_dim() const { return num_heads * feature_dim; }
  int64_t value_dim() const { return num_heads * head_dim_v; }
};

// Maps the projections q and k, [..., H d] -> [..., H d], before they are split into heads.
// Without `both` they stay unchanged.
struct QueryKeyMaps {
  struct Mapped {
    at::Tensor q, k;
  };
  std::function<Mapped(const ops::LinearPart& q, const ops::LinearPart& k)> both;
  // Whether `both` writes the gradients of its inputs to LinearPart::gradient.
  bool takes_places = false;
  int64_t num_activations = 0;  // fp32 elements that backward keeps per token, for q and k together
};

// The properties of a mixer that differ within the family.
struct PolynomialForm {
  kernels::PolynomialWeights weights;  // coefficients of kappa
  // Replaces kappa by the sum of the channels' squares, q_a^2 k_a^2 / d.
  bool elementwise = false;
  // Makes the maps and declares their parameters, after the projections and before the output.
  std::function<QueryKeyMaps(const PartContext&)> make_maps = {};
};

class PolynomialMixer : public Mixer {
 public:
  // `options` must be resolved.
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
    ops::ColumnSlice q_gradient, k_gradient, v_gradient;
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
