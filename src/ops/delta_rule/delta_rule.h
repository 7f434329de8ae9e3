// The delta rule as the mixers delta_net, gated_delta_net, gated_delta_product and kda call it.
// Each value head has a state S [K, V], and a token replaces a share beta of what the state holds
// for its key:
//
//   S~ = exp(log_decay_t) S_(t-1),  S_t = S~ + k_t^T beta_t (v_t - k_t S~),  out_t = scale q_t S_t
//
// (Yang et al., 2025, "Gated Delta Networks"; Kimi Team, 2025, with decays per channel). The state
// decays first, then the token is written, then the query reads. The functions are differentiable
// in q, k, v, log_decay, beta and the initial state, through out and the final state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

// H heads of queries and keys serve HV value heads, a multiple of H: value head h reads the query
// and the key of head h * H / HV.
struct DeltaRuleInputs {
  // [B, T, H, K] fp32, bf16 or fp64; k and v have the same dtype. The caller normalises the keys:
  // the state stays bounded if |k| <= 1, 0 <= beta <= 2 and log_decay <= 0.
  at::Tensor q, k;
  at::Tensor v;  // [B, T, HV, V]
  // Natural log of the decay, fp32 (fp64 with fp64 operands), <= 0 and possibly -inf, which resets
  // the state. [B, T, HV] per head, [B, T, HV, K] per key channel, or undefined for no decay.
  at::Tensor log_decay = {};
  at::Tensor beta;  // [B, T, HV] fp32 (fp64)
  // Where documents start inside the rows. Null: each row continues from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  // [sequences, HV, K, V]; undefined: zero. Sequences are the batch rows, or those of `chunks`.
  at::Tensor initial_state = {};
  // Rows that are split across ranks. There is then no initial state and no final state.
  std::shared_ptr<const RowSegment> segment = {};
};

struct DeltaRuleOutput {
  at::Tensor out;          // [B, T, HV, V], dtype of v
  at::Tensor final_state;  // [sequences, HV, K, V] fp32 (fp64)
};

// Throws Error if shapes, dtypes or devices do not fit each other.
DeltaRuleOutput DeltaRule(const DeltaRuleInputs& inputs, double scale);

// One token per sequence.
struct DeltaRuleStepInputs {
  at::Tensor q, k;            // [B, H, K]
  at::Tensor v;               // [B, HV, V]
  at::Tensor log_decay = {};  // [B, HV], [B, HV, K] or undefined
  at::Tensor beta;            // [B, HV]
};
// Updates the state [B, HV, K, V] in place and returns [B, HV, V]. Pass the final_state of
// DeltaRule, or zeros. Not differentiable.
at::Tensor DeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale, at::Tensor& state);

// On a GPU, DeltaRule() is composed of LibTorch operations if the kernels do not support its heads.
// Returns the fp32 elements that autograd keeps of them per token and value head, for planning.
// `per_channel`: log_decay is [B, T, HV, K].
double ComposedDeltaRuleActivations(int64_t dim_k, int64_t dim_v, bool per_channel);

}  // namespace halflife::ops
