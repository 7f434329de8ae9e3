// out = scale q S, S = diag(exp(log_decay)) S + k^T v where each key channel has its own decay: one
// block scans the chunks of a segment with the state in registers, as in chunk_scan.cuh.
//
// Decays of channels do not multiply a finished tile of scores, they go into the operands. A chunk
// is therefore taken in tiles of 16 tokens, from state to state:
//   out = (q P) S + scores v,   S = G S + (k Q)^T v
//   P: tile's start to r, inclusive; Q: after s to its end; G: all of it
// Every factor is exp of a sum of log_decay over its own range within the tile, so none exceeds 1
// where no decay does. The 16 x 16 scores, whose weights lie between the two ends of a tile, are
// summed pair by pair: q_r k_s times a product of at most 15 decays.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (q [C, K] 16 | k [C, K] 16 | v [C, V] 16) | 2 x (q P [16, K] 4 | k Q 4 | G 0.5)
//   | log decays [16, K] 8 | decays 8 | 2 x key scales 0.25 |
//   | scores [16, 64] 2 | stage of out 4 | sums of keys 0.6 |
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kNormalised_>
struct ChannelConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr bool kNormalised = kNormalised_;
  static constexpr int kWarps = kV / 16, kThreads = 32 * kWarps;
  static_assert(kThreads >= kK, "a channel has a thread");
  static constexpr int kMinBlocksPerSm = 1;
  static constexpr int kSmemBytes = ChannelScanBytes(kK, kV);
};

template <typename Config>
struct ChannelShared {
  ChunkScanShared<Config> scan;  // q, k, v, out
  bf16 *q, *k;                   // [2][16, kK]: q P and k Q
  float* transition;             // [2][kK]
  float* log_decay;              // [16, kK]: of the tile that is next
  float* decays;                 // [16, kK]
  float* key_scale;              // [2][64]: c, of a chunk
  bf16* scores;                  // [16, 64], of which 16 columns are used
  float* key_sums;               // [kK]: z before the tile
  float* query_sums;             // [16]: (q P) z
};

// c of a chunk, a token a thread; read from the next barrier on.
template <typename Config>
HL_DEVICE void FillKeyScales(float* key_scale, const DecayAttentionArgs& args,
                             const ChunkEntry& chunk, int head) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kChunk) return;
  key_scale[t] = t < chunk.length ? KeyScaleAt(args, chunk, t, head) : 0.0f;
}

// Of the chunk's tile from `first_row` on, a channel a thread, which has its z, too: the tile's
// tokens find it as it was before them. q, k: of the tile; key_scale: of its tokens.
template <typename Config>
HL_DEVICE void ScaleOperands(const ChannelShared<Config>& smem, int buffer, const bf16* q,
                             const bf16* k, const float* key_scale, float scale, float& key_sum) {
  constexpr int kK = Config::kK;
  bf16* const scaled_q = smem.q + buffer * kTile * kK;
  bf16* const scaled_k = smem.k + buffer * kTile * kK;
  const int c = static_cast<int>(threadIdx.x);
  if (c >= kK) return;
  float decay[kTile];
#pragma unroll
  for (int r = 0; r < kTile; ++r) decay[r] = smem.log_decay[r * kK + c] * kLog2E;
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    sum += decay[r];
    smem.decays[r * kK + c] = Exp2Approx(decay[r]);
    scaled_q[TileOffset<kK>(r, c)] =
        ToBf16(ToFloat(q[TileOffset<kK>(r, c)]) * (scale * Exp2Approx(sum)));
  }
  const float transition = Exp2Approx(sum);
  smem.transition[buffer * kK + c] = transition;
  sum = 0;
  float keys = 0;
#pragma unroll
  for (int r = kTile - 1; r >= 0; --r) {
    const bf16 key = ToBf16(ToFloat(k[TileOffset<kK>(r, c)]) * (key_scale[r] * Exp2Approx(sum)));
    scaled_k[TileOffset<kK>(r, c)] = key;
    if constexpr (Config::kNormalised) keys += ToFloat(key);
    sum += decay[r];
  }
  if constexpr (Config::kNormalised) {
    smem.key_sums[c] = key_sum;
    key_sum = fmaf(transition, key_sum, keys);
  }
}

