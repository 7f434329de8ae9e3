// Polynomial attention as the mixers call it: causal attention whose similarity is
// a0 + a1 s + a2 s^2 with s = scale q.k, divided by the sum of the similarities where it is
// normalised (args.h). Differentiable in q, k, v and the initial state, through out and the final
// state. Short sequences are computed token against token, long ones in chunks with a state of the
// packed features of k, which never lie in memory token by token; on a GPU bf16 goes token against
// token up to 32,768 tokens (plan.cc), and meets earlier ones by their state (with_states.h).
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
#include "ops/torch/column_places.h"

namespace halflife::ops {

// What a sequence carries from token to token: sums over its tokens of psi(k) v and of psi(k), F
// features wide (features.h). After more tokens it is what it was plus their own, or their own
// alone where a document started.
struct PolynomialState {
  at::Tensor kv = {};    // [sequences, H, F, V] fp32 (fp64 beside fp64 operands); undefined: zero
  at::Tensor norm = {};  // [sequences, H, F] likewise, where normalised
};

struct PolynomialAttentionInputs {
  at::Tensor q;  // [B, T, H, d] fp32, bf16, or fp64 on the CPU; k and v alike
  at::Tensor k;  // [B, T, H, d]
  at::Tensor v;  // [B, T, H, V]
  // Where documents start inside the rows; null: each row goes on from its initial state.
  std::shared_ptr<const SequenceChunks> chunks = {};
  PolynomialState initial_state = {};  // sequences are rows, or chunks'
  // Rows of which other ranks hold the rest: from no initial state, and without a final one.
  std::shared_ptr<const RowSegment> segment = {};
  // Where theirs go, as columns of a matrix, and the output; not of segments.
  ColumnPlace q_gradient = {}, k_gradient = {}, v_gradient = {}, out_place = {};
};

struct PolynomialAttentionConfig {
  double scale = 1;
  kernels::PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;       // added to the sum of similarities
  bool want_final_state = true;  // short sequences need none for themselves
  kernels::PolynomialForm form = kernels::PolynomialForm::kByShape;
};

struct PolynomialAttentionOutput {
  at::Tensor out;               // [B, T, H, V], dtype of v
  PolynomialState final_state;  // undefined unless wanted
  // [B, T, H] fp32 (fp64): what out was divided by; undefined unless normalised and differentiated.
  at::Tensor norm_denom = {};
};

// Throws Error for shapes, dtypes and devices that do not fit each other or the kernels.
PolynomialAttentionOutput PolynomialAttention(const PolynomialAttentionInputs& inputs,
                                              const PolynomialAttentionConfig& config);

// What sequence parallelism exchanges between segments: the final state from none, and dL/d(initial
// state) from the segment's own outputs, of which `output` holds out and norm_denom.
PolynomialState Summarise(const PolynomialAttentionInputs& inputs,
                          const PolynomialAttentionConfig& config);
PolynomialState BackwardSummarise(const PolynomialAttentionInputs& inputs,
                                  const PolynomialAttentionConfig& config,
                                  const PolynomialAttentionOutput& output, const at::Tensor& dout);

// One token: q and k [B, H, d], v [B, H, V]; returns [B, H, V]. The state of B sequences is updated
// in place: what PolynomialAttention left as final_state, or zeros.
struct PolynomialAttentionStepInputs {
  at::Tensor q, k, v;
};
at::Tensor PolynomialAttentionStep(const PolynomialAttentionStepInputs& inputs,
                                   const PolynomialAttentionConfig& config, PolynomialState& state);

}  // namespace halflife::ops
