// The same in LibTorch calls: for dropout, which keeps all probabilities, and for CUDA.
#pragma once

#include "kernels/softmax_attention/softmax_attention.h"

namespace halflife::kernels {

// As SoftmaxAttention. Queries come in blocks, each with the keys that it may see.
at::Tensor ComposedSoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                                    const SoftmaxAttentionConfig& config);

}  // namespace halflife::kernels
