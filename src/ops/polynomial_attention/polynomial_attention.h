// Polynomial attention for the mixers: causal attention with the similarity a0 + a1 s + a2 s^2, s =
// scale q.k, divided by the sum of the similarities if normalized (polynomial_attention_args.h).
// Differentiable in q, k, v and the initial state, through out and the final state.
//
// Short sequences use the quadratic kernel. Long ones use chunks with a state of the packed
// features of k, which are never stored per token. On a GPU, bf16 uses the quadratic kernel up to
// 32,768 tokens (polynomial_attention_plan.cc) and accounts for earlier tokens through their state
// (polynomial_with_states.h).
//
//   auto [out, final_state, divisors] =
//       PolynomialAttention({.q = q, .k = k, .v = v},
//                           {.scale = 1 / sqrt(d), .weights = {.a0 = 1, .a1 = 1, .a2 = 0.5}});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/polynomial_attention/polynomial_attention_args.h"
#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

// The state that a sequence carries from token to token: the sums over its tokens of psi(k) v and
// of psi(k), with F features (features.h). More tokens add their own sums; after a document start
// only the sums since then remain.
struct PolynomialState {
  at::Tensor kv = {};    // [sequences, H, F, V] fp32 (fp64 for fp64 inputs); undefined: zero
  at::Tensor norm = {};  // [sequences, H, F] like kv, if normalized
};

struct PolynomialAttentionInputs {
  at::Tensor q;  // [B, T, H, d] fp32, bf16, or fp64 (only on the CPU); k and v have the same dtype
  at::Tensor k;  // [B, T, H, d]
  at::Tensor v;  // [B, T, H, V]
  // Document starts inside the rows; null: each row continues from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  PolynomialState initial_state = {};  // per row, or per sequence of `chunks`
  // For rows that are split over ranks. Such a call has no initial state and returns no final
  // state.
  std::shared_ptr<const RowSegment> segment = {};
  // Buffers for the gradients and for the output, for tensors that are columns of a matrix; not
  // used with a segment.
  ColumnSlice q_gradient = {}, k_gradient = {}, v_gradient = {}, out_place = {};
};

struct PolynomialAttentionConfig {
  double scale = 1;
  kernels::PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;  // added to the sum of similarities
  // Set to false if not needed: short sequences do not compute a state for themselves.
  bool want_final_state = true;
  kernels::PolynomialForm form = kernels::PolynomialForm::kByShape;
};

struct PolynomialAttentionOutput {
  at::Tensor out;               // [B, T, H, V], dtype of v
  PolynomialState final_state;  // undefined unless requested
  // [B, T, H] fp32 (fp64): the divisor of out; undefined unless normalized and differentiated.
  at::Tensor norm_denom = {};
};

// Throws an error if shapes, dtypes or devices do not match or are not supported by the kernels.
PolynomialAttentionOutput PolynomialAttention(const PolynomialAttentionInputs& inputs,
                                              const PolynomialAttentionConfig& config);

// Returns the two quantities that sequence parallelism exchanges between segments: the final state
// for an empty initial state, and dL/d(initial state) due to the segment's own outputs. `output`
// holds the out and norm_denom of the forward.
PolynomialState Summarise(const PolynomialAttentionInputs& inputs,
                          const PolynomialAttentionConfig& config);
PolynomialState BackwardSummarise(const PolynomialAttentionInputs& inputs,
                                  const PolynomialAttentionConfig& config,
                                  const PolynomialAttentionOutput& output, const at::Tensor& dout);

// Processes one token: q and k [B, H, d], v [B, H, V]; returns [B, H, V]. The state of B sequences,
// a final_state of PolynomialAttention or zeros, is updated in place.
struct PolynomialAttentionStepInputs {
  at::Tensor q, k, v;
};
at::Tensor PolynomialAttentionStep(const PolynomialAttentionStepInputs& inputs,
                                   const PolynomialAttentionConfig& config, PolynomialState& state);

// PolynomialAttention() of inputs with a segment. The state after a segment is the state before it
// plus the segment's own sums, or only the latter after a document start. Returns only `out`: no
// rank but the last has the final state of a row.
PolynomialAttentionOutput OverSegments(const PolynomialAttentionInputs& inputs,
                                       const PolynomialAttentionConfig& config);

}  // namespace halflife::ops
