// How the queries and keys of an attention layer encode positions: rotations of both, biases by
// distance, decay with distance, and the set of visible keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/part_context.h"
#include "ops/rows/rotary.h"
#include "ops/softmax_attention/visible_keys.h"

namespace halflife::model {

// The attention layer that a method is made for.
struct AttentionLayer {
  PartContext part;  // Parameters of the layer are named below its prefix.
  int64_t num_heads = 0, head_dim = 0;
  // Number r of a head's first channels that rotations change, in pairs j and j + r/2 with
  // frequencies rope_theta^(-2j/r). An odd r rotates r + 1 channels at the frequencies of r, as
  // transformers does. 0: all channels.
  int64_t rotary_dim = 0;
  double rope_theta = 0;  // Base of rotations.

  int64_t rotated_dim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
};

// Queries and keys, [B, T, heads, d] each. far_q and far_k replace q and k for pairs of tokens at a
// distance of at least far_from.
struct AttentionHeads {
  at::Tensor q, k;
  at::Tensor far_q = {}, far_k = {};
  // Buffers of the gradients of q and k, for their first consumer.
  ops::ColumnSlice q_gradient = {}, k_gradient = {};
};

class AttentionPositions {
 public:
  virtual ~AttentionPositions() = default;
  // Encodes the heads of tokens whose positions in their documents are `positions` [B, T] int64.
  // `tables` belongs to the batch and is shared by all layers.
  virtual void Encode(AttentionHeads& heads, const at::Tensor& positions,
                      ops::RotaryTables& tables) const;
  // Returns true if Bias returns a tensor.
  virtual bool has_bias() const { return false; }
  // Returns true if later keys can be visible: there is no bias, or the bias depends only on the
  // distance and also applies to later keys.
  virtual bool looks_ahead() const { return !has_bias(); }
  // Returns the bias that is added to scores at distances 0 to num_distances - 1: [H,
  // num_distances] with `options`. Undefined without has_bias().
  virtual at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const;
  // Decay rates [d]: the product of channel c is multiplied by e^(rate_c * distance). Empty: no
  // decay.
  virtual std::vector<double> decay_rates() const { return {}; }
  // Distance from which far heads are used. If it is above 0, Encode sets far_q, and also far_k if
  // has_far_keys(). 0: no far heads.
  virtual int64_t far_from() const { return 0; }
  virtual bool has_far_keys() const { return false; }
  // Returns the visible keys. Without a reach, the layer's own pattern applies.
  virtual ops::KeyPattern pattern() const { return {}; }
  // Returns true if the method measures distances between keys, regardless of the positions passed
  // to Encode.
  bool counts_distances() const;
  // Returns true if the method uses only the position ids that Encode receives, so that training
  // can override them (SequenceSlice::given_position_ids).
  virtual bool reads_position_ids() const { return !counts_distances(); }
};

// Returns `layer`. Throws kUsage unless its pairs of channels are within a head and its rope_theta
// is above 1.
const AttentionLayer& Rotating(const AttentionLayer& layer);

// Rotates x by `positions`. The halves of the rotated channels form pairs (ops/rows/rotary.h).
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions,
                  std::span<const double> frequencies, double factor = 1);

// Rotary positions (Su et al., 2021) with the given frequencies of the pairs: [d/2], or fewer if
// only the first channels of a head rotate. cos and sin are multiplied by `factor`, so that
// products of rotated channels are multiplied by its square.
class RotaryPositions : public AttentionPositions {
 public:
  explicit RotaryPositions(std::vector<double> frequencies, double factor = 1)
      : frequencies_(std::move(frequencies)), factor_(factor) {}
  // Uses the standard frequencies of the layer's rope_theta. Throws the errors of Rotating.
  explicit RotaryPositions(const AttentionLayer& layer);
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override;

 protected:
  std::span<const double> frequencies() const { return frequencies_; }

 private:
  std::vector<double> frequencies_;
  double factor_ = 1;
};

// Position methods that add a bias to the scores of attention: ALiBi's slopes and T5's buckets of
// distances.
//
// ALiBi (Press et al., 2022). Returns 2^(-8 (h + 1) / H) for each head h if H is a power of 2.
// Otherwise, returns the slopes of the next lower power of 2, followed by every other slope of the
// next higher power, as the authors' code does.
std::vector<double> AlibiSlopes(int64_t num_heads);

// T5 (Raffel et al., 2020). Returns the bucket of each distance 0 to num_distances - 1. The first
// half of the buckets hold one distance each. The others grow logarithmically with the distance up
// to max_distance; larger distances are in the last bucket. num_buckets must be even.
std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance);

}  // namespace halflife::model
