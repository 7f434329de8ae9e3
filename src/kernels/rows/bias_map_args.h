// The contract of biased and mapped projections between their binding, their CPU loops and their
// CUDA kernels.
//
//   out = map(gain x + bias),   d = dout map',   dx = gain d
//   dbias = sum of d over rows,   dgain = sum of d x over rows
//
// of several projections of the same rows in one pass; only the identity has a gain. map' is 1, of
// elu + 1 min(out, 1), and of SiLU a function of x + bias. Rows of out and dout are contiguous;
// those of x and dx lie `stride` apart, as columns of one matrix do. T: float or Bf16; arithmetic
// and the sums are fp32. C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"
#include "kernels/rows/bias_map_element.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kBiasMapParts = 4;  // at most, of a pass; one with a gain counts twice

template <typename T>
struct BiasMapColumns {
  const T* x = nullptr;         // [rows, width]
  const T* bias = nullptr;      // [width]; null: none
  const float* gain = nullptr;  // [width]; null: 1
  T* out = nullptr;             // [rows, width]
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
  const T* out = nullptr;   // [rows, width]; of elu + 1
  const T* dout = nullptr;  // [rows, width]
  T* dx = nullptr;          // [rows, width]; null: not written
  float* dbias = nullptr;   // [width]; null: none
  bool added = false;       // to what dbias holds
  int64_t width = 0, stride = 0;
  ElementMap map = ElementMap::kIdentity;
  const T* x = nullptr;  // [rows, width], x_stride apart: of SiLU, and beside a gain
  int64_t x_stride = 0;
  const T* bias = nullptr;      // of SiLU, as the forward's
  const float* gain = nullptr;  // as the forward's
  float* dgain = nullptr;       // [width]; null: none
  bool gain_added = false;      // to what dgain holds
};
template <typename T>
struct BiasMapGradArgs {
  BiasMapGradColumns<T> parts[kBiasMapParts];
  int num_parts = 0;
  int64_t num_rows = 0;

  // Of partial sums: the biases' gradients, part by part, then the gains'.
  HL_EVERYWHERE int64_t num_columns() const { return gain_column(num_parts); }
  HL_EVERYWHERE int64_t gain_column(int part) const {
    int64_t column = 0;
    for (int i = 0; i < num_parts; ++i) column += parts[i].width;
    for (int i = 0; i < part; ++i) column += parts[i].dgain != nullptr ? parts[i].width : 0;
    return column;
  }
};

namespace cpu {
// Rows per partial sum of the biases' gradients: fixed, so that a sum does not depend on the number
// of threads.
constexpr int64_t kBiasMapRowsPerBlock = 128;

// Rows [begin, end).
void BiasMapForward(const BiasMapArgs<float>& args, int64_t begin, int64_t end);
void BiasMapForward(const BiasMapArgs<Bf16>& args, int64_t begin, int64_t end);
// Gradients of rows [begin, end); sums [num_columns()] += theirs.
void BiasMapBackward(const BiasMapGradArgs<float>& args, int64_t begin, int64_t end, float* sums);
void BiasMapBackward(const BiasMapGradArgs<Bf16>& args, int64_t begin, int64_t end, float* sums);
}  // namespace cpu

namespace cuda {
// Rows that a block takes at a time, and partial sums of the biases' and gains' gradients: one for
// each row of blocks, of at most so many.
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