// scores_rs = scale c_s times the pairs' sums.
template <typename Config>
HL_DEVICE void TileScores(const ChannelShared<Config>& smem, const bf16* q, const bf16* k,
                          const float* key_scale, float scale) {
  PairScores<Config::kK, Config::kThreads>(q, k, smem.decays, [&](int r, int s, float sum) {
    smem.scores[TileOffset<kChunk>(r, s)] = ToBf16(s <= r ? sum * (scale * key_scale[s]) : 0.0f);
  });
}

// (q P) z: the threads that share a token have its channels in turn, in pairs.
template <typename Config>
HL_DEVICE void SumTileQueries(const ChannelShared<Config>& smem, int buffer) {
  constexpr int kK = Config::kK, kGroups = Config::kThreads / kTile;
  const bf16* const q = smem.q + buffer * kTile * kK;
  const int r = static_cast<int>(threadIdx.x) / kGroups;
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  float sum = 0;
#pragma unroll
  for (int c = 2 * group; c < kK; c += 2 * kGroups) {
    const uint32_t queries = *reinterpret_cast<const uint32_t*>(q + TileOffset<kK>(r, c));
    const float2 keys = *reinterpret_cast<const float2*>(smem.key_sums + c);
    sum = fmaf(UnpackHi(queries), keys.y, fmaf(UnpackLo(queries), keys.x, sum));
  }
#pragma unroll
  for (int offset = 1; offset < kGroups; offset *= 2)
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
  if (group == 0) smem.query_sums[r] = sum;
}

// out^T of the tile's tokens; `values`: their fragment of v^T.
template <typename Config>
HL_DEVICE void TileOutput(float (&out)[2][4], uint32_t (&values)[4],
                          const ChannelShared<Config>& smem, int buffer, const bf16* v,
                          const float (&state)[Config::kK / 8][4], int first_row) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int columns_k = ColumnsFirst<kK>(lane);
  const bf16* const q = smem.q + buffer * kTile * kK;
  Clear(out);
#pragma unroll
  for (int j = 0; j < kK / 16; ++j) {
    uint32_t a[4], b[4];
    PackFragment(a, state[2 * j], state[2 * j + 1]);
    LoadFragment<kK, false>(b, q, columns_k, 0, 16 * j);
    MmaPair(out[0], out[1], a, b);
  }
  uint32_t b[4];
  LoadFragment<kV, true>(values, v, ColumnsFirst<kV>(lane), first_row, WarpId() * 16);
  LoadFragment<kChunk, false>(b, smem.scores, ColumnsFirst<kChunk>(lane), 0, 0);
  MmaPair(out[0], out[1], values, b);
}

// out^T / (d + eps), where a block has all of K. Two lanes a token, with half of its scores each.
template <typename Config>
HL_DEVICE void DivideTile(float (&out)[2][4], const ChannelShared<Config>& smem,
                          const ChunkScanParams& params, const ChunkEntry& chunk,
                          const Place& place, const KeySumPlace& at, int first_row) {
  const int lane = FreshLaneId();
  const int r = lane / 2;
  float scores[8], sum = 0;
  UnpackUnit(scores,
             *reinterpret_cast<const uint4*>(smem.scores + TileOffset<kChunk>(r, lane % 2 * 8)));
#pragma unroll
  for (int s = 0; s < 8; ++s) sum += scores[s];
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  const float divisor = sum + smem.query_sums[r] + params.key_sums.eps;
  if (WarpId() == 0 && lane % 2 == 0) KeepDivisor(params, chunk, place, at, first_row + r, divisor);
  const float factor = params.key_sums.divides ? 1.0f / divisor : 1.0f;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    const float f0 = __shfl_sync(kFullWarp, factor, 2 * column);
    const float f1 = __shfl_sync(kFullWarp, factor, 2 * column + 2);
    out[n][0] *= f0;
    out[n][1] *= f1;
    out[n][2] *= f0;
    out[n][3] *= f1;
  }
}

