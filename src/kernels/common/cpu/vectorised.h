// Compiles a plain loop for every instruction set and runs the version for the one in use. The loop
// must be an HL_INLINE function, so that each version has its own copy, and must take its operands
// by value or as __restrict pointers.
//
//   template <typename T>
//   HL_INLINE void SiluLoop(const T* __restrict x, T* __restrict y, int64_t n) {
//   #pragma omp simd
//     for (int64_t i = 0; i < n; ++i) y[i] = Narrow<T>(Widen(x[i]) * Sigmoid(Widen(x[i])));
//   }
//   template <typename T>
//   void Silu(const T* x, T* y, int64_t n) {
//     RunVectorised([&]() HL_LAMBDA_INLINE { SiluLoop(x, y, n); });
//   }
#pragma once

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"

namespace halflife::kernels::cpu {

#if defined(__x86_64__) && defined(__GNUC__)
namespace internal {

template <typename Body>
__attribute__((target(HL_TARGET_AVX512))) auto RunAvx512(const Body& body) {
  return body();
}
template <typename Body>
__attribute__((target(HL_TARGET_AVX2))) auto RunAvx2(const Body& body) {
  return body();
}

}  // namespace internal

// Returns the result of `body`, a lambda marked HL_LAMBDA_INLINE.
template <typename Body>
HL_INLINE auto RunVectorised(const Body& body) {
  switch (InstructionSetInUse()) {
    case InstructionSet::kAvx512:
      return internal::RunAvx512(body);
    case InstructionSet::kAvx2:
      return internal::RunAvx2(body);
    case InstructionSet::kBaseline:
      break;
  }
  return body();
}
#else
template <typename Body>
HL_INLINE auto RunVectorised(const Body& body) {
  return body();
}
#endif

}  // namespace halflife::kernels::cpu
