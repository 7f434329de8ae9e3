// How the queries and keys of an attention layer tell positions: rotations of both, biases by
// distance, decays with it, and which keys are seen.
//
//   AttentionHeads heads = {.q = q, .k = k};
//   method.Encode(heads, slice.positions, *slice.rotary);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/rotary/rotary.h"
#include "kernels/softmax_attention/visible_keys.h"
#include "model/part_context.h"

namespace halflife::model {

// What a method is made for.
struct AttentionLayer {
  PartContext part;  // parameters of a layer's own are below its prefix
  int64_t num_heads = 0, head_dim = 0;
  double rope_theta = 0;  // base of rotations
};

// [B, T, heads, d] each; far_q and far_k stand in for q and k between tokens far_from or more
// apart.
struct AttentionHeads {
  at::Tensor q, k;
  at::Tensor far_q = {}, far_k = {};
};

class AttentionPositions {
 public:
  virtual ~AttentionPositions() = default;
  // Encodes the heads of tokens at `positions` [B, T] int64 of their documents; `tables` are the
  // batch's, which all layers share.
  virtual void Encode(AttentionHeads& heads, const at::Tensor& positions,
                      kernels::RotaryTables& tables) const;
  // Whether Bias gives one.
  virtual bool has_bias() const { return false; }
  // Whether a bias is that of a key ahead, too: of the distance alone.
  virtual bool looks_ahead() const { return !has_bias(); }
  // What is added to the scores at distances 0 to num_distances - 1: [H, num_distances] of
  // `options`; undefined without has_bias().
  virtual at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const;
  // Products of channel c decay by e^(rate_c distance): [d]; empty: they do not.
  virtual std::vector<double> decay_rates() const { return {}; }
  // Encode gives far_q where it is above 0, and far_k, too, where has_far_keys().
  virtual int64_t far_from() const { return 0; }
  virtual bool has_far_keys() const { return false; }
  // The keys that are seen; without reach: what the layer itself says.
  virtual kernels::KeyPattern pattern() const { return {}; }
  // Whether it counts distances from key to key, whatever positions Encode is given.
  bool counts_distances() const;
  // Whether it follows the positions that rows are told in place of their own, which Encode is
  // given then, and nothing else.
  virtual bool reads_told_positions() const { return !counts_distances(); }
};

// The layer itself: Error kUsage unless its heads are of an even width and its rope_theta above 1.
const AttentionLayer& Rotating(const AttentionLayer& layer);

// x turned by `positions`, halves of a head as pairs (kernels/rotary/rotary.h).
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions,
                  std::span<const double> frequencies, double factor = 1);

// Rotary positions (Su et al., 2021) with the frequencies of the pairs, [d/2]; cos and sin are
// multiplied by `factor`, so that scores are by its square.
class RotaryPositions : public AttentionPositions {
 public:
  explicit RotaryPositions(std::vector<double> frequencies, double factor = 1)
      : frequencies_(std::move(frequencies)), factor_(factor) {}
  // The usual ones of the layer's rope_theta. Errors of Rotating.
  explicit RotaryPositions(const AttentionLayer& layer);
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              kernels::RotaryTables& tables) const override;

 protected:
  std::span<const double> frequencies() const { return frequencies_; }

 private:
  std::vector<double> frequencies_;
  double factor_ = 1;
};

}  // namespace halflife::model
