// Sum of squares of fp32 values in fp64, for the gradient's norm: partial sums of blocks that start
// with their segment (a parameter), so that the bits do not depend on where the segments lie in the
// array.
//
//   partials[b] = sum of values[i]^2 over the elements of block b
//
// C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kSquaresBlock = int64_t{1}
                                  << 16;  // elements; the last block of a segment may have fewer

struct SquaresSegment {
  int64_t begin, count;  // of `values`; count >= 1
  int64_t first_block;   // blocks of the segments before it
  int64_t num_blocks() const { return (count + kSquaresBlock - 1) / kSquaresBlock; }
};

struct SquaresArgs {
  const float* values = nullptr;
  const SquaresSegment* segments = nullptr;  // [num_segments], in the values' memory
  int num_segments = 0;
  int64_t num_blocks = 0;      // of all segments
  double* partials = nullptr;  // [num_blocks]
};

namespace cpu {
// Blocks [begin, end).
void SumOfSquares(const SquaresArgs& args, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
void SumOfSquares(const SquaresArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
