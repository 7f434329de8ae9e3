// Softmax attention of rows: the scores' pattern, biases by distance, decays with distance and a
// second pair of queries and keys for far distances, so that one kernel serves the ways of telling
// positions; and the squared ReLU of gated attention units in the softmax's place. No [T, S]
// tensor: tiles of 64 x 64 that no query sees cost nothing. On a GPU that is so of what its kernels
// take (cuda::WhyNot, args.h); the rest goes through LibTorch in blocks of queries.
//
//   const at::Tensor out = SoftmaxAttention(
//       {.q = q, .k = k, .v = v, .positions = slice.positions}, {.scale = 1 / std::sqrt(64.0)});
//
// B rows, T queries, S >= T keys, the last T of which are the queries' own; H heads of queries and
// Hk, a divisor, of keys and values; widths d and V. Query t is at place S - T + t of its row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/rows/dropout.h"
#include "ops/softmax_attention/visible_keys.h"

namespace halflife::ops {

struct SoftmaxAttentionInputs {
  at::Tensor q;  // [B, T, H, d] fp32, bf16 or fp64
  at::Tensor k;  // [B, S, Hk, d]
  at::Tensor v;  // [B, S, Hk, V]
  // In place of q and k between tokens far_from or more apart; far_k undefined: k serves there too.
  at::Tensor far_q = {}, far_k = {};
  // Added to the scores of head h at distance n, ahead as well as back, [H, at least S] in the
  // compute type (fp32, or fp64 beside fp64); undefined: none.
  at::Tensor bias = {};
  // Of each query's bias, [B, T] in the compute type, a constant in backward; undefined: 1 each.
  at::Tensor bias_scale = {};
  at::Tensor positions;  // [B, T] int64: of each query in its document
  // VisibleKeysOf the positions, where the caller has them already; else they are made anew.
  VisibleKeys seen = {};
  // Whether it is known that all tokens of a row are of one document: LibTorch's causal attention,
  // which CUDA has, knows no other.
  bool one_document = false;
};
// Factors of a tile, or a block of up to 512 tokens, are then e^(0.1 x 512) at most: within fp32.
constexpr double kFastestDecay = -0.1;

struct SoftmaxAttentionConfig {
  double scale = 1;  // of the products of q and k
  // A bidirectional one takes neither far_q nor decays: these know no way ahead.
  KeyPattern pattern = {};
  // Weights are max(0, score)^2 over the number of keys that the query sees (Hua et al., 2022;
  // there the number is squared, too), in place of the softmax.
  bool squared_relu = false;
  int64_t far_from = 0;  // with far_q: at least 1
  // Channel c of a product decays by e^(decay_rates[c] distance), from kFastestDecay to 0: [d], or
  // empty. Not with far_q. Finite at any length.
  std::vector<double> decay_rates = {};
  // Of the weights, after they are divided; a pair's is drawn by its row, head and places
  // (kernels/common/dropout_draws.h). Its first_position is S - T: keys are a row's from the beginning.
  DropoutConfig dropout = {};
};

// [B, T, H, V] in q's dtype, differentiable in all inputs but the positions and bias_scale. A query
// that sees no key gets zeros. Error (exit 2) for shapes that do not fit.
at::Tensor SoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                            const SoftmaxAttentionConfig& config);

}  // namespace halflife::ops
