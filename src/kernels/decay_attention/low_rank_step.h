// One token of decay attention with a decay per key channel that is the product of two matrices, as
// in gated linear attention:
//
//   log_decay[b, h, k] = max(scale ln sigmoid(hidden[b] . weight[h K + k] + bias[h K + k]), floor)
//
// The step computes it by itself, in place of a product, a gate and a read from memory. The result
// has the bits of these operations (row_products_args.h, decay_gates_args.h).
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/rows/decay_gates_args.h"

namespace halflife::kernels {

constexpr int kMaxDecayRank = 64;

struct LowRankDecay {
  const Bf16* hidden = nullptr;  // [B, rank], aligned to 16 bytes
  int64_t hidden_stride = 0;     // elements between rows
  const Bf16* weight = nullptr;  // [Hd K, rank], contiguous, aligned to 16 bytes
  int rank = 0;                  // a multiple of 8, at most kMaxDecayRank
  DecayGateForm form;            // bias [Hd K], scale, floor
};

// `args` are those of Step() with bf16 and DecayKind::kPerTokenChannel, without log_decay.
namespace cpu {
void LowRankStep(const DecayAttentionStepArgs& args, const LowRankDecay& decay);  // for tests
}  // namespace cpu
namespace cuda {
void LowRankStep(const DecayAttentionStepArgs& args, const LowRankDecay& decay,
                 cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
