// The base class of mixers with a decayed state,
//
//   S_t = decay_t S_{t-1} + k_t^T v_t,   o_t = q_t S_t / sqrt(F)
//
// It provides the projections of q, k and v, an optional short convolution, feature maps, rotary
// positions and a normalizer, then RMSNorm over the channels of each head, a SiLU gate and o_proj.
// Parameters are named as in fla. A derived mixer provides its decay and a DecayedForm, which lists
// its other differences.
//
// Shapes: B batch, T seq_len, H query heads, Hk heads of k and v, K and V head dims, F features.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/decay/feature_map.h"
#include "model/mixers/variants.h"
#include "model/projections.h"

namespace halflife::ops {
struct DecayState;
struct DecayAttentionConfig;
}  // namespace halflife::ops

namespace halflife::model {

// The number and widths of the heads of a linear mixer.
struct LinearHeadOptions : OptionsOf<LinearHeadOptions> {
  int64_t num_heads, num_kv_heads = 0;  // 0: num_heads
  double expand_k, expand_v;            // total width of all heads, as a factor of model_dim
  // Computed by Resolve.
  int64_t head_dim_k = 0, head_dim_v = 0;

  LinearHeadOptions(int64_t heads, double k, double v)
      : num_heads(heads), expand_k(k), expand_v(v) {}
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

  int64_t key_dim() const { return num_heads * head_dim_k; }
  int64_t value_dim() const { return num_heads * head_dim_v; }
  int64_t kv_key_dim() const { return num_kv_heads * head_dim_k; }
  int64_t kv_value_dim() const { return num_kv_heads * head_dim_v; }
};

// The options that retention and gla share.
struct DecayedOptions : OptionsOf<DecayedOptions, LinearHeadOptions> {
  bool use_output_gate = true, norm_affine = true;
  std::string feature_map = "none";  // name of an activation

  using OptionsOf::OptionsOf;
  std::vector<Option> Fields() override;
};

// Queries and keys of all heads, [B, T, H or Hk, F].
struct QueriesAndKeys {
  at::Tensor q, k;
};

// Computes the natural logarithm of the decay.
class LogDecay {
 public:
  virtual ~LogDecay() = default;
  // The matrices whose products with x the decay reads. They are multiplied together with the
  // projections.
  virtual std::vector<at::Tensor> Weights() const { return {}; }
  // `products` [B, T, *] has one product for each of Weights. Returns fp32 [H] or [H, K] if the
  // decay is the same for all tokens, else [B, T, Hk] or [B, T, Hk, K].
  virtual at::Tensor operator()(const at::Tensor& x,
                                std::span<const at::Tensor> products) const = 0;
  virtual bool constant() const { return false; }  // true: the same for all tokens
  virtual bool per_channel() const { return false; }

  // Applies the part of a decay that depends on absolute positions, not only on distances, to the
  // queries and keys.
  virtual QueriesAndKeys AtPositions(const QueriesAndKeys& features, const SequenceSlice&) const {
    return features;
  }
  virtual int64_t max_tokens() const { return 0; }  // as MixerTraits::max_tokens

  // The costs of the decay, per token.
  virtual int64_t num_matrix_elements() const { return 0; }
  virtual int64_t num_activations() const { return 0; }  // in the compute dtype
  virtual int64_t num_fp32_activations() const { return 0; }
};

// The divisor of a head's output.
enum class Normaliser {
  kNone,
  kKeys,           // q_t z_t, where z is the decayed sum of the keys in S
  kUnrotatedKeys,  // the same, with q and k before their rotation
};

// The properties of a mixer that differ within the family.
struct DecayedForm {
  using MakeMap = std::function<std::shared_ptr<const FeatureMap>(const PartContext&)>;
  using MakeDecay = std::function<std::unique_ptr<LogDecay>(const PartContext&)>;

