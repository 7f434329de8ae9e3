// What mixers with a decayed state share: q, k and v, an optional short convolution, feature map
// and rotation of them, the state S_t = decay_t S_{t-1} + k_t^T v_t read by o_t = q_t S_t /
// sqrt(K), then RMSNorm over each head's channels, a SiLU gate and o_proj. Parameters are named as
// in fla. A mixer of the family brings its decay and says what else it departs in.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "model/activation.h"
#include "model/mixers/variants.h"

namespace halflife::model {

// Options of the whole family; each mixer's own struct derives from it.
struct DecayedOptions : OptionsOf<DecayedOptions> {
  int64_t num_heads, num_kv_heads = 0;  // 0: num_heads
  double expand_k, expand_v;            // widths of all heads together, in model_dims
  bool use_output_gate = true, norm_affine = true;
  std::string feature_map = "none";
  // Set by Resolve.
  int64_t head_dim_k = 0, head_dim_v = 0;

  DecayedOptions(int64_t heads, double k, double v) : num_heads(heads), expand_k(k), expand_v(v) {}
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

  int64_t key_dim() const { return num_heads * head_dim_k; }
  int64_t value_dim() const { return num_heads * head_dim_v; }
  int64_t kv_key_dim() const { return num_kv_heads * head_dim_k; }
  int64_t kv_value_dim() const { return num_kv_heads * head_dim_v; }
};

// Where the logarithm of the decay comes from.
class LogDecay {
 public:
  virtual ~LogDecay() = default;
  // Matrices whose products with x it reads: computed together with the projections.
  virtual std::vector<at::Tensor> Weights() const { return {}; }
  // `products` [B, T, *], one of each of Weights. -> fp32 [H], the same for all tokens, or [B, T,
  // Hk], or [B, T, Hk, K].
  virtual at::Tensor operator()(const at::Tensor& x,
                                std::span<const at::Tensor> products) const = 0;
  virtual bool constant() const { return false; }  // [H]

  // Its own share of the costs, per token.
  virtual int64_t num_matrix_elements() const { return 0; }
  virtual int64_t num_activations() const { return 0; }  // in the compute dtype
  virtual int64_t num_fp32_activations() const { return 0; }
};

// How a mixer departs from the family.
struct DecayedForm {
  int64_t conv_size = 0;  // taps of a short convolution of q, k and v; 0: none
  double rope_theta = 0;  // base of the rotation of q and k; 0: none
  // Declares what the decay learns, between the projections and the output.
  std::function<std::unique_ptr<LogDecay>(const PartContext&)> make_decay;
};

class DecayedMixer : public Mixer {
 public:
  // `options` are resolved.
  DecayedMixer(const DecayedOptions& options, const PartContext& context, const DecayedForm& form);

  MixerTraits traits() const override;
  MixerOutput Forward(const MixerCall& call) const override;
  at::Tensor Step(const at::Tensor& x, int64_t num_past, MixerState& state) const override;
  FlopCount FlopsPerToken(int64_t seq_len) const override;
  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override;

 private:
  struct Heads {
    at::Tensor q;          // [B, T, H, K]
    at::Tensor k, v;       // [B, T, Hk, *]: H / Hk query heads read each
    at::Tensor log_decay;  // as LogDecay gives it
    at::Tensor gate;       // [B, T, H V], or undefined
  };
  // Maps y [B, T, dim], which is q, k or v by its index, before the split into heads.
  using Convolution = std::function<at::Tensor(const at::Tensor& y, size_t index)>;
  Heads Project(const at::Tensor& x, const at::Tensor& positions,
                const Convolution& convolve) const;
  at::Tensor Convolve(const at::Tensor& y, size_t index, const MixerCall& call,
                      MixerState* after) const;
  at::Tensor Output(const at::Tensor& o, const at::Tensor& gate) const;
  double Scale() const;

  DecayedOptions options_;
  int64_t model_dim_;
  double norm_eps_;
  int64_t conv_size_;
  double rope_theta_;
  Activation feature_map_;
  Parameter q_, k_, v_, gate_, norm_;
  std::array<Parameter, 3> convs_;
  std::unique_ptr<LogDecay> decay_;
  OutputProjection out_;
};

}  // namespace halflife::model
