// Decay attention as the mixers call it: S_t = diag(exp(log_decay_t)) S_{t-1} + (c_t k_t)^T v_t,
// out_t = scale q_t S_t (first decay, then add, then read). With the normaliser, the output is
// divided by a denominator read from z_t, the same recurrence without the values. The functions run
// the kernels behind decay_attention_args.h and are differentiable in q, k, v, log_decay, key_scale
// and the initial state, through out and the final state. The four pieces that sequence parallelism
// exchanges between ranks are public, too.
//
//   auto [out, final_state] =
//       DecayAttention({.q = q, .k = k, .v = v, .log_decay = g}, {.scale = 1 / sqrt(K)});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/rows/decay_gates.h"
#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

// The state that a sequence carries from token to token, for example from prefill to decode or from
// one segment to the next.
struct DecayState {
  at::Tensor kv = {};    // S [sequences, H, K, V] fp32 (fp64 with fp64 operands); undefined: zero
  at::Tensor norm = {};  // z [sequences, H, K], same dtype; with NormKind::kSumOfKeys
  // [sequences, H] fp64, used with allow_growth: the true S and z are exp(log_scale) times the two
  // fields above. Undefined: 0. Not differentiable.
  at::Tensor log_scale = {};
};

// q, k, v and log_decay may have fewer heads than H, the largest head count among them. Head h of
// the output then reads head h * heads / H.
struct DecayAttentionInputs {
  at::Tensor q;  // [B, T, Hq, K] fp32, bf16, or fp64 on the CPU; k and v have the same dtype
  at::Tensor k;  // [B, T, Hk, K]
  at::Tensor v;  // [B, T, Hv, V]
  // Natural log of the decay, fp32 (fp64 with fp64 operands). Shapes: [Hd] constant per head, [Hd,
  // K] constant per head and channel, [B, T, Hd] per token, [B, T, Hd, K] per token and channel, or
  // undefined for no decay. Values are <= 0 and may be -inf. A decay may grow (> 0) if every sum
  // over a chunk is below 60; with allow_growth, there is no such limit.
  at::Tensor log_decay = {};
  at::Tensor key_scale = {};  // c [B, T, H] fp32 (fp64), or undefined: 1; 0 masks a key
  // [B, T, H], of any magnitude, used with allow_growth: each key is multiplied by exp of it. Pass
  // keys that are exponentials as exp(x - max x) with the maximum here. It gets no gradient, as the
  // keys' own gradient already contains all of it. Undefined: 0.
  at::Tensor log_key_scale = {};
  // With the normaliser, separate operands q and k for its denominator: both [B, T, H, K] or both
  // undefined.
  at::Tensor norm_q = {}, norm_k = {};
  // Where documents start inside the rows. Null: each row continues from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  DecayState initial_state = {};  // sequences are the batch rows, or those of `chunks`
  // Rows that are split across ranks. There is then no initial state and no final state.
  std::shared_ptr<const RowSegment> segment = {};
  ColumnSlice q_gradient = {}, k_gradient = {}, v_gradient = {};  // buffers of the gradients
};

struct DecayAttentionConfig {
  double scale = 1;
  // kSumOfKeys: out = scale q S / (scale q z + norm_eps), for positive q and k. A row that has seen
  // no key yields 0.
  kernels::NormKind norm = kernels::NormKind::kNone;
  double norm_eps = 1e-30;
  // Allows a constant log_decay of any size over any length, or no log_decay. Requires kSumOfKeys.
  // The state is kept with a log scale (decay_attention_growth.cc), and norm_eps is added at that
  // scale.
  bool allow_growth = false;
  int num_segments = 0;  // parts of a sequence that run in parallel; 0: chosen by shape
  int batch_tiles = 0;   // CUDA: groups of rows that run one after the other; 0: chosen by shape
  // CUDA: kOff runs the mma.sync kernels on Hopper, too, for example to compare both in one process
  kernels::WarpgroupUse warpgroups = kernels::WarpgroupUse::kAuto;
};

struct DecayAttentionOutput {
  at::Tensor out;          // [B, T, H, V], dtype of v
  DecayState final_state;  // the fields that the config uses
};

// Throws Error if shapes, dtypes or devices do not fit each other, or if the state has a field that
// the config does not use.
DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config);

// The state contract of a segment (one rank's part of a sequence). The transition of the segment is
// S_out = exp(log_transition) S_in + S, and the same for z. log_transition is -inf if the segment
// contains a document start or a decay of 0. Not available with allow_growth. DecayAttention with a
// `segment` runs the whole exchange.
struct DecaySegment {
  // [sequences, H, K] fp32 (size 1 in place of K if the decay is per head)
  at::Tensor log_transition;
  DecayState state;  // the final state if the segment starts from zero
};
DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);
// dL/d(initial state) from the segment's own outputs. With the normaliser, the denominators depend
// on the initial state, so the inputs must contain it.
DecayState BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout);

// Returns the state after a segment, given the state before it. In backward, pass the segment's
// BackwardSummarise as its state: the result is dL/d(state before) from dL/d(state after). A
// log_transition of -inf passes nothing on, not even a NaN.
DecayState PassThrough(const DecaySegment& segment, const DecayState& before);

struct DecayAttentionGrads {
  at::Tensor dq, dk, dv;           // shapes and dtypes of q, k, v
  at::Tensor dlog_decay;           // shape of log_decay; undefined if there is none
  at::Tensor dkey_scale = {};      // [B, T, H]; undefined if there is no key_scale
  DecayState dinitial_state = {};  // its log_scale is undefined
};
// Returns the complete gradients of the segment's tokens, given dL/d(final state) (undefined:
// zero).
DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const DecayState& dfinal_state);

// A decay per key channel as the product of two matrices and a gate (ops/rows/decay_gates.h):
// log_decay = max(scale ln sigmoid(hidden weight^T + bias), floor).
struct LowRankDecay {
  at::Tensor hidden;  // [B, R]; undefined: none
  at::Tensor weight;  // [Hd K, R]
  at::Tensor bias;    // [Hd K] fp32
  DecayGateConfig gate = {};
};

// One token per sequence: q [B, Hq, K], k [B, Hk, K], v [B, Hv, V], log_decay [B, Hd] or [B, Hd, K]
// (with `constant_decay`, [Hd] or [Hd, K]), key_scale [B, H]. Returns [B, H, V]. The state of the B
// sequences is updated in place and must have every field that the config uses: pass the
// final_state of DecayAttention, or zeros.
struct DecayAttentionStepInputs {
  at::Tensor q, k, v;
  at::Tensor log_decay = {};
  bool constant_decay = false;  // log_decay has no batch dimension
  LowRankDecay low_rank = {};   // in place of log_decay; part of the same launch where possible
  at::Tensor key_scale = {};
  at::Tensor log_key_scale = {};        // [B, H]
  at::Tensor norm_q = {}, norm_k = {};  // [B, H, K]
};
at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs,
                              const DecayAttentionConfig& config, DecayState& state);

// Returns true if scans use the warpgroup instructions (wgmma), which only Hopper (sm_90) has.
// Their kernels are empty unless compiled for sm_90a; a build for sm_90, for example by CMake's
// "native", does not contain them. `setting` is the value of HALFLIFE_WARPGROUPS, null if unset:
// "0" selects the kernels for other GPUs. These give the same bits in forward and the same
// gradients up to rounding.
bool ShouldUseWgmma(int compute_capability_major, bool built_for_sm_90a, const char* setting);

// Returns the limits of CUDA device `index`, which must exist. Only in builds with CUDA.
kernels::DeviceLimits LimitsOfGpu(int index);

}  // namespace halflife::ops