  int64_t conv_size = 0;           // taps of a short convolution of q, k and v; 0: none
  bool bias = false;               // whether the projections have biases
  MakeMap make_map_q, make_map_k;  // feature maps. Without make_map_k, k uses make_map_q.
  double rope_theta = 0;           // base of the rotary frequencies of q and k; 0: no rotation
  std::vector<double> rotary_frequencies = {};  // [K/2]; replaces the frequencies of rope_theta
  // A factor on each query that depends on its position: `of` maps positions [B, T] int64 to
  // factors [B, T, H] fp64; empty: none. Layers with the same `key` share the computed factors, so
  // the key must contain every other value that `of` depends on.
  struct QueryScale {
    std::vector<double> key;
    std::function<at::Tensor(const at::Tensor& positions)> of;
  };
  QueryScale query_scale = {};
  // Divides each query by its ScoreSums, clamped to [1, 5e4]. This needs all earlier keys, so the
  // state grows. Requires a constant decay per head and no convolutions.
  bool score_norm = false;
  // Makes the decay and declares its parameters, after the projections and before the output
  // matrix. Empty: no decay.
  MakeDecay make_decay;
  bool allow_growth = false;  // a constant decay may exceed 1; requires a normaliser
  Normaliser normaliser = Normaliser::kNone;
  double normaliser_eps = 1e-30;
  bool scale_queries = true;  // multiplies queries by 1 / sqrt(F)
  bool use_output_gate = true;
  const char* norm_name = "";  // parameter name of the norm of each head's output; empty: no norm
  bool norm_affine = true;     // whether this norm has a weight
};
// The form that the common options describe.
DecayedForm FormOf(const DecayedOptions& options);

class DecayedMixer : public Mixer {
 public:
  // `heads` must be resolved.
  DecayedMixer(const LinearHeadOptions& heads, const PartContext& context, const DecayedForm& form);

  MixerTraits traits() const override;
  MixerOutput Forward(const MixerCall& call) const override;
  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override;
  FlopCount FlopsPerToken(int64_t seq_len) const override;
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override;
  double WorkspaceBytes(const GpuBatch& batch) const override;

 private:
  struct Heads {
    Features q, k;                // [B, T, H or Hk, F]; H / Hk query heads read each key head
    at::Tensor v;                 // [B, T, Hk, V]
    at::Tensor plain_q, plain_k;  // q and k before the rotation, for Normaliser::kUnrotatedKeys
    at::Tensor log_decay;         // in a shape of LogDecay, or undefined
    at::Tensor gate;              // [B, T, H V], or undefined
  };
  // Maps y [B, T, dim] before it is split into heads. The index 0, 1 or 2 stands for q, k or v.
  using Convolution = std::function<at::Tensor(const at::Tensor& y, size_t index)>;
  Heads Project(const at::Tensor& x, const SequenceSlice& slice, const Convolution& convolve) const;
  // Whether one kernel can add the bias of q or k and apply its feature map, because no convolution
  // lies between the two.
  bool IsMappedWithBias(size_t index) const;
  // Adds the biases to q, k and v, and applies the maps for which IsMappedWithBias, in one pass.
  std::vector<at::Tensor> AddBiases(std::span<const at::Tensor> y) const;
  at::Tensor Convolve(const at::Tensor& y, size_t index, const MixerCall& call,
                      MixerState* after) const;
  at::Tensor Output(const at::Tensor& o, const at::Tensor& gate) const;
  // Divides the queries by their ScoreSums. `keys` [B, N, Hk, K] are those of all tokens so far,
  // including the own ones.
  void NormScores(const at::Tensor& keys, const at::Tensor& positions, Heads& heads) const;
  ops::DecayAttentionConfig KernelConfig() const;
  kernels::DecayKind KernelDecay() const;
  void MakeMaps(const PartContext& context);

  double query_scale() const;
  // A state starts with the tensors of decay attention. The tails of the convolutions, or the keys
  // that score_norm reads, follow.
  bool has_norm() const { return *form_.norm_name != 0; }
  bool rotates() const { return form_.rope_theta > 0 || !form_.rotary_frequencies.empty(); }
  bool normalised() const { return form_.normaliser != Normaliser::kNone; }
  bool log_scaled() const { return form_.allow_growth || maps_[1]->has_log_scale(); }
  size_t num_memories() const { return 1 + normalised() + log_scaled(); }
  ops::DecayState MemoryOf(const MixerState& state) const;
  void Keep(const ops::DecayState& memory, MixerState& state) const;

  LinearHeadOptions heads_;
  DecayedForm form_;
  int64_t model_dim_;
  double norm_eps_;
  std::array<std::shared_ptr<const FeatureMap>, 2> maps_;  // of q and k
  std::array<Parameter, 3> projections_, biases_;          // of q, k and v
  std::vector<ShortConvolution> convs_;                    // of q, k and v; empty: none
  Parameter gate_, norm_;
  std::unique_ptr<LogDecay> decay_;  // null: none
  OutputProjection out_;
};

}  // namespace halflife::model
