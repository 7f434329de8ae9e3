// Device steps that the walks with decays of channels share: such a decay does not multiply a finished
// tile of scores, it goes into the operands. Chunks are therefore taken in tiles of 16 tokens, from
// state to state; weights within a tile are products of at most 15 decays, made pair by pair.
//
//   for (int row = 0; row < chunk.length; row += kTile) {
//     const ChunkEntry tile = TileOf(chunk, row);
//     ...
//   }
#pragma once

#include "kernels/decay_attention/tile.cuh"

namespace halflife::kernels::decay {

constexpr int kTile = 16;
constexpr int kTilesPerChunk = kChunk / kTile;

// 16 tokens of a chunk as a chunk of their own.
HL_DEVICE ChunkEntry TileOf(const ChunkEntry& chunk, int row) {
  ChunkEntry tile = chunk;
  tile.token += row;
  tile.length = min(kTile, chunk.length - row);
  if (row > 0) tile.flags = 0;
  return tile;
}

// Calls visit(r, s, sum over channels of q_r k_s decay_{s+1} .. decay_r), once per pair of the tile;
// 0 where s > r. q, k: tiles [16, kK], decays [16, kK]. A thread has one key and its group's share of
// channels, in pairs: the key decays on its way from s to r.
template <int kK, int kThreads, typename Visit>
HL_DEVICE void PairScores(const bf16* q, const bf16* k, const float* decays, const Visit& visit) {
  constexpr int kGroups = kThreads / kTile;  // threads that share a key
  static_assert(kGroups == 8 || kGroups == 16, "sums go over lanes of one warp");
  constexpr int kParts = kTile / kGroups;
  const int s = static_cast<int>(threadIdx.x) / kGroups;
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  float sums[kParts][kGroups];
#pragma unroll
  for (int r = 0; r < kTile; ++r) sums[r / kGroups][r % kGroups] = 0;
#pragma unroll 1
  for (int c = 2 * group; c < kK; c += 2 * kGroups) {
    const uint32_t keys = *reinterpret_cast<const uint32_t*>(k + TileOffset<kK>(s, c));
    float key0 = UnpackLo(keys), key1 = UnpackHi(keys);
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      if (r > s) {
        const float2 decay = *reinterpret_cast<const float2*>(decays + r * kK + c);
        key0 *= decay.x;
        key1 *= decay.y;
      }
      if (r >= s) {
        const uint32_t query = *reinterpret_cast<const uint32_t*>(q + TileOffset<kK>(r, c));
        float& sum = sums[r / kGroups][r % kGroups];
        sum = fmaf(UnpackHi(query), key1, fmaf(UnpackLo(query), key0, sum));
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float sum = SumOverLanes(sums[part]);
    visit(part * kGroups + group, s, sum);
  }
}

// Row r of the accumulators times factor[r], of the warp's 16.
template <int kTiles>
HL_DEVICE void ScaleAccumulatorRows(float (&d)[kTiles][4], const float* factor) {
  const int lane = FreshLaneId();
  const float top = factor[lane / 4], bottom = factor[lane / 4 + 8];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    d[n][0] *= top;
    d[n][1] *= top;
    d[n][2] *= bottom;
    d[n][3] *= bottom;
  }
}

}  // namespace halflife::kernels::decay
