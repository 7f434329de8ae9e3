// Lowers constant decays, which may be above 1, to at most 1, and computes the factors of keys that
// compensate for it (decay_attention/growth.h). For whole sequences with an empty initial state and
// without key scales. One pass. Supports fp32 decays of up to 512 heads on devices with kernels.
//
//   const LoweredGrowth lowered = LowerGrowth(log_decay, num_heads, *chunks);
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

struct LoweredGrowth {
  at::Tensor log_decay;        // shape of the input; differentiable
  at::Tensor key_factor;       // [B, T, H] fp32
  at::Tensor final_log_scale;  // [sequences, H] fp64
};

// Returns true if LowerGrowth() supports the call. log_decay is [Hd] or [Hd, K], and Hd divides H.
bool CanLowerGrowth(const at::Tensor& log_decay, int64_t num_heads);
LoweredGrowth LowerGrowth(const at::Tensor& log_decay, int64_t num_heads,
                          const SequenceChunks& chunks);

}  // namespace halflife::ops
