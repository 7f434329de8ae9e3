// Decay attention as the mixers call it: S_t = diag(exp(log_decay_t)) S_{t-1} + k_t^T v_t,  o_t = scale q_t S_t
// (decay first, then add, then read). Chunkwise, vectorised over chunks, with exponents that are never positive;
// differentiable in q, k, v, log_decay and the initial state by formulas of its own (no autograd tape inside).
// Besides the whole, the four pieces that sequence parallelism exchanges between ranks are public.
//
//   auto [out, final_state] = DecayAttention({.q = q, .k = k, .v = v, .log_decay = g}, {.scale = 1 / sqrt(K)});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::kernels {

struct DecayAttentionInputs {
  at::Tensor q;  // [B, T, H, K] fp32 or bf16
  at::Tensor k;  // [B, T, H, K]
  at::Tensor v;  // [B, T, H, V]
  // Natural log of the decay, fp32, <= 0, -inf allowed: [H] constant per head (no gradient), or [B, T, H] per token, or
  // [B, T, H, K] per token and channel.
  at::Tensor log_decay;
  at::Tensor
      documents;  // [B, T] int64, number of the document within the row; undefined: one per row
  at::Tensor
      starts;  // [B, T] bool, true where a document starts (state reset before the token); with `documents`
  at::Tensor
      initial_state;  // [B, H, K, V] fp32, or undefined: zero. Only tokens before the row's first start see it.
};

struct DecayAttentionConfig {
  double scale = 1;
  int64_t chunk_size = 64;  // any >= 1
};

struct DecayAttentionOutput {
  at::Tensor out;          // [B, T, H, V], dtype of v
  at::Tensor final_state;  // [B, H, K, V] fp32
};

DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config);

// The state contract of a segment (one rank's slice of a sequence). Transition of the segment: S_out = exp(log_transition)
// S_in + state, with -inf where the segment holds a document start.
struct DecaySegment {
  at::Tensor log_transition;  // [B, H, K] fp32 (K of size 1 where the decay is per head)
  at::Tensor state;           // [B, H, K, V] fp32, from a zero state
};
DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);
// dL/dS_in from the segment's own outputs: [B, H, K, V].
at::Tensor BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout);
struct DecayAttentionGrads {
  at::Tensor dq, dk, dv, dlog_decay, dinitial_state;  // dlog_decay undefined for constant decay
};
// Complete gradients of the segment's tokens, given dL/d(final state) (undefined: zero).
DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const at::Tensor& dfinal_state);

// One token, state [B, H, K, V] updated in place: q, k [B, H, K], v [B, H, V], log_decay [H], [B, H] or [B, H, K].
at::Tensor DecayAttentionStep(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& log_decay, double scale, at::Tensor& state);

}  // namespace halflife::kernels
