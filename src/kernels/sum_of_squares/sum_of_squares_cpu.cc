#include <algorithm>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/sum_of_squares/sum_of_squares_args.h"

namespace halflife::kernels::cpu {
namespace {

// The product of two fp32 numbers is exact in fp64, so all instruction sets give the same bits. 32
// chains of additions hide their latency.
HL_INLINE double SumOfSquares(const float* values, int64_t count) {
  constexpr int kLanes = 32;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void SumOfSquares(const SquaresArgs& args, int64_t begin, int64_t end) {
  const SquaresSegment* segment = std::upper_bound(
      args.segments, args.segments + args.num_segments, begin,
      [](int64_t block, const SquaresSegment& s) { return block < s.first_block; });
  --segment;  // the last segment that starts at or before the block
  for (int64_t block = begin; block < end; ++block) {
    if (block == segment->first_block + segment->num_blocks()) ++segment;
    const int64_t first = (block - segment->first_block) * kSquaresBlock;
    const int64_t count = std::min(segment->count - first, kSquaresBlock);
    const float* const values = args.values + segment->begin + first;
    args.partials[block] =
        RunVectorised([&]() HL_LAMBDA_INLINE { return SumOfSquares(values, count); });
  }
}

}  // namespace halflife::kernels::cpu
