// RWKV-4's time mixing (Peng et al., 2023): an average of values, weighted by the exponentials of
// their keys. The weights decay by a factor per channel, and the current token's key gets a bonus.
//
//   out_t = (sum_{i<t} e^{(t-1-i)w + k_i} v_i + e^{u + k_t} v_t)
//         / (sum_{i<t} e^{(t-1-i)w + k_i} + e^{u + k_t}).
//
//   const auto [out, state] = Wkv4({.k = k, .v = v, .log_decay = *time_decay,
//                                   .negative_exp = true, .bonus = *time_first});
//
// No exponential overflows or underflows its dtype, for any keys and any sequence length.
// Differentiable; the gradient of a decay or bonus that has a sink (ops/torch/gradient_sink.h) goes
// to the sink.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

// The state, [B, D] each in the compute type: numerator e^log_scale and denominator e^log_scale are
// the sums over all tokens so far. A denominator of 0 means that there was no token, for any scale.
// Undefined: absent.
struct WkvMemory {
  at::Tensor numerator, denominator, log_scale;
};

struct WkvInputs {
  at::Tensor k, v;            // [B, T, D] fp32, bf16 or fp64 (only on the CPU), one dtype for both
  at::Tensor log_decay;       // [D] w <= 0, in any of these dtypes
  bool negative_exp = false;  // true: log_decay holds p of w = -e^p, the form that RWKV-4 learns
  at::Tensor bonus;           // [D] u
  // [B, T] bool: document starts, at which the state is reset; undefined: none
  at::Tensor starts = {};
  WkvMemory initial = {};  // the state before the first token, or absent
  // Rounds the output and the gradients of k, v, log_decay and bonus to bf16, like the original
  // bf16 kernels, which compute in fp32. Has no effect for fp64.
  bool round_to_bf16 = false;
  // For rows that are split over ranks. Such a call has no initial state and returns no final
  // state.
  std::shared_ptr<const RowSegment> segment = {};
};
struct WkvOutputs {
  at::Tensor out;   // [B, T, D] in the dtype of k
  WkvMemory final;  // its log_scale has no gradient: any other choice of scale is equivalent
};
WkvOutputs Wkv4(const WkvInputs& inputs);

// Processes one more token of every row: k and v [B, D] -> [B, D]. `state` is updated in place. No
// gradient.
struct WkvStepInputs {
  at::Tensor k, v, log_decay;
  bool negative_exp = false;
  at::Tensor bonus;
};
at::Tensor Wkv4Step(const WkvStepInputs& inputs, WkvMemory& state);

// Runs Wkv4() on inputs with a segment. Returns only `out`, because only the last rank has the
// final state of a row.
WkvOutputs OverSegments(const WkvInputs& inputs);

}  // namespace halflife::ops
