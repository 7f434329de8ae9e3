// The contract of biased and mapped projections between their binding, their CPU loops and their
// CUDA kernels.
//
//   out = map(x + bias),   dx = dout map',   dbias = sum of dx over rows
//
// of several projections of the same rows in one pass. map' follows from `out`: 1, or of elu + 1
// min(out, 1). Rows of out and dout are contiguous; those of x and dx lie `stride` apart, as
// columns of one matrix do. T: float or Bf16; arithmetic and the sums are fp32. C++17, no LibTorch:
// CUDA sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/bias_map/element_map.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kBiasMapParts = 4;  // at most, of a pass

template <typename T>
struct BiasMapColumns {
  const T* x = nullptr;     // [rows, width]
  const T* bias = nullptr;  // [width]; null: none
  T* out = nullptr;         // [rows, width]
  int64_t width = 0, stride = 0;
  ElementMap map = ElementMap::kIdentity;
};
template <typename T>
struct BiasMapArgs {
  BiasMapColumns<T> parts[kBiasMapParts];
  int num_parts = 0;
  int64_t num_rows = 0;
};

template <typename T>
struct BiasMapGradColumns {
  const T* out = nullptr;   // [rows, width]; the identity needs none
  const T* dout = nullptr;  // [rows, width]
  T* dx = nullptr;          // [rows, width]; null: not written
  float* dbias = nullptr;   // [width]; null: none
  bool added = false;       // to what dbias holds
  int64_t width = 0, stride = 0;
  ElementMap map = ElementMap::kIdentity;
};
template <typename T>
struct BiasMapGradArgs {
  BiasMapGradColumns<T> parts[kBiasMapParts];
  int num_parts = 0;
  int64_t num_rows = 0;

  int64_t num_columns() const {
    int64_t sum = 0;
    for (int i = 0; i < num_parts; ++i) sum += parts[i].width;
    return sum;
  }
};

namespace cpu {
// Rows per partial sum of the biases' gradients: fixed, so that a sum does not depend on the number
// of threads.
constexpr int64_t kBiasMapRowsPerBlock = 128;

// Rows [begin, end).
void BiasMapForward(const BiasMapArgs<float>& args, int64_t begin, int64_t end);
void BiasMapForward(const BiasMapArgs<Bf16>& args, int64_t begin, int64_t end);
// Gradients of rows [begin, end); sums [num_columns()] += theirs, of the parts one after the other.
void BiasMapBackward(const BiasMapGradArgs<float>& args, int64_t begin, int64_t end, float* sums);
void BiasMapBackward(const BiasMapGradArgs<Bf16>& args, int64_t begin, int64_t end, float* sums);
}  // namespace cpu

namespace cuda {
// Rows that a block takes at a time, and partial sums of the biases' gradients: one for each row of
// blocks, of at most so many.
constexpr int64_t kBiasMapBlockRows = 8, kBiasMapMaxPartials = 128;
inline int64_t NumBiasMapPartials(int64_t num_rows) {
  return std::min(kBiasMapMaxPartials, (num_rows + kBiasMapBlockRows - 1) / kBiasMapBlockRows);
}

void BiasMapForward(const BiasMapArgs<float>& args, cudaStream_t stream);
void BiasMapForward(const BiasMapArgs<Bf16>& args, cudaStream_t stream);
// `partials` holds NumBiasMapPartials(num_rows) num_columns() floats.
void BiasMapBackward(const BiasMapGradArgs<float>& args, float* partials, cudaStream_t stream);
void BiasMapBackward(const BiasMapGradArgs<Bf16>& args, float* partials, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
