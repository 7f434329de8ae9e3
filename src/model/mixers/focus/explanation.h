// What a layer that pools windows looked at. The weights belong to tokens, so that a number a token
// and a head tells all: the share of token j in row i is
//
//   alpha_ij = exp(log_weight_j - row_max_i) / row_sum_i   for j in the window of i, else 0,
//
// the same bits as the forward pass pooled with. Shares of a row sum to 1 (with eps, to a little
// less), and are cheap for one row or one token; the whole matrix is for short rows.
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

// In fp32 (fp64 beside fp64), without gradients.
struct Explanation {
  at::Tensor log_weight;        // [B, T, H]
  at::Tensor row_max, row_sum;  // [B, T, H]
  at::Tensor documents;         // [B, T] int64, or undefined: one a row
  int64_t window = 0;           // tokens; 0: all
  // What the reader multiplies its row with: [B, T, H, 1], or [B, T, H, n] of single channels;
  // undefined: a product that is no gate.
  at::Tensor gate;

  at::Tensor Row(int64_t row) const;       // [B, T, H]: alpha_ij of all tokens j for i = row
  at::Tensor Column(int64_t token) const;  // [B, T, H]: of all rows i for j = token
  // [B, T, T, H], rows then tokens. Error kUsage for rows of more than 4096 tokens.
  at::Tensor Dense() const;
  at::Tensor Importance() const;  // [B, T, H]: shares in the last row
  at::Tensor Focus() const;       // [B, T, H]: a token's weight over the mean of its row
};

// A mixer that can be asked.
class Explained {
 public:
  virtual ~Explained() = default;
  // One a pool, in the order of the forward pass; of whole rows, without dropout.
  virtual std::vector<Explanation> Explain(const MixerCall& call) const = 0;
};

// Returns the explanation of a pool with these log weights [B, T, H].
Explanation ExplainPool(const at::Tensor& log_weight, const SequenceSlice& slice, int64_t window,
                        double eps);

}  // namespace halflife::model
