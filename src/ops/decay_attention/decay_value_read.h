// Reads the state of decay attention from the side of its values:
//
//   S_t = diag(exp(log_decay_t)) S_{t-1} + k_t^T v_t,   out_t = q_t S_t^T
//
// where a query has the channels of v and the output those of k. It is the first pass of gated slot
// attention (Zhang et al., 2024), whose state decays per slot: k are the weights of the slots.
//
// It needs no kernels of its own. In decay attention with outputs o_t = u_t S_t, the gradient of
// u_t for dL/do_t = q_t is q_t S_t^T. The forward here is therefore a backward of decay attention,
// and a forward of it for the final state. The backward here is a forward and a backward of it. No
// exponential of a growing sum occurs, and decays may be -inf. Differentiable in q, k, v, log_decay
// and the initial state, through out and the final state.
//
// Shapes: B batch, T seq_len, H heads of the output, Hq, Hk, Hv and Hd heads of the operands, K and
// V channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

// q has H heads, and the other operands have H or a divisor of it.
struct DecayValueReadInputs {
  at::Tensor q;          // [B, T, H, V] fp32, bf16, or fp64 on the CPU; k and v have the same dtype
  at::Tensor k;          // [B, T, Hk, K]
  at::Tensor v;          // [B, T, Hv, V]
  at::Tensor log_decay;  // [B, T, Hd, K] fp32 (fp64 with fp64 operands), <= 0
  // As in DecayAttentionInputs.
  std::shared_ptr<const SequenceChunks> chunks = {};
  at::Tensor initial_state = {};  // [sequences, H, K, V] fp32 (fp64); undefined: zero
  std::shared_ptr<const RowSegment> segment = {};
};
struct DecayValueReadOutput {
  at::Tensor out;          // [B, T, H, K], dtype of q
  at::Tensor final_state;  // [sequences, H, K, V]; undefined with a segment
};
DecayValueReadOutput DecayValueRead(const DecayValueReadInputs& inputs);

}  // namespace halflife::ops