// The tile's tokens, through the warp's stage [16, 16].
HL_DEVICE void StoreTile(const float (&out)[2][4], bf16* stage, Rows target, int length,
                         int first_row) {
  const int lane = FreshLaneId();
  const int size = target.is_wide ? 4 : 2;
  target.data += first_row * target.stride_t * size;
  if (target.is_wide) {
    StoreTransposedWide<kTile>(out, stage, target, length - first_row, WarpId() * 16);
    return;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = TransposePair(out[n][2 * half], out[n][2 * half + 1]);
      const int row = 8 * n + lane % 4 * 2 + lane / 4 % 2;
      *reinterpret_cast<uint32_t*>(stage + row * 16 + lane / 8 * 2 + half * 8) =
          PackBf16(pair.x, pair.y);
    }
  }
  FlushTransposed<kTile>(stage, target, length - first_row, WarpId() * 16);
}

// The state after the tile.
template <typename Config>
HL_DEVICE void TileState(float (&state)[Config::kK / 8][4], const uint32_t (&values)[4],
                         const ChannelShared<Config>& smem, int buffer) {
  constexpr int kK = Config::kK;
  const int rows_k = RowsFirst<kK>(FreshLaneId());
  const bf16* const k = smem.k + buffer * kTile * kK;
  ScaleAccumulatorColumns(state, smem.transition + buffer * kK);
#pragma unroll
  for (int n = 0; n < kK / 16; ++n) {
    uint32_t b[4];
    LoadFragment<kK, true>(b, k, rows_k, 0, 16 * n);
    MmaPair(state[2 * n], state[2 * n + 1], values, b);
  }
}

// Barriers: where a chunk starts (its tiles are there, the other stage is free); in a tile of 16
// tokens when the operands, the scores are there. The next tile's log decays, of which there is one
// buffer, are on their way between these two. Operands alternate between two buffers, so that
// the next tile's need no third.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelScanKernel(const ChunkScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ChannelShared<Config> smem = {};
  smem.scan.q = carver.Take<bf16>(2 * kChunk * kK);
  smem.scan.k = carver.Take<bf16>(2 * kChunk * kK);
  smem.scan.v = carver.Take<bf16>(2 * kChunk * kV);
  smem.q = carver.Take<bf16>(2 * kTile * kK);
  smem.k = carver.Take<bf16>(2 * kTile * kK);
  smem.transition = carver.Take<float>(2 * kK);
  smem.log_decay = carver.Take<float>(kTile * kK);
  smem.decays = carver.Take<float>(kTile * kK);
  smem.key_scale = carver.Take<float>(2 * kChunk);
  smem.scores = carver.Take<bf16>(kTile * kChunk);
  smem.scan.out = carver.Take<bf16>(kTile * kV);
  smem.key_sums = carver.Take<float>(kK);
  smem.query_sums = carver.Take<float>(kTile);

  const DecayAttentionArgs& args = params.args;
  const Place place = PlaceOf(args, params.shape, params.checkpoint_every);
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, place.key_slice * kK,
                          place.slice * kV + WarpId() * 16};
  const KeySumPlace channels = KeySumPlaceOf<kK>(args, place);
  bf16* const stage_out = smem.scan.out + WarpId() * kTile * 16;
  const int thread = static_cast<int>(threadIdx.x);
  const float scale = static_cast<float>(args.scale);

  float state[kK / 8][4];
  Clear(state);
  if (params.segment_states != nullptr) {
    LoadState<true>(state, params.segment_states + place.piece * state_elements, rows);
  } else if (args.initial_state != nullptr) {
    LoadState<true>(
        state, static_cast<const float*>(args.initial_state) + place.state * state_elements, rows);
  }
  float key_sum = 0;  // of the thread's channel
  if (Config::kNormalised && thread < kK)
    key_sum = FirstKeySum(params.key_sums, args, place, channels, thread);
  const auto load_decays = [&](const ChunkEntry& chunk, int row) {
    LoadLogDecays<kK, Config::kThreads>(smem.log_decay, args, TileOf(chunk, row), place);
  };
  if (place.begin < place.end) {
    const ChunkEntry chunk = args.chunks[place.begin];
    LoadChunk(smem.scan, args, chunk, place, 0);
    load_decays(chunk, 0);
    CpAsyncCommit();
    FillKeyScales<Config>(smem.key_scale, args, chunk, place.head);
  }
