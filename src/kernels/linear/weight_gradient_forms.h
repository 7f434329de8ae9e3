// The versions of the weight gradient's kernel, each compiled in its own file. weight_gradient.cc
// selects one.
#pragma once

#include "kernels/linear/weight_gradient.h"

namespace halflife::kernels::cpu {
namespace avx512 {
int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
void WeightGradient(const WeightGradientArgs& args);
}  // namespace avx512
namespace avx2 {
int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args);
void WeightGradient(const WeightGradientArgs& args);
}  // namespace avx2
}  // namespace halflife::kernels::cpu
