// A sum of parts in a fixed order (dist::Communicator::SumInOrder), on the CPU or on a GPU.
#pragma once

#include "core/tensor_ref.h"

namespace halflife::ops {

// out [N] = the sum of parts [num_parts, N], all in fp32 or all in fp64, by the binary tree of
// core/pairwise_sum.h. num_parts is at least 2. Overwrites the parts. On a GPU the work is queued
// on the stream.
void SumInOrder(TensorRef parts, int num_parts, TensorRef out, cudaStream_t stream);

}  // namespace halflife::ops
