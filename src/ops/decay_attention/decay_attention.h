// Decay attention as the mixers call it: S_t = diag(exp(log_decay_t)) S_{t-1} + (c_t k_t)^T v_t,
// out_t = scale q_t S_t (decay first, then add, then read), with the normaliser over z_t, the same
// sum of the keys alone. Runs the kernels behind args.h; differentiable in q, k, v, log_decay,
// key_scale and the initial state, through out and the final state. Besides the whole, the four
// pieces that sequence parallelism exchanges between ranks are public.
//
//   auto [out, final_state] =
//       DecayAttention({.q = q, .k = k, .v = v, .log_decay = g}, {.scale = 1 / sqrt(K)});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

// What a sequence carries from token to token: from prefill to decode, from one segment to the
// next.
struct DecayState {
  at::Tensor kv = {};    // S [sequences, H, K, V] fp32 (fp64 beside fp64 operands); undefined: zero
  at::Tensor norm = {};  // z [sequences, H, K] likewise, with NormKind::kSumOfKeys
  // [sequences, H] fp64, with allow_growth: S and z are exp(log_scale) times the two above;
  // undefined: 0. Not differentiable.
  at::Tensor log_scale = {};
};

// q, k, v and log_decay may have fewer heads than H, the most of them: head h reads index h * heads
// / H.
struct DecayAttentionInputs {
  at::Tensor q;  // [B, T, Hq, K] fp32, bf16, or fp64 on the CPU; k and v alike
  at::Tensor k;  // [B, T, Hk, K]
  at::Tensor v;  // [B, T, Hv, V]
  // Natural log of the decay, fp32 (fp64 beside fp64). [Hd] constant per head, [Hd, K] per head and
  // channel, [B, T, Hd] per token, [B, T, Hd, K] per token and channel, or undefined: none. <= 0,
  // -inf allowed; a decay may grow (> 0) while every sum over a chunk stays below 60, and without
  // that limit under allow_growth.
  at::Tensor log_decay = {};
  at::Tensor key_scale = {};  // c [B, T, H] fp32 (fp64), or undefined: 1; 0 masks a key
  // [B, T, H], of any size, with allow_growth: keys count exp of it as much. Keys that are
  // exponentials come as exp(x - max x) with the maximum here, for which no gradient is due: their
  // own gradient holds all of it. Undefined: 0.
  at::Tensor log_key_scale = {};
  // With the normaliser, what its denominator reads in place of q and k: [B, T, H, K] both, or
  // undefined both.
  at::Tensor norm_q = {}, norm_k = {};
  // Where documents start inside the rows; null: each row goes on from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  DecayState initial_state = {};  // sequences are rows, or chunks'
  // Rows of which other ranks hold the rest: from no initial state, and without a final one.
  std::shared_ptr<const RowSegment> segment = {};
};

struct DecayAttentionConfig {
  double scale = 1;
  // kSumOfKeys: out = scale q S / (scale q z + norm_eps), for q and k that are positive. A row that
  // sees no key gives 0.
  kernels::NormKind norm = kernels::NormKind::kNone;
  double norm_eps = 1e-30;
  // Constant log_decay of any size over any length, or none, with kSumOfKeys: the state is kept
  // with a log scale (growth.h), and norm_eps is added at that scale.
  bool allow_growth = false;
  int num_segments = 0;  // pieces of a sequence that run in parallel; 0: by the shape
};

struct DecayAttentionOutput {
  at::Tensor out;          // [B, T, H, V], dtype of v
  DecayState final_state;  // the fields that the config asks for
};

// Throws Error for shapes, dtypes and devices that do not fit each other, and for state that the
// config has no use for.
DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config);

// The state contract of a segment (one rank's slice of a sequence). Transition of the segment:
// S_out = exp(log_transition) S_in + S, and likewise z, with -inf where the segment holds a
// document start or a decay of 0. Not with allow_growth. DecayAttention with a segment runs all.
struct DecaySegment {
  at::Tensor log_transition;  // [sequences, H, K] fp32 (K of size 1 where the decay is per head)
  DecayState state;           // from a zero state
};
DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);
// dL/d(initial state) from the segment's own outputs. With the normaliser, whose denominators hang
// on it, inputs carry the segment's initial state.
DecayState BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout);

// The state after a segment from the one before it. Backward, with the segment's BackwardSummarise
// as its state: dL/d(state before) from dL/d(state after). -inf passes nothing on, a NaN neither.
DecayState PassThrough(const DecaySegment& segment, const DecayState& before);

struct DecayAttentionGrads {
  at::Tensor dq, dk, dv;           // shape and dtype of q, k, v
  at::Tensor dlog_decay;           // shape of log_decay; undefined with none
  at::Tensor dkey_scale = {};      // [B, T, H]; undefined with none
  DecayState dinitial_state = {};  // log_scale undefined
};
// Complete gradients of the segment's tokens, given dL/d(final state) (undefined: zero).
DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const DecayState& dfinal_state);

// One token: q [B, Hq, K], k [B, Hk, K], v [B, Hv, V], log_decay [Hd], [Hd, K] (with
// `constant_decay`), [B, Hd] or [B, Hd, K], key_scale [B, H]; returns [B, H, V]. The state of B
// sequences is updated in place, in every field that the config asks for: what DecayAttention left
// as final_state, or zeros.
struct DecayAttentionStepInputs {
  at::Tensor q, k, v;
  at::Tensor log_decay = {};
  bool constant_decay = false;  // log_decay has no batch dimension
  at::Tensor key_scale = {};
  at::Tensor log_key_scale = {};        // [B, H]
  at::Tensor norm_q = {}, norm_k = {};  // [B, H, K]
};
at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs,
                              const DecayAttentionConfig& config, DecayState& state);

}  // namespace halflife::ops
