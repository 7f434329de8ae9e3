#include "kernels/common/cuda/rows.cuh"
#include "kernels/sum_of_squares/sum_of_squares_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 256;
constexpr int kWidth = kPack<float>;

// Returns the last segment that starts at or before the block.
HL_DEVICE SquaresSegment SegmentOf(const SquaresArgs& args, int64_t block) {
  int low = 0, high = args.num_segments;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.segments[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return args.segments[low];
}

// Grid: blocks of elements. A thread has the same elements of a segment wherever the segment
// begins. Uses 16-byte accesses if the alignment allows them.
__global__ void __launch_bounds__(kThreads) SumOfSquaresKernel(SquaresArgs args) {
  HL_SHARED(partial, double[kThreads / 32]);
  const int64_t block = blockIdx.x;
  const SquaresSegment segment = SegmentOf(args, block);
  const float* const values = args.values + segment.begin;
  const bool aligned = reinterpret_cast<uintptr_t>(values) % 16 == 0;
  const int64_t begin = (block - segment.first_block) * kSquaresBlock;
  const int64_t end = min(segment.count, begin + kSquaresBlock);
  double sum = 0;
  for (int64_t i = begin + kWidth * threadIdx.x; i < end; i += kWidth * kThreads) {
    float x[kWidth];
    Load(values + i, static_cast<int>(min(end - i, int64_t{kWidth})), aligned, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += static_cast<double>(x[j]) * x[j];
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) sum += partial[warp];
  args.partials[block] = sum;
}

}  // namespace

namespace cuda {

void SumOfSquares(const SquaresArgs& args, cudaStream_t stream) {
  if (args.num_blocks == 0) return;
  Launch({dim3(static_cast<unsigned>(args.num_blocks)), dim3(kThreads), 0, "sum of squares"},
         stream, SumOfSquaresKernel, args);
}

}  // namespace cuda
}  // namespace halflife::kernels
