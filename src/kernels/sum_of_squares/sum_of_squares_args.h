// The sum of squares of fp32 values in fp64, for the gradient norm. Partial sums are computed for
// blocks that start with their segment (a parameter), so the bits do not depend on the position of
// the segments in the array.
//
//   partials[b] = sum of values[i]^2 over the elements of block b
//
// C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kSquaresBlock = int64_t{1}
                                  << 16;  // elements; the last block of a segment may have fewer

struct SquaresSegment {
  int64_t begin, count;  // elements of `values`; count is at least 1
  int64_t first_block;   // number of blocks of the segments before it
  int64_t num_blocks() const { return (count + kSquaresBlock - 1) / kSquaresBlock; }
};

struct SquaresArgs {
  const float* values = nullptr;
  const SquaresSegment* segments = nullptr;  // [num_segments], on the values' device
  int num_segments = 0;
  int64_t num_blocks = 0;      // sum over all segments
  double* partials = nullptr;  // [num_blocks]
};

namespace cpu {
// Processes blocks [begin, end).
void SumOfSquares(const SquaresArgs& args, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
void SumOfSquares(const SquaresArgs& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
