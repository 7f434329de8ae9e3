// The one sum of the CPU: pairwise over the rank, by the binary tree of core/pairwise_sum.h,
// element by element. Every CPU communicator uses it, so threads, MPI and any cut into segments
// give the same bits; and ranks that have summed their own terms by the same tree give, at 1, 2, 4,
// ... of them, the bits that one rank alone would.
#pragma once

#include <span>

#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::dist {

// out[i] = ((in[0][i] op in[1][i]) op (in[2][i] op in[3][i])) op ...; `out` may be one of `in`.
// bf16 accumulates in fp32 and rounds once, to nearest even. Integers wrap. A NaN survives max and
// min, so that a bad rank cannot hide.
void OrderedReduce(DType dtype, ReduceOp op, std::span<const void* const> in, void* out,
                   int64_t count);

}  // namespace halflife::dist
