// Focus pooling for the mixers. Each token's output is a weighted mean over its window; the weights
// belong to tokens, not to pairs of tokens:
//
//   Z_t = sum over j in W(t) of exp(log_weight_j) + eps
//   out_t = sum over j in W(t) of exp(log_weight_j) u_j / Z_t
//
// Time is linear in T and independent of the window (focus_pool_args.h). A log weight of -inf masks
// a token; a row that sees no token is 0. Differentiable in log_weight, u and the initial state,
// through out and the final state.
//
//   const auto [out, row_max, row_sum, state] =
//       FocusPool({.log_weight = log_weight, .u = v}, {.window = 64});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

// The state that a sequence carries from token to token, fp32 (fp64 for fp64 inputs). All zeros: no
// token was seen.
struct FocusPoolState {
  // Without a window: exp(log_scale) mass is the sum of the weights, and exp(log_scale) sum is the
  // weighted sum of the rows. A mass of 0 means that no token was seen, even if the other fields
  // are not 0. log_scale has no gradient: it is treated as a constant, so mass and sum carry the
  // whole gradient.
  at::Tensor log_scale = {};  // [N, H]
  at::Tensor mass = {};       // [N, H]
  at::Tensor sum = {};        // [N, H, P]
  // With a window: the last window - 1 tokens. tail_present is 0 for tokens that do not exist.
  at::Tensor tail_present = {};     // [N, window - 1]: 1 or 0
  at::Tensor tail_log_weight = {};  // [N, window - 1, H]
  at::Tensor tail_u = {};           // [N, window - 1, H, P]
};

struct FocusPoolInputs {
  at::Tensor log_weight;  // [B, T, H] fp32 (fp64 for fp64 u)
  at::Tensor u;           // [B, T, H, P] fp32, bf16, or fp64 (only on the CPU)
  // Document starts inside the rows; null: each row continues from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  // the N sequences are rows, or those of `chunks`; undefined: empty
  FocusPoolState initial_state = {};
  // For rows that are split over ranks. Such a call has no initial state and returns no final
  // state.
  std::shared_ptr<const RowSegment> segment = {};
};

struct FocusPoolConfig {
  int64_t window = 0;  // number of tokens that a token sees, including itself; 0: all
  double eps = 0;
  bool want_state = false;
};

struct FocusPoolOutput {
  at::Tensor out;  // [B, T, H, P], dtype of u
  // Z is exp(row_max) row_sum; -inf and 0 if no token is seen. The share of token j in row t is
  // exp(log_weight_j - row_max_t) / row_sum_t. No gradients.
  at::Tensor row_max;          // [B, T, H]
  at::Tensor row_sum;          // [B, T, H]
  FocusPoolState final_state;  // only if requested; the fields for this kind of window
};

// Throws an error if shapes, dtypes or devices do not match.
FocusPoolOutput FocusPool(const FocusPoolInputs& inputs, const FocusPoolConfig& config);

// Processes one more token of every sequence: log_weight [B, H], u [B, H, P]; returns [B, H, P].
// The state, which is a final state of FocusPool or zeros, is updated in place. A window is summed
// anew in each step, which costs time proportional to its length but accumulates no error. No
// gradient.
at::Tensor FocusPoolStep(const at::Tensor& log_weight, const at::Tensor& u,
                         const FocusPoolConfig& config, FocusPoolState& state);

// FocusPool() of inputs with a segment. With a window, a segment receives the tokens before it;
// without one, the sums of the segments before it. config.want_state must be false.
FocusPoolOutput OverSegments(const FocusPoolInputs& inputs, const FocusPoolConfig& config);

}  // namespace halflife::ops
