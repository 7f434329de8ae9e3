// Focus pooling as the mixers call it: each token's row is the mean of its window, with weights
// that belong to the tokens and not to pairs of them:
//
//   Z_t = sum over j in W(t) of exp(log_weight_j) + eps
//   out_t = sum over j in W(t) of exp(log_weight_j) u_j / Z_t
//
// in time that is linear in T and does not depend on the window (see args.h). A log weight of -inf
// masks a token; a row that sees no token is 0. Differentiable in log_weight, u and the initial
// state, through out and the final state.
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

// What a sequence carries from token to token; zeros: nothing was seen. fp32 (fp64 beside fp64).
struct FocusPoolState {
  // Without a window: exp(log_scale) mass is the sum of the weights, exp(log_scale) sum that of the
  // weighted rows. A mass of 0 says that nothing was seen, whatever the others hold. log_scale has
  // no gradient: with it held fixed, mass and sum have all of it.
  at::Tensor log_scale = {};  // [N, H]
  at::Tensor mass = {};       // [N, H]
  at::Tensor sum = {};        // [N, H, P]
  // With one: the last window - 1 tokens. Of those that are not there, present is 0.
  at::Tensor tail_present = {};     // [N, window - 1], 1 or 0
  at::Tensor tail_log_weight = {};  // [N, window - 1, H]
  at::Tensor tail_u = {};           // [N, window - 1, H, P]
};

struct FocusPoolInputs {
  at::Tensor log_weight;  // [B, T, H] fp32 (fp64 beside fp64)
  at::Tensor u;           // [B, T, H, P] fp32, bf16, or fp64 on the CPU
  // Where documents start inside the rows; null: each row goes on from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  FocusPoolState initial_state = {};  // of N sequences: rows, or chunks'; undefined: nothing seen
  // Rows of which other ranks hold the rest: from no initial state, and without a final one.
  std::shared_ptr<const RowSegment> segment = {};
};

struct FocusPoolConfig {
  int64_t window = 0;  // tokens that one sees, itself included; 0: all
  double eps = 0;
  bool want_state = false;
};

struct FocusPoolOutput {
  at::Tensor out;  // [B, T, H, P], dtype of u
  // exp(row_max) row_sum is Z; -inf and 0 where nothing is seen. The share of token j in row t is
  // exp(log_weight_j - row_max_t) / row_sum_t. No gradients.
  at::Tensor row_max;          // [B, T, H]
  at::Tensor row_sum;          // [B, T, H]
  FocusPoolState final_state;  // the fields of the window's kind, where wanted
};

// Throws Error for shapes, dtypes and devices that do not fit each other.
FocusPoolOutput FocusPool(const FocusPoolInputs& inputs, const FocusPoolConfig& config);

// One token more of every sequence: log_weight [B, H], u [B, H, P]; returns [B, H, P]. The state,
// what FocusPool left or zeros, moves on in place. A window's is summed anew, which costs its
// length and leaves no drift. No gradient.
at::Tensor FocusPoolStep(const at::Tensor& log_weight, const at::Tensor& u,
                         const FocusPoolConfig& config, FocusPoolState& state);

}  // namespace halflife::ops
