#include "kernels/decay_attention/channel_loops.h"

#include "kernels/cpu_math.h"
#include "kernels/decay_attention/chunks.h"

namespace halflife::kernels::internal {
namespace {

// Channels go in blocks that fit registers; every block walks all rows.
constexpr int64_t kLanes = 16;

struct Lanes {
  float v[kLanes];
};

// One block of `width` channels: running sums over rows restart with each tile, totals of whole tiles are added on top.
HL_VECTORISED void FillForward(const ChannelFactorRows& rows, int64_t begin, int64_t width) {
  float earlier[kLanes] = {}, sum[kLanes] = {};
  for (int64_t tile = 0; tile < rows.num_tiles; ++tile) {
    for (int64_t c = 0; c < kLanes; ++c) sum[c] = 0;
    for (int64_t r = tile * kTile; r < (tile + 1) * kTile; ++r) {
      const int64_t offset = r * rows.dim + begin;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        sum[c] += rows.log_decay[offset + c];
        rows.in_tile[offset + c] = rows.scale * Exp(sum[c]);
        rows.incoming[offset + c] = rows.scale * Exp(earlier[c] + sum[c]);
      }
    }
    for (int64_t c = 0; c < kLanes; ++c) earlier[c] += sum[c];
  }
  for (int64_t c = 0; c < width; ++c) rows.transition[begin + c] = Exp(earlier[c]);
}

// Keys of `tile` up to the end of tile `last` (its sum between: the totals of the tiles in between).
HL_VECTORISED void FillSuffix(const ChannelFactorRows& rows, int64_t tile, const float* between,
                              float* out) {
  for (int64_t begin = 0; begin < rows.dim; begin += kLanes) {
    const int64_t width = rows.dim - begin < kLanes ? rows.dim - begin : kLanes;
    float sum[kLanes] = {};
    for (int64_t s = kTile - 1; s >= 0; --s) {
      const float* g = rows.log_decay + (tile * kTile + s) * rows.dim + begin;
      float* target = out + (tile * kTile + s) * rows.dim + begin;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        target[c] = Exp(sum[c] + between[begin + c]);
        sum[c] += g[c];
      }
    }
  }
}

}  // namespace
}  // namespace halflife::kernels::internal
