#include <algorithm>

#include "kernels/sum_of_squares/args.h"

namespace halflife::kernels::cpu {

void SumOfSquares(const SquaresArgs& args, int64_t begin, int64_t end) {
  const SquaresSegment* segment = std::upper_bound(
      args.segments, args.segments + args.num_segments, begin,
      [](int64_t block, const SquaresSegment& s) { return block < s.first_block; });
  --segment;  // the last one that starts at or before the block
  for (int64_t block = begin; block < end; ++block) {
    if (block == segment->first_block + segment->num_blocks()) ++segment;
    const int64_t first = (block - segment->first_block) * kSquaresBlock;
    const int64_t count = std::min(segment->count - first, kSquaresBlock);
    const float* const values = args.values + segment->begin + first;
    double lanes[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      for (int lane = 0; lane < 8; ++lane)
        lanes[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
    for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    args.partials[block] = sum;
  }
}

}  // namespace halflife::kernels::cpu
