// Converts rows of a block of channels between the storage of activations and arrays of the compute
// type. Compiled per instruction set: see kernels/common/cpu/isa_target.h.
//
//   LoadRow(k + token * dim + channel, count, width, keys);  // keys[count .. width) = 0
//   StoreRow(keys, count, dk + token * dim + channel);
#pragma once

#include <cstdint>

#include "kernels/common/cpu/math.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

HL_INLINE float FromStorage(float x) { return x; }
HL_INLINE double FromStorage(double x) { return x; }
HL_INLINE float FromStorage(Bf16 x) { return Widen(x); }

template <typename T, typename C>
HL_INLINE T ToStorage(C x) {
  if constexpr (sizeof(T) == sizeof(Bf16)) {
    return RoundToBf16(x);
  } else {
    return x;
  }
}

template <typename T, typename C>
HL_INLINE void LoadRow(const T* __restrict from, int count, int width, C* __restrict to) {
#pragma omp simd
  for (int i = 0; i < count; ++i) to[i] = FromStorage(from[i]);
  for (int i = count; i < width; ++i) to[i] = C(0);
}
template <typename T, typename C>
HL_INLINE void StoreRow(const C* __restrict from, int count, T* __restrict to) {
#pragma omp simd
  for (int i = 0; i < count; ++i) to[i] = ToStorage<T>(from[i]);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
