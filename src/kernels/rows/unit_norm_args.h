// Arguments of the scaling of rows to Euclidean norm 1, shared by its LibTorch side, CPU loops and
// CUDA kernels.
//
//   y = f x,   f = 1 / sqrt(sum(x^2) + eps)
//   dx = f (dy - y dot(dy, y))
//
// One pass handles several matrices of the same size, such as queries and keys. Rows are
// contiguous. T is float or Bf16; arithmetic is fp32. C++17 without LibTorch, because CUDA sources
// include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kUnitNormParts = 2;  // maximum parts of a pass

template <typename T>
struct UnitNormPart {
  const T* x = nullptr;     // [rows, dim]
  T* out = nullptr;         // [rows, dim]
  float* factor = nullptr;  // [rows], f
};
template <typename T>
struct UnitNormArgs {
  UnitNormPart<T> parts[kUnitNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
  float eps = 0;
};

template <typename T>
struct UnitNormGradPart {
  const T* out = nullptr;         // [rows, dim], y
  const float* factor = nullptr;  // [rows]
  const T* dout = nullptr;        // [rows, dim]
  T* dx = nullptr;                // [rows, dim]
};
template <typename T>
struct UnitNormGradArgs {
  UnitNormGradPart<T> parts[kUnitNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
};

namespace cpu {
// Processes rows [begin, end) of every part.
template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, int64_t begin, int64_t end);
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, cudaStream_t stream);
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
