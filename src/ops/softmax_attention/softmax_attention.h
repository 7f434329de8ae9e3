// Softmax attention over rows. One kernel supports all positional schemes: a pattern of visible
// keys, biases by distance, decays with distance, and a second pair of queries and keys for far
// distances. It also supports the squared ReLU of gated attention units in place of the softmax.
// There is no [T, S] tensor, and tiles of 64 x 64 that no query sees are skipped. GPU calls that
// the CUDA kernels do not support (cuda::WhyNot, softmax_attention_args.h) run in LibTorch, in
// blocks of queries.
//
//   const at::Tensor out = SoftmaxAttention(
//       {.q = q, .k = k, .v = v, .positions = slice.positions}, {.scale = 1 / std::sqrt(64.0)});
//
// B rows; T queries; S >= T keys, of which the last T belong to the queries. H heads of queries; Hk
// heads of keys and values, a divisor of H; widths d and V. Query t has index S - T + t in its row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/rows/dropout.h"
#include "ops/softmax_attention/visible_keys.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct SoftmaxAttentionInputs {
  at::Tensor q;  // [B, T, H, d] fp32, bf16 or fp64
  at::Tensor k;  // [B, S, Hk, d]
  at::Tensor v;  // [B, S, Hk, V]
  // Used in place of q and k for pairs at a distance of far_from or more. far_k undefined: k is
  // used.
  at::Tensor far_q = {}, far_k = {};
  // [H, at least S] in the compute type (fp32, or fp64 for fp64 inputs): added to the scores of
  // head h at distance n, in either direction. Undefined: none.
  at::Tensor bias = {};
  // [B, T] in the compute type: a factor on each query's bias, without a gradient. Undefined: 1.
  at::Tensor bias_scale = {};
  at::Tensor positions;  // [B, T] int64: the position of each query in its document
  // VisibleKeysOf the positions, if the caller already has them; undefined: computed here.
  VisibleKeys seen = {};
  // Set if all tokens of a row are known to belong to one document. Required for LibTorch's causal
  // attention, which CUDA uses.
  bool one_document = false;
  ColumnSlice q_gradient = {}, k_gradient = {}, v_gradient = {};  // buffers of the gradients
};
// The fastest decay, per token. Factors within a tile, or a block of up to 512 tokens, are then at
// most e^(0.1 x 512), which fits fp32.
constexpr double kFastestDecay = -0.1;

struct SoftmaxAttentionConfig {
  double scale = 1;  // factor on the products of q and k
  // A bidirectional pattern cannot be combined with far_q or decays, which are only defined for
  // past keys.
  KeyPattern pattern = {};
  // Weights are max(0, score)^2 divided by the number of keys that the query sees, in place of the
  // softmax. (Hua et al., 2022, divide by the square of that number.)
  bool squared_relu = false;
  int64_t far_from = 0;  // minimum distance for far_q; at least 1 with far_q
  // [d], or empty. Channel c of a product of q and k decays by e^(decay_rates[c] distance), with
  // rates from kFastestDecay to 0. Not with far_q. Finite at any length.
  std::vector<double> decay_rates = {};
  // Dropout of the weights, after normalization. The random number of a pair depends on its row,
  // head and token indices (kernels/common/dropout_draws.h). first_position must be S - T: keys are
  // counted from the beginning of a row.
  DropoutConfig dropout = {};
};

// Returns [B, T, H, V] in q's dtype, differentiable in all inputs except positions and bias_scale.
// A query that sees no key gets zeros. Throws an error (exit 2) for shapes that do not match.
at::Tensor SoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                            const SoftmaxAttentionConfig& config);

}  // namespace halflife::ops
