#include "kernels/common/cpu/vectorised.h"
#include "kernels/linear/linear_products.h"

namespace halflife::kernels::cpu {
namespace {

HL_INLINE void WidenLoop(const Bf16* __restrict x, float* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Widen(x[i]);
}
HL_INLINE void NarrowLoop(const float* __restrict x, Bf16* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Narrow<Bf16>(x[i]);
}

}  // namespace

void WidenRange(const Bf16* x, float* y, int64_t count) {
  RunVectorised([&]() HL_LAMBDA_INLINE { WidenLoop(x, y, count); });
}
void NarrowRange(const float* x, Bf16* y, int64_t count) {
  RunVectorised([&]() HL_LAMBDA_INLINE { NarrowLoop(x, y, count); });
}

}  // namespace halflife::kernels::cpu
