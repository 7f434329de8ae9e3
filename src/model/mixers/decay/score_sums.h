// What torchscale's parallel retention divides a row of scores by (retnet.cc).
//
//   const at::Tensor sums = ScoreSums({.q = q,
//                                      .k = k,
//                                      .positions = slice.positions,
//                                      .log_decay = log_decay,
//                                      .scale = 0.125});
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::model {

struct ScoreRows {
  at::Tensor q;  // [B, T, H, K]
  at::Tensor k;  // [B, N, Hk, K], the last T of the queries' own tokens; H / Hk heads read one
  at::Tensor positions;  // [B, T] int64, in the tokens' documents: as many keys before are seen
  at::Tensor log_decay;  // [H] fp32
  double scale = 1;      // of products
};

// sum_{m <= n} |scale q_n k_m| e^((n - m) log_decay) over the document: [B, T, H], in fp32 (fp64
// beside fp64), without a gradient. Time grows with T N, memory with N.
at::Tensor ScoreSums(const ScoreRows& rows);

}  // namespace halflife::model