#pragma unroll 1
  for (int index = place.begin; index < place.end; ++index) {
    const int stage = (index - place.begin) % 2;
    const ChunkEntry chunk = args.chunks[index];
    const bool more = index + 1 < place.end;
    const ChunkEntry next = more ? args.chunks[index + 1] : chunk;
    const bf16* const q = smem.scan.q + stage * kChunk * kK;
    const bf16* const k = smem.scan.k + stage * kChunk * kK;
    const bf16* const v = smem.scan.v + stage * kChunk * kV;
    CpAsyncWait<0>();
    __syncthreads();
    if (more) {
      LoadChunk(smem.scan, args, next, place, 1 - stage);
      FillKeyScales<Config>(smem.key_scale + (1 - stage) * kChunk, args, next, place.head);
    }
    if ((chunk.flags & kChunkResets) != 0) {
      Clear(state);
      key_sum = 0;
    }
    SaveCheckpoint<Config, kTile>(state, stage_out, params, place, index, rows);
    if (Config::kNormalised && thread < kK)
      SaveKeySum(params, place, channels, index, thread, key_sum);
    const Rows target = RowsOf(SliceOf(params.out, args, place.key_slice, args.head_dim_v), chunk,
                               place.head, place.slice * kV, args.head_dim_v);
#pragma unroll 1
    for (int row = 0; row < chunk.length; row += kTile) {
      const int buffer = row / kTile % 2;
      const bf16* const tile_q = q + row * kK;
      const bf16* const tile_k = k + row * kK;
      const float* const key_scale = smem.key_scale + stage * kChunk + row;
      ScaleOperands(smem, buffer, tile_q, tile_k, key_scale, scale, key_sum);
      __syncthreads();
      if (row + kTile < chunk.length) {
        load_decays(chunk, row + kTile);
      } else if (more) {
        load_decays(next, 0);
      }
      CpAsyncCommit();
      if constexpr (Config::kNormalised) SumTileQueries(smem, buffer);
      TileScores(smem, tile_q, tile_k, key_scale, scale);
      CpAsyncWait<0>();
      __syncthreads();
      float out[2][4];
      uint32_t values[4];
      TileOutput<Config>(out, values, smem, buffer, v, state, row);
      if constexpr (Config::kNormalised) DivideTile(out, smem, params, chunk, place, channels, row);
      StoreTile(out, stage_out, target, chunk.length, row);
      TileState<Config>(state, values, smem, buffer);
    }
  }
  if (args.final_state != nullptr && place.stops)
    StoreState<true>(state, static_cast<float*>(args.final_state) + place.state * state_elements,
                     rows);
  if (Config::kNormalised && thread < kK)
    StoreFinalKeySum(params.key_sums, args, place, channels, thread, key_sum);
}

template <typename Config>
void LaunchChannelScanAs(const ChunkScanParams& params, cudaStream_t stream) {
  Launch({NumBlocks(params.args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan, decays of channels"},
         stream, ChannelScanKernel<Config>, params);
}
template <int kK, int kV>
void LaunchChannelScan(const ChunkScanParams& params, cudaStream_t stream) {
  if (params.key_sums.wanted) {
    LaunchChannelScanAs<ChannelConfig<kK, kV, true>>(params, stream);
  } else {
    LaunchChannelScanAs<ChannelConfig<kK, kV, false>>(params, stream);
  }
}

}  // namespace halflife::kernels::decay
