// RWKV-4's time mixing (Peng et al., 2023): an average of values, weighted by the exponential of
// their keys, which decays by a factor a channel and gives the token's own key a bonus,
//
//   out_t = (sum_{i<t} e^{(t-1-i)w + k_i} v_i + e^{u + k_t} v_t)
//         / (sum_{i<t} e^{(t-1-i)w + k_i} + e^{u + k_t}).
//
//   const auto [out, state] = Wkv4({.k = k, .v = v, .log_decay = *time_decay,
//                                   .negative_exp = true, .bonus = *time_first});
//
// No exponential leaves the range of its dtype, whatever the keys and however many. Differentiable;
// a decay or bonus whose owner has a sink for its gradient (ops/torch/gradient_sink.h) gets it
// there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

// [B, D] each, in the compute type: numerator e^log_scale and denominator e^log_scale are the sums
// of all tokens seen. A denominator of 0: none was, whatever the scale. Undefined: absent.
struct WkvMemory {
  at::Tensor numerator, denominator, log_scale;
};

struct WkvInputs {
  at::Tensor k, v;            // [B, T, D] fp32, bf16 or fp64 (on the CPU), one for both
  at::Tensor log_decay;       // [D] w <= 0, any of these dtypes
  bool negative_exp = false;  // log_decay holds p of w = -e^p, as RWKV-4 learns it
  at::Tensor bonus;           // [D] u
  at::Tensor starts = {};     // [B, T] bool: documents, before which the state is dropped; or none
  WkvMemory initial = {};     // before the first token, or absent
  // The output and the gradients of k, v, log_decay and bonus are rounded to bf16, as by the
  // original's bf16 kernels, which compute in fp32. Beside fp64 nothing is rounded.
  bool round_to_bf16 = false;
  // Rows of which other ranks hold the rest: from no initial state, and without a final one.
  std::shared_ptr<const RowSegment> segment = {};
};
struct WkvOutputs {
  at::Tensor out;   // [B, T, D] in the dtype of k
  WkvMemory final;  // of its log scale there is no gradient: another choice would serve as well
};
WkvOutputs Wkv4(const WkvInputs& inputs);

// One token more of every row: k and v [B, D] -> [B, D]. `state` moves on in place. No gradient.
struct WkvStepInputs {
  at::Tensor k, v, log_decay;
  bool negative_exp = false;
  at::Tensor bonus;
};
at::Tensor Wkv4Step(const WkvStepInputs& inputs, WkvMemory& state);

}  // namespace halflife::ops
