// Arguments of biased and mapped projections, shared by their LibTorch side, CPU loops and CUDA
// kernels.
//
//   out = map(gain x + bias),   d = dout map',   dx = gain d
//   dbias = sum of d over rows,   dgain = sum of d x over rows
//
// One pass handles several projections of the same rows. A gain requires the identity map. map' is
// 1 for the identity, min(out, 1) for elu + 1, and a function of x + bias for SiLU. Rows of out and
// dout are contiguous; those of x and dx are `stride` elements apart, like columns of one matrix. T
// is float or Bf16; arithmetic and sums are fp32. C++17 without LibTorch, because CUDA sources
// include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The maps that biased projections apply to each channel.
enum class ElementMap : uint8_t {
  kIdentity,
  kEluPlusOne,  // e^min(x, 0) + max(x, 0) (Katharopoulos et al., 2020)
  kSilu,        // x / (1 + e^-x)
};

constexpr int kBiasMapParts = 4;  // maximum parts of a pass; a part with a gain counts twice

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
  const T* out = nullptr;   // [rows, width]; only for elu + 1
  const T* dout = nullptr;  // [rows, width]
  T* dx = nullptr;          // [rows, width]; null: not written
  float* dbias = nullptr;   // [width]; null: none
  bool added = false;       // true: add to the contents of dbias
  int64_t width = 0, stride = 0;
  ElementMap map = ElementMap::kIdentity;
  const T* x = nullptr;  // [rows, width], x_stride apart; for SiLU and with a gain
  int64_t x_stride = 0;
  const T* bias = nullptr;      // for SiLU, as in the forward
  const float* gain = nullptr;  // as in the forward
  float* dgain = nullptr;       // [width]; null: none
  bool gain_added = false;      // true: add to the contents of dgain
};
template <typename T>
struct BiasMapGradArgs {
  BiasMapGradColumns<T> parts[kBiasMapParts];
  int num_parts = 0;
  int64_t num_rows = 0;

  // Number of columns of the partial sums: the biases' gradients, part by part, then the gains'.
  HL_EVERYWHERE int64_t num_columns() const { return gain_column(num_parts); }
  HL_EVERYWHERE int64_t gain_column(int part) const {
    int64_t column = 0;
    for (int i = 0; i < num_parts; ++i) column += parts[i].width;
    for (int i = 0; i < part; ++i) column += parts[i].dgain != nullptr ? parts[i].width : 0;
    return column;
  }
};

namespace cpu {
// Processes rows [begin, end).
template <typename T>
void BiasMapForward(const BiasMapArgs<T>& args, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to sums [num_columns()].
template <typename T>
void BiasMapBackward(const BiasMapGradArgs<T>& args, int64_t begin, int64_t end, float* sums);
}  // namespace cpu

namespace cuda {
template <typename T>
void BiasMapForward(const BiasMapArgs<T>& args, cudaStream_t stream);
// `partials` holds NumRowPartials(num_rows) num_columns() floats.
template <typename T>
void BiasMapBackward(const BiasMapGradArgs<T>& args, float* partials, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
