// The decay of a linear recurrence: what a mixer computes it from, and its costs.
//
// Shapes: B batch, T seq_len, H query heads, Hd heads of the decay (those of the keys or of the
// values, as the recurrence says), K channels of q and k.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/sequence_slice.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"

namespace halflife::model {

// Queries and keys of all heads, [B, T, heads, K].
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

  // The costs of the decay, per token.
  virtual int64_t num_matrix_elements() const { return 0; }
  virtual int64_t num_activations() const { return 0; }  // in the compute dtype
  virtual int64_t num_fp32_activations() const { return 0; }
};

}  // namespace halflife::model
