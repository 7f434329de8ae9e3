// The only sum on the CPU: pairwise over ranks, by the binary tree of core/pairwise_sum.h, element
// by element. Every CPU communicator uses it, so threads, MPI and any split into segments give the
// same bits. If 1, 2, 4, ... ranks first sum their own terms by the same tree, the result has the
// same bits as on a single rank.
#pragma once

#include <span>

#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::dist {

// out[i] = ((in[0][i] op in[1][i]) op (in[2][i] op in[3][i])) op ...; `out` may be one of `in`.
// bf16 accumulates in fp32 and is rounded once, to nearest even. Integers wrap. Max and min keep a
// NaN, so that a bad rank cannot hide.
void OrderedReduce(DType dtype, ReduceOp op, std::span<const void* const> in, void* out,
                   int64_t count);

}  // namespace halflife::dist
