// The decays of linear recurrences: the interface LogDecay (what a mixer computes its decay from,
// and the costs), and the decays that several mixers use.
//
// Shapes: B batch, T seq_len, H query heads, Hd heads of the decay (those of the keys or of the
// values, as the recurrence says), K channels of q and k.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/part_context.h"
#include "model/sequence_slice.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/rows/delta_gates.h"

namespace halflife::model {

// Queries and keys of all heads, [B, T, heads, K].
struct QueriesAndKeys {
  at::Tensor q, k;
};

// Computes the natural logarithm of the decay.
class LogDecay {
 public:
  virtual ~LogDecay() = default;
  // Returns the matrices whose products with x the decay reads. They are multiplied together with
  // the projections.
  virtual std::vector<at::Tensor> Weights() const { return {}; }
  // `products` [B, T, *] has one product for each of Weights. Returns fp32 [H] or [H, K] if the
  // decay is the same for all tokens, else [B, T, Hd] or [B, T, Hd, K].
  virtual at::Tensor operator()(const at::Tensor& x,
                                std::span<const ops::LinearPart> products) const = 0;
  // For one token of decoding: the decay as a product that decay attention's step can compute, or
  // nullopt. `products` have T = 1.
  virtual std::optional<ops::LowRankDecay> ToLowRank(std::span<const ops::LinearPart>) const {
    return std::nullopt;
  }
  virtual bool constant() const { return false; }  // true: the same for all tokens
  virtual bool per_channel() const { return false; }

  // Applies the part of a decay that depends on absolute positions, not only on distances, to the
  // queries and keys.
  virtual QueriesAndKeys AtPositions(const QueriesAndKeys& features, const SequenceSlice&) const {
    return features;
  }
  virtual int64_t max_tokens() const { return 0; }  // as MixerTraits::max_tokens

  // Costs of the decay, per token.
  virtual int64_t num_matrix_elements() const { return 0; }
  virtual int64_t num_activations() const { return 0; }  // in the compute dtype
  virtual int64_t num_fp32_activations() const { return 0; }
};

// A decay per key channel that a recurrence has computed itself: it passes the log decay to a decay
// recurrence as the only product.
class GivenDecay : public LogDecay {
 public:
  // products[0] is the log decay [B, T, Hk, K].
  at::Tensor operator()(const at::Tensor&,
                        std::span<const ops::LinearPart> products) const override {
    return products[0].y;
  }
  bool per_channel() const override { return true; }
};

// A constant decay per head.
class FixedDecay : public LogDecay {
 public:
  explicit FixedDecay(std::vector<double> log_decays) : log_decays_(std::move(log_decays)) {}
  at::Tensor operator()(const at::Tensor& x, std::span<const ops::LinearPart>) const override;
  bool constant() const override { return true; }

 private:
  std::vector<double> log_decays_;  // [H]
};

// Returns the decays of retention: ln gamma_h with gamma_h = 1 - 2^(-5-h), h counted from 0 (Sun et
// al., 2023, equation 8). Computed by log1p, because gamma itself rounds to 1 in fp32 from head 20
// on.
std::vector<double> RetentionLogDecays(int64_t num_heads);
// ln gamma_h with gamma_h = 1 - e^x, where x is evenly spaced from ln 1/32 to ln 1/512 over the
// heads: the decays of the paper's models with 1.3B to 6.7B parameters.
std::vector<double> RetentionLogDecaysOfRange(int64_t num_heads);

// The decays of lightning attention, which differ by head and layer.
struct LayerNumber {
  int64_t index = 0, count = 1;  // l, counted from 0, of L
};
// ln of the decay of head h of H: -2^(-8 (h + 1) / H) (1 - l / (L - 1 + 1e-5) + 1e-5), as in
// transformers' MiniMax. The last layer hardly forgets.
std::vector<double> MiniMaxLogDecays(int64_t num_heads, const LayerNumber& layer);
// Returns -(8 / H) (1 - l / L) h, as in fla's operation. Head 0 never forgets.
std::vector<double> LinearLogDecays(int64_t num_heads, const LayerNumber& layer);

// The decay per token of Gated DeltaNet (Yang et al., 2025) and Kimi Delta Attention (Kimi Team,
// 2025), computed from x with the gate of Mamba (Gu and Dao, 2024):
//
//   ln alpha_t = -exp(A_log) softplus(W x_t + dt_bias)
//   ln alpha_t = lower_bound sigmoid(exp(A_log) (W x_t + dt_bias))        with a lower bound
//
// A_log is one value per head. A_log and dt_bias are fp32 parameters without weight decay. The
// formula itself is in ops/rows/delta_gates.h.
struct SoftplusDecayForm {
  int64_t num_heads = 0;
  // Channels of a head that have their own decay, [B, T, H, K]; 0: one decay per head, [B, T, H].
  int64_t num_channels = 0;
  // W is the product of two matrices f_proj.1 and f_proj.0, of this inner width; 0: W is a_proj.
  int64_t rank = 0;
  double lower_bound = 0;  // < 0: the second formula, whose values are above it
  // A = exp(A_log) is initially uniform in [initial_min, initial_max]; initial_min > 0.
  double initial_min = 1, initial_max = 16;
};

// The parameters of the decay, and its logits.
class SoftplusDecay {
 public:
  SoftplusDecay(const SoftplusDecayForm& form, const PartContext& context);

  // Returns the matrices whose products with x it reads.
  std::vector<at::Tensor> Weights() const { return {*in_}; }
  // Computes the log decay, [B, T, H] or [B, T, H, K], from the products of Weights(), and in the
  // same pass beta = beta_scale sigmoid(b). b is [B, T, *], or undefined: no beta.
  ops::DeltaGatesOutput operator()(std::span<const ops::LinearPart> products,
                                   const ops::LinearPart& b, double beta_scale) const;
  bool per_channel() const { return form_.num_channels > 0; }

  // Costs of the decay, per token.
  int64_t num_matrix_elements() const;
  int64_t num_activations() const { return form_.rank + width_; }  // the products
  int64_t num_fp32_activations() const { return width_; }          // the log decay

 private:
  SoftplusDecayForm form_;
  int64_t width_, model_dim_;
  Parameter in_, out_, log_a_, bias_;
};

}  // namespace halflife::model
