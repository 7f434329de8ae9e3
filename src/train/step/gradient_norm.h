// The global norm's sum of squares, with the same bits for any number of threads, and for any
// number of ranks where each sums the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dist/parameter_layout.h"

namespace halflife::train {

// The sum is in fp64, over fixed blocks of each fragment, in order. `flat` is fp32; a fragment lies
// at its arena_begin in it.
double SumOfSquares(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat);

}  // namespace halflife::train
