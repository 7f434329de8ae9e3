// The base class of linear mixers: everything around a recurrence (recurrence.h).
//
//   q, k, v = projections of x, with biases, short convolutions and feature maps
//   o       = recurrence(q, k, v)
//   y       = o_proj(RMSNorm(o) * silu(gate)), where the norm is over the channels of each head or
//             of all heads
//
// Biases, convolutions, maps, norm and gate are optional. Parameters are named as in fla. A derived
// mixer provides its options, a LinearForm and a recurrence.
//
// Shapes: B batch, T seq_len, H heads of the output, Hq, Hk and Hv heads of q, k and v, K and V
// head dims, F features.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <vector>

#include "model/activation.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/linear/feature_map.h"
#include "model/mixers/linear/recurrence.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"

namespace halflife::model {

// The number and widths of the heads of a linear mixer. The largest number of heads is that of the
// output, and the others divide it.
struct LinearHeads {
  int64_t num_q_heads = 0, num_k_heads = 0, num_v_heads = 0;  // Hq, Hk, Hv
  int64_t head_dim_k = 0, head_dim_v = 0;                     // K, V

  int64_t num_heads() const { return std::max({num_q_heads, num_k_heads, num_v_heads}); }  // H
  // Widths of the projections and of the output, in channels.
  int64_t q_dim() const { return num_q_heads * head_dim_k; }
  int64_t k_dim() const { return num_k_heads * head_dim_k; }
  int64_t v_dim() const { return num_v_heads * head_dim_v; }
  int64_t output_dim() const { return num_heads() * head_dim_v; }
};

// Options of the heads as widths relative to model_dim.
struct LinearHeadOptions : OptionsOf<LinearHeadOptions> {
  int64_t num_heads, num_kv_heads = 0;  // 0: num_heads
  double expand_k, expand_v;            // total width of all heads, as a factor of model_dim
  // Computed by Resolve.
  int64_t head_dim_k = 0, head_dim_v = 0;

  LinearHeadOptions(int64_t heads, double k, double v)
      : num_heads(heads), expand_k(k), expand_v(v) {}
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

  // Requires that the options are resolved.
  LinearHeads heads() const {
    return {num_heads, num_kv_heads, num_kv_heads, head_dim_k, head_dim_v};
  }
};

// The options that retention and gla share.
struct GatedHeadOptions : OptionsOf<GatedHeadOptions, LinearHeadOptions> {
  bool use_output_gate = true, norm_affine = true;
  std::string feature_map = "none";  // name of an activation

  using OptionsOf::OptionsOf;
  std::vector<Option> Fields() override;
};

// The function of the output gate.
enum class OutputGate { kNone, kSilu, kSigmoid };

// The parts of a LinearMixer that differ between mixers.
struct LinearForm {
  using MakeMap = std::function<std::shared_ptr<const FeatureMap>(const PartContext&)>;

  // Keys and values per token and head. k and v have the heads of each step, one step after the
  // other, and the recurrence combines them.
  int64_t num_steps = 1;
  // Prefixes of the parameter names of the projections and convolutions of q, k and v.
  std::array<const char*, 3> names = {"q", "k", "v"};
  bool k_is_decay = false;            // the projection of k also gives the decays
  int64_t conv_size = 0;              // taps of a short convolution of q, k and v; 0: none
  bool conv_silu_qk = true;           // SiLU after the convolutions of q and k
  bool conv_silu_v = true;            // SiLU after the convolution of v
  bool bias = false;                  // whether the projections have biases
  MakeMap make_map_q, make_map_k;     // feature maps. Without make_map_k, k uses make_map_q.
  std::string v_activation = "none";  // of the values, after the projection or the convolution
  // Called after the projections and before the output matrix are declared.
  RecurrenceFactory make_recurrence;
  // Declares the matrices of the recurrence next to the projections, so that an arena stores all as
  // one matrix. Otherwise they follow the convolutions, as in older mixers: the order of parameters
  // determines the bits of a run.
  bool recurrence_next_to_projections = false;
  OutputGate output_gate = OutputGate::kSilu;
  // The gate is the product of two matrices, of this inner width; 0: one matrix.
  int64_t gate_rank = 0;
  bool gate_bias = true;           // whether the product of two matrices has a bias
  const char* norm_name = "";      // parameter name of the norm of the output; empty: no norm
  bool norm_affine = true;         // whether this norm has a weight
  bool norm_across_heads = false;  // whether it is over all channels instead of those of each head
  double norm_eps = 0;             // eps of this norm; 0: that of the model's norms
};
// Makes a feature map from an activation (activation.h), for heads with `dim` channels.
std::shared_ptr<const FeatureMap> MakeActivationMap(const std::string& name, int64_t dim);
// Returns the form that the common options describe, without a recurrence.
LinearForm MakeLinearForm(const GatedHeadOptions& options);

class LinearMixer : public Mixer {
 public:
  LinearMixer(const LinearHeads& heads, const PartContext& context, const LinearForm& form);

