// The global norm's sum of squares, with the same bits for any number of threads and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "dist/parameter_layout.h"

namespace halflife::train {

// In fp64, over fixed blocks of each parameter, in order. `flat` is an arena array of this layout, fp32.
double SumOfSquares(const dist::ParameterLayout& layout, const at::Tensor& flat);

}  // namespace halflife::train
