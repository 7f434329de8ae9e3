// What mixers with a decayed state share: q, k and v, an optional short convolution, feature map
// and rotation of them, the state S_t = decay_t S_{t-1} + k_t^T v_t read by o_t = q_t S_t /
// sqrt(F), perhaps divided by the same sum of the keys alone, then RMSNorm over each head's
// channels, a SiLU gate and o_proj. Parameters are named as in fla. A mixer of the family brings
// its decay and says what else it departs in.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/decay/feature_map.h"
#include "model/mixers/variants.h"
#include "model/output_projection.h"

namespace halflife::ops {
struct DecayState;
struct DecayAttentionConfig;
}  // namespace halflife::ops

namespace halflife::model {

// The heads of a linear mixer.
struct LinearHeadOptions : OptionsOf<LinearHeadOptions> {
  int64_t num_heads, num_kv_heads = 0;  // 0: num_heads
  double expand_k, expand_v;            // widths of all heads together, in model_dims
  // Set by Resolve.
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

// Options that retention and gla share.
struct DecayedOptions : OptionsOf<DecayedOptions, LinearHeadOptions> {
  bool use_output_gate = true, norm_affine = true;
  std::string feature_map = "none";  // an activation

  using OptionsOf::OptionsOf;
  std::vector<Option> Fields() override;
};

// Queries and keys of all heads, [B, T, H or Hk, F].
struct QueriesAndKeys {
  at::Tensor q, k;
};

// Where the logarithm of the decay comes from.
class LogDecay {
 public:
  virtual ~LogDecay() = default;
  // Matrices whose products with x it reads: computed together with the projections.
  virtual std::vector<at::Tensor> Weights() const { return {}; }
  // `products` [B, T, *], one of each of Weights. -> fp32 [H] or [H, K], the same for all tokens,
  // or [B, T, Hk], or [B, T, Hk, K].
  virtual at::Tensor operator()(const at::Tensor& x,
                                std::span<const at::Tensor> products) const = 0;
  virtual bool constant() const { return false; }  // the same for all tokens
  virtual bool per_channel() const { return false; }

  // What is left of a decay that follows from positions and not from distances alone: queries and
  // keys as they count at theirs.
  virtual QueriesAndKeys AtPositions(const QueriesAndKeys& features, const SequenceSlice&) const {
    return features;
  }
  virtual int64_t max_tokens() const { return 0; }  // of a row, as MixerTraits has it

  // Its own share of the costs, per token.
  virtual int64_t num_matrix_elements() const { return 0; }
  virtual int64_t num_activations() const { return 0; }  // in the compute dtype
  virtual int64_t num_fp32_activations() const { return 0; }
};

// The divisor of a head's output.
enum class Normaliser {
  kNone,
  kKeys,           // q_t z_t, z the sum of the keys that S holds
  kUnrotatedKeys,  // the same of q and k before their rotation
};

// How a mixer departs from the family.
struct DecayedForm {
  using MakeMap = std::function<std::shared_ptr<const FeatureMap>(const PartContext&)>;
  using MakeDecay = std::function<std::unique_ptr<LogDecay>(const PartContext&)>;

  int64_t conv_size = 0;           // taps of a short convolution of q, k and v; 0: none
  bool bias = false;               // of the projections
  MakeMap make_map_q, make_map_k;  // empty: none, of k that of q
  double rope_theta = 0;           // base of the rotation of q and k; 0: none
  std::vector<double> rotary_frequencies = {};  // of the pairs, [K/2], in place of rope_theta's
  // A factor of each query by its position, and what it depends on beside that: layers that share
  // that share the factors. `of`: [B, T] int64 -> [B, T, H] fp64; empty: none.
  struct QueryScale {
    std::vector<double> key;
    std::function<at::Tensor(const at::Tensor& positions)> of;
  };
  QueryScale query_scale = {};
  // Divides each query by its row's ScoreSums, kept between 1 and 5e4, which asks for all keys: the
  // state grows. With a constant decay per head and without convolutions.
  bool score_norm = false;
  // Declares what the decay learns, between the projections and the output. Empty: nothing decays.
  MakeDecay make_decay;
  bool allow_growth = false;  // the decay, a constant one, may lie above 1; with a normaliser
  Normaliser normaliser = Normaliser::kNone;
  double normaliser_eps = 1e-30;
  bool scale_queries = true;  // by 1 / sqrt(F)
  bool use_output_gate = true;
  // Name of the norm of each head's output, and whether it learns a weight. Empty: no norm.
  const char* norm_name = "";
  bool norm_affine = true;
};
// What their common options say.
DecayedForm FormOf(const DecayedOptions& options);

class DecayedMixer : public Mixer {
 public:
  // `heads` are resolved.
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
    Features q, k;                // [B, T, H or Hk, F]; H / Hk query heads read each
    at::Tensor v;                 // [B, T, Hk, V]
    at::Tensor plain_q, plain_k;  // before the rotation, where the normaliser reads them
    at::Tensor log_decay;         // as LogDecay gives it, or undefined
    at::Tensor gate;              // [B, T, H V], or undefined
  };
  // Maps y [B, T, dim], which is q, k or v by its index, before the split into heads.
  using Convolution = std::function<at::Tensor(const at::Tensor& y, size_t index)>;
  Heads Project(const at::Tensor& x, const SequenceSlice& slice, const Convolution& convolve) const;
  // Whether the map of q or k is applied along with its bias: nothing stands between them.
  bool IsMappedWithBias(size_t index) const;
  // The products of q, k and v with their biases, and mapped where that is so: one pass.
  std::vector<at::Tensor> AddBiases(std::span<const at::Tensor> y) const;
  at::Tensor Convolve(const at::Tensor& y, size_t index, const MixerCall& call,
                      MixerState* after) const;
  at::Tensor Output(const at::Tensor& o, const at::Tensor& gate) const;
  // By ScoreSums of keys [B, N, Hk, K], those before the heads' own included.
  void NormScores(const at::Tensor& keys, const at::Tensor& positions, Heads& heads) const;
  ops::DecayAttentionConfig KernelConfig() const;
  kernels::DecayKind KernelDecay() const;  // as the kernels see it
  void MakeMaps(const PartContext& context);

  double query_scale() const;
  // The first tensors of a state are those of decay attention; tails of convolutions follow, or the
  // keys that score_norm reads.
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
  std::vector<ShortConvolution> convs_;                    // likewise; empty: none
  Parameter gate_, norm_;
  std::unique_ptr<LogDecay> decay_;  // null: none
  OutputProjection out_;
};

}  // namespace halflife::model