  MixerTraits traits() const override;
  MixerOutput Forward(const MixerCall& call) const override;
  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override;
  at::Tensor StepOnInput(const NormedInput& x, const SequenceSlice& token, MixerState& state,
                         at::Tensor& first_values) const override;
  FlopCount FlopsPerToken(int64_t seq_len) const override;
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override;
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override;
  double WorkspaceBytes(const GpuBatch& batch) const override;

 private:
  struct Projected {
    Features q, k;                          // [B, T, Hq or Hk, F]
    ops::LinearPart v;                      // [B, T, Hv, V]
    std::vector<ops::LinearPart> products;  // of the recurrence's weights
    ops::LinearPart gate;                   // [B, T, H V], or undefined
    RecurrenceInputs Inputs(const at::Tensor& x) const;
  };
  // Maps the projections q, k and v [B, T, dim] before they are split into heads.
  using Parts = std::vector<ops::LinearPart>;
  using Convolution = std::function<Parts(const Parts& y)>;
  // InputWeights returns the matrices that are multiplied with the input. Project computes the
  // features from their products y.
  std::vector<at::Tensor> InputWeights() const;
  Projected Project(const Parts& y, const Convolution& convolve) const;
  // Returns true if one kernel can add the bias of q or k and apply its feature map, because no
  // convolution lies between the two.
  bool IsMappedWithBias(size_t index) const;
  // Adds the biases to q, k and v, and applies the maps for which IsMappedWithBias, in one pass.
  Parts AddBiases(std::span<const ops::LinearPart> y) const;
  Parts Convolve(const Parts& y, const MixerCall& call, MixerState* after) const;
  Features Map(size_t index, const ops::LinearPart& y) const;
  at::Tensor Output(const at::Tensor& heads, const ops::LinearPart& gate) const;
  void DeclareGate(const PartContext& context);
  // Declares the second of the two matrices of a gate with a gate_rank, and its bias.
  void DeclareOuterGate(const PartContext& context);
  void DeclareConvolutions(const PartContext& context);
  void MakeMaps(const PartContext& context);
  // Returns the widths of the projections of q, k and v.
  std::array<int64_t, 3> ProjectionDims() const;
  bool has_norm() const { return *form_.norm_name != 0; }

  LinearHeads heads_;
  LinearForm form_;
  int64_t model_dim_;
  double norm_eps_;
  std::array<std::shared_ptr<const FeatureMap>, 2> maps_;  // of q and k
  std::array<Parameter, 3> projections_, biases_;          // of q, k and v
  std::vector<ShortConvolution> convs_;                    // of q, k and v; empty: none
  Activation v_activation_;
  // The matrix of the gate. With a gate_rank, the inner one of its two matrices, the outer one and
  // the bias.
  Parameter gate_, outer_gate_, gate_bias_;
  Parameter norm_;
  std::unique_ptr<Recurrence> recurrence_;
  // Number of state tensors of the recurrence. The tails of the convolutions follow.
  size_t num_recurrent_ = 0;
  OutputProjection out_;
};

// A linear mixer that is the form of its options and nothing else.
template <typename Options, LinearForm (*kMakeForm)(const Options&)>
class LinearMixerOf : public LinearMixer {
 public:
  LinearMixerOf(const Options& options, const PartContext& context)
      : LinearMixer(options.heads(), context, kMakeForm(options)) {}
};
template <typename Options, LinearForm (*kMakeForm)(const Options&)>
MixerVariant LinearVariantOf(const char* name) {
  return MixerVariantOf<Options, LinearMixerOf<Options, kMakeForm>>(name);
}

}  // namespace halflife::model
