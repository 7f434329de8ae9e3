// Explains which tokens a layer that pools windows has read. Each token has one weight per head, so
// the share of token j in the pooled row i is
//
//   alpha_ij = exp(log_weight_j - row_max_i) / row_sum_i   for j in the window of i, else 0.
//
// These are the same bits that the forward pass uses. The shares of a row sum to 1, or slightly
// less with eps. One row or one token is cheap to compute; Dense() is for short rows.
//
//   const auto* explained = dynamic_cast<const Explained*>(&mixer);
//   const Explanation pool = explained->Explain({.x = x, .slice = slice})[0];
//   const at::Tensor share = pool.Importance();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/mixer.h"

namespace halflife::model {

// All tensors are fp32 (fp64 for fp64 inputs), without gradients.
struct Explanation {
  at::Tensor log_weight;        // [B, T, H]
  at::Tensor row_max, row_sum;  // [B, T, H]
  at::Tensor documents;         // [B, T] int64; undefined: one document per row
  int64_t window = 0;           // in tokens; 0: unlimited
  // The gate that multiplies the pooled row: [B, T, H, 1], or [B, T, H, n] with one gate per
  // channel. Undefined if the mixer has no gate.
  at::Tensor gate;

  at::Tensor Row(int64_t row) const;       // [B, T, H]: alpha_ij for i = row and all j
  at::Tensor Column(int64_t token) const;  // [B, T, H]: alpha_ij for j = token and all i
  // [B, T, T, H]: alpha_ij for all i, then all j. Throws kUsage for rows of over 4096 tokens.
  at::Tensor Dense() const;
  at::Tensor Importance() const;  // [B, T, H]: the shares in the last row
  at::Tensor Focus() const;  // [B, T, H]: a token's weight divided by the mean weight of the row
};

// A mixer that can explain its pools.
class Explained {
 public:
  virtual ~Explained() = default;
  // Returns one explanation per pool, in the order of the forward pass. `call` must be for whole
  // rows; dropout is off.
  virtual std::vector<Explanation> Explain(const MixerCall& call) const = 0;
};

// Returns the explanation of a pool with these log weights [B, T, H].
Explanation ExplainPool(const at::Tensor& log_weight, const SequenceSlice& slice, int64_t window,
                        double eps);

}  // namespace halflife::model
