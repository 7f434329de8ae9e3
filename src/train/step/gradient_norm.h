// The global norm's sum of squares, with the same bits for any number of threads and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "dist/parameter_layout.h"

namespace halflife::train {

// The sum is in fp64, over fixed blocks of each parameter, in order. `flat` is an fp32 array of the
// arena with this layout.
double SumOfSquares(const dist::ParameterLayout& layout, const at::Tensor& flat);

}  // namespace halflife::train
