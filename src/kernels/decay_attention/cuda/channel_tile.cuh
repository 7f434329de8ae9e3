// Device steps that the scans with decays of channels share: such a decay does not multiply a
// finished tile of scores, it goes into the operands. Chunks are therefore taken in tiles of 16
// tokens, from state to state; weights within a tile are products of at most 15 decays, made pair
// by pair.
//
//   for (int row = 0; row < chunk.length; row += kTile) {
//     const ChunkEntry tile = TileOf(chunk, row);
//     ...
//   }
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

constexpr int kTilesPerChunk = kChunk / kTile;

// 16 tokens of a chunk as a chunk of their own.
HL_DEVICE ChunkEntry TileOf(const ChunkEntry& chunk, int row) {
  ChunkEntry tile = chunk;
  tile.token += row;
  tile.length = min(kTile, chunk.length - row);
  if (row > 0) tile.flags = 0;
  return tile;
}
HL_DEVICE int LastTile(const ChunkEntry& chunk) { return (chunk.length - 1) / kTile * kTile; }

// Calls visit(r, s, sum over channels of q_r k_s decay_{s+1} .. decay_r), once per pair of the
// tile; 0 where s > r. q, k: tiles [16, kK], decays [16, kK]. A thread has one key and its group's
// share of channels, in pairs: the key decays on its way from s to r.
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

// Starts to load log decays of the block's channels; 0 past the tile's end and past the last
// channel.
template <int kK, int kThreads>
HL_DEVICE void LoadLogDecays(float* target, const DecayAttentionArgs& args, const ChunkEntry& tile,
                             const Place& place) {
  TensorView view = args.log_decay;
  if (args.decay_kind == DecayKind::kPerHeadChannel) {
    view.stride_b = view.stride_t = 0;
    view.stride_h = args.head_dim_k;
  }
  const int decay_head = SharedHead(place.head, args.num_decay_heads, args.num_heads);
  const Rows rows = RowsOf(view, tile, decay_head, place.key_slice * kK, args.head_dim_k);
  const float* const data = reinterpret_cast<const float*>(rows.data);
  if (rows.aligned) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kK / 4; i += kThreads) {
      const int row = i / (kK / 4), column = i % (kK / 4) * 4;
      const bool valid = row < tile.length && column < rows.dim;
      CpAsync16(target + row * kK + column, valid ? data + row * rows.stride_t + column : data,
                valid);
    }
  } else {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kK; i += kThreads) {
      const int row = i / kK, column = i % kK;
      const bool valid = row < tile.length && column < rows.dim;
      CpAsync4(target + i, valid ? data + row * rows.stride_t + column : data, valid);
    }
  }
}

// scale q P of channel c, and its decays if they are wanted; returns the sum of its log decays, in
// units of log2.
template <int kK>
HL_DEVICE float ScaleQueries(bf16* scaled, float* decays, const bf16* q, const float* log_decay,
                             int c, const DecayAttentionArgs& args, const ChunkEntry& tile,
                             int head, const RowScales& row_scales) {
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    const float decay = log_decay[r * kK + c] * kLog2E;
    sum += decay;
    if (decays != nullptr) decays[r * kK + c] = Exp2Approx(decay);
    const float scale = r < tile.length ? QueryScaleAt(args, row_scales, tile, r, head) : 0.0f;
    scaled[TileOffset<kK>(r, c)] =
        ToBf16(ToFloat(q[TileOffset<kK>(r, c)]) * (scale * Exp2Approx(sum)));
  }
  return sum;
}
// c k Q of channel c; returns the sum of its log decays, in units of log2.
template <int kK>
HL_DEVICE float ScaleKeys(bf16* scaled, const bf16* k, const float* log_decay, int c,
                          const DecayAttentionArgs& args, const ChunkEntry& tile, int head) {
  float sum = 0;
#pragma unroll
  for (int s = kTile - 1; s >= 0; --s) {
    const float key_scale = s < tile.length ? KeyScaleAt(args, tile, s, head) : 0.0f;
    scaled[TileOffset<kK>(s, c)] =
        ToBf16(ToFloat(k[TileOffset<kK>(s, c)]) * (key_scale * Exp2Approx(sum)));
    sum += log_decay[s * kK + c] * kLog2E;
  }
  return sum;
}

// acc = G acc + x^T y over the tile's tokens: x [16, kK], y [16, kV], acc [16 channels of the warp,
// kV].
template <int kK, int kV>
HL_DEVICE void AdvanceState(float (&acc)[kV / 8][4], const bf16* x, const bf16* y,
                            const float* transition) {
  const int lane = FreshLaneId();
  const int rows_v = RowsFirst<kV>(lane);
  ScaleAccumulatorRows(acc, transition + WarpId() * 16);
  uint32_t a[4];
  LoadFragment<kK, true>(a, x, ColumnsFirst<kK>(lane), 0, WarpId() * 16);
#pragma unroll
  for (int n = 0; n < kV / 16; ++n) {
    uint32_t b[4];
    LoadFragment<kV, true>(b, y, rows_v, 0, 16 * n);
    MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
  }
}

}  // namespace halflife::kernels::decay
