// Constant decays that may lie above 1, lowered to at most 1, and the factors of keys that make up
// for it (decay_attention/growth.h), of whole sequences: nothing is in their state and no key has a
// scale of its own. One pass. fp32 decays of up to 512 heads, on a device with kernels.
//
//   const LoweredGrowth lowered = LowerGrowth(log_decay, num_heads, *chunks);
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/sequence/sequence_chunks.h"

namespace halflife::ops {

struct LoweredGrowth {
  at::Tensor log_decay;        // of the given shape; differentiable
  at::Tensor key_factor;       // [B, T, H] fp32
  at::Tensor final_log_scale;  // [sequences, H] fp64
};

// log_decay [Hd] or [Hd, K], Hd a divisor of H.
bool CanLowerGrowth(const at::Tensor& log_decay, int64_t num_heads);
LoweredGrowth LowerGrowth(const at::Tensor& log_decay, int64_t num_heads,
                          const SequenceChunks& chunks);

}  // namespace halflife::ops
