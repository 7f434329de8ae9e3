// The sums of absolute scores by which torchscale's parallel retention divides (retnet.cc).
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::model {

struct ScoreRows {
  at::Tensor q;          // [B, T, H, K]
  at::Tensor k;          // [B, N, Hk, K]; the last T keys are those of the queries' tokens
  at::Tensor positions;  // [B, T] int64 within the documents; a query sees as many earlier keys
  at::Tensor log_decay;  // [H] fp32
  double scale = 1;      // factor on q k
};

// sum_{m <= n} |scale q_n k_m| e^((n - m) log_decay) over the document, [B, T, H] in fp32 (fp64 for
// fp64 inputs), without a gradient. Takes O(T N) time and O(N) memory.
at::Tensor ScoreSums(const ScoreRows& rows);

}  // namespace halflife::model
