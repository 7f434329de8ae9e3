// Arguments of the conversion of bf16 rows to e4m3 with one scale per row (core/float8.h), shared
// by its LibTorch side, CPU loops and CUDA kernel.
//
//   codes[i] = e4m3(x[i] s),   factor = 1 / s,   s = 2^floor(log2(448 / max |x|))
//
// A row with an infinity or a NaN gets the factor NaN and codes of NaN. C++17 without LibTorch,
// because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

struct Float8Rows {
  int64_t num_rows = 0, width = 0;
  const Bf16* x = nullptr;   // [num_rows, width], elements of a row adjacent
  int64_t x_stride = 0;      // elements between the starts of rows
  uint8_t* codes = nullptr;  // [num_rows, width]
  float* factors = nullptr;  // [num_rows]
  // Only on the CPU, in place of codes and factors: the numbers that those represent, which bf16
  // holds exactly. [num_rows, width].
  Bf16* values = nullptr;
};

namespace cpu {
// Converts rows [begin, end).
void ConvertToFloat8(const Float8Rows& rows, int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
void ConvertToFloat8(const Float8Rows& rows, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
