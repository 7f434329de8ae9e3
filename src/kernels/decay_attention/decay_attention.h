// Decay attention as the mixers call it: S_t = diag(exp(log_decay_t)) S_{t-1} + k_t^T v_t,  out_t = scale q_t S_t
// (decay first, then add, then read). Runs the kernels behind args.h; differentiable in q, k, v, log_decay and the initial
// state. Besides the whole, the four pieces that sequence parallelism exchanges between ranks are public.
//
//   auto [out, final_state] = DecayAttention({.q = q, .k = k, .v = v, .log_decay = g}, {.scale = 1 / sqrt(K)});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/decay_attention/sequence_chunks.h"

namespace halflife::kernels {

// q, k, v and log_decay may have fewer heads than H, the most of them: head h reads index h * heads / H.
struct DecayAttentionInputs {
  at::Tensor q;  // [B, T, Hq, K] fp32, bf16, or fp64 on the CPU; k and v alike
  at::Tensor k;  // [B, T, Hk, K]
  at::Tensor v;  // [B, T, Hv, V]
  // Natural log of the decay, fp32 (fp64 beside fp64). [Hd] constant per head, [Hd, K] per head and channel, [B, T, Hd] per
  // token, [B, T, Hd, K] per token and channel, or undefined: none. <= 0; -inf allowed per token.
  at::Tensor log_decay;
  // Where documents start inside the rows; null: each row goes on from its initial state.
  std::shared_ptr<const SequenceChunks> chunks;
  at::Tensor
      initial_state;  // [sequences, H, K, V] fp32 (fp64), or undefined: zero. Sequences are rows, or chunks'
};

struct DecayAttentionConfig {
  double scale = 1;
  int num_segments = 0;  // pieces of a sequence that run in parallel; 0: by the shape
};

struct DecayAttentionOutput {
  at::Tensor out;          // [B, T, H, V], dtype of v
  at::Tensor final_state;  // [sequences, H, K, V] fp32 (fp64)
};

DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config);

// The state contract of a segment (one rank's slice of a sequence). Transition of the segment: S_out = exp(log_transition)
// S_in + state, with -inf where the segment holds a document start.
struct DecaySegment {
  at::Tensor log_transition;  // [sequences, H, K] fp32 (K of size 1 where the decay is per head)
  at::Tensor state;           // [sequences, H, K, V] fp32, from a zero state
};
DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);
// dL/dS_in from the segment's own outputs: [sequences, H, K, V].
at::Tensor BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout);
struct DecayAttentionGrads {
  at::Tensor dq, dk, dv;      // shape and dtype of q, k, v
  at::Tensor dlog_decay;      // shape of log_decay; undefined with none
  at::Tensor dinitial_state;  // [sequences, H, K, V]
};
// Complete gradients of the segment's tokens, given dL/d(final state) (undefined: zero).
DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const at::Tensor& dfinal_state);

// One token, state [B, H, K, V] updated in place: q [B, Hq, K], k [B, Hk, K], v [B, Hv, V], log_decay [Hd], [Hd, K] (with
// `constant_decay`), [B, Hd] or [B, Hd, K]; returns [B, H, V].
struct DecayAttentionStepInputs {
  at::Tensor q, k, v, log_decay;
  bool constant_decay = false;  // log_decay has no batch dimension
};
at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs, double scale,
                              at::Tensor& state);

}  // namespace halflife::kernels
