// The recurrence of RWKV-7 (Peng et al., 2025): a state that decays per key channel, with a
// correction of rank one that reads the state before the decay. Per head:
//
//   S_t = diag(e^{w_t}) S_{t-1} + b_t^T (a_t S_{t-1}) + k_t^T v_t,   o_t = r_t S_t,   S [K, V]
//
// Computed in chunks of 32 tokens with LibTorch operations, on every device. Differentiable in r,
// log_decay, k, v, a, b and the initial state. Arithmetic is fp32 (fp64 for fp64 inputs).
//
// B rows, T tokens, H heads, K channels of a key, V channels of a value.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"

namespace halflife::ops {

struct Wkv7Inputs {
  at::Tensor r;             // [B, T, H, K]
  at::Tensor log_decay;     // [B, T, H, K]: w, from -1 to 0. Sums over a chunk must fit exp.
  at::Tensor k;             // [B, T, H, K]
  at::Tensor v;             // [B, T, H, V]
  at::Tensor a, b;          // [B, T, H, K]
  at::Tensor starts = {};   // [B, T] bool: document starts; undefined: one document per row
  at::Tensor initial = {};  // [B, H, K, V]; undefined: zeros
  // For rows that are split over ranks. The state comes from the previous rank and must not be
  // given.
  std::shared_ptr<const RowSegment> segment = {};
};
struct Wkv7Output {
  at::Tensor o;            // [B, T, H, V] in the dtype of v
  at::Tensor final_state;  // [B, H, K, V] fp32 or fp64; undefined for a segment
};
Wkv7Output Wkv7(const Wkv7Inputs& inputs);

// Processes one token: inputs [B, H, K or V]. Updates `state` [B, H, K, V] in place and returns o
// [B, H, V].
at::Tensor Wkv7Step(const Wkv7Inputs& inputs, at::Tensor& state);

}  // namespace halflife::ops
