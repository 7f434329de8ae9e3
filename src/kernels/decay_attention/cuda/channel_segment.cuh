// What each segment of a sequence makes of a zero state (reverse: of a zero dL/d(state) at its
// end), where each key channel has its own decay: step 1 of segment.cuh, in tiles of 16 tokens.
//
// Shared memory in KiB, K = V = 128:
//   | 2 x (x [16, K] 4 | y [16, V] 4) | log decays [16, K] 8 | scaled x 4 | G 0.5 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kReverse_>
struct ChannelStateScanConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr bool kReverse = kReverse_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = kV == 64 && kK == 64 ? 3 : 1;
  static constexpr int kSmemBytes = ChannelStateScanBytes(kK, kV);
};

// The tiles of a segment, one after the other.
struct TileScan {
  const ChunkEntry* chunks;
  int begin, end;
  int chunk, row;

  HL_DEVICE bool valid() const { return chunk >= begin && chunk < end; }
  HL_DEVICE ChunkEntry tile() const { return TileOf(chunks[chunk], row); }
  HL_DEVICE void Start(bool reverse) {
    chunk = reverse ? end - 1 : begin;
    row = reverse && valid() ? LastTile(chunks[chunk]) : 0;
  }
  HL_DEVICE void Advance(bool reverse) {
    row += reverse ? -kTile : kTile;
    if (row >= 0 && row < chunks[chunk].length) return;
    chunk += reverse ? -1 : 1;
    row = reverse && valid() ? LastTile(chunks[chunk]) : 0;
  }
};

// S' = G S + (c k Q)^T v, or R' = G R + (scale q P)^T dout. Barriers of a tile: it is there; the
// scaled operand is there.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelStateScanKernel(const StateScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  constexpr bool kReverse = Config::kReverse;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  bf16* const x_tiles = carver.Take<bf16>(2 * kTile * kK);
  bf16* const y_tiles = carver.Take<bf16>(2 * kTile * kV);
  float* const log_decay = carver.Take<float>(kTile * kK);
  bf16* const scaled = carver.Take<bf16>(kTile * kK);
  float* const transition = carver.Take<float>(kK);

  const DecayAttentionArgs& args = params.args;
  const Place place = PlaceOf(args, params.shape, params.checkpoint_every);
  const TensorView& x = kReverse ? args.q : args.k;
  const TensorView& y = kReverse ? params.dout : args.v;
  const int x_head =
      SharedHead(place.head, kReverse ? args.num_q_heads : args.num_k_heads, args.num_heads);
  const int y_head =
      kReverse ? place.head : SharedHead(place.head, args.num_v_heads, args.num_heads);
  const auto load = [&](const ChunkEntry& tile, int stage) {
    LoadTile<kK, kThreads, kTile>(x_tiles + stage * kTile * kK,
                                  RowsOf(x, tile, x_head, place.key_slice * kK, args.head_dim_k),
                                  tile.length);
    LoadTile<kV, kThreads, kTile>(y_tiles + stage * kTile * kV,
                                  RowsOf(y, tile, y_head, place.slice * kV, args.head_dim_v),
                                  tile.length);
  };
  const auto load_decays = [&](const ChunkEntry& tile) {
    LoadLogDecays<kK, kThreads>(log_decay, args, tile, place);
  };

  float state[kV / 8][4];
  Clear(state);
  const int channel = static_cast<int>(threadIdx.x);  // of a thread that has one
  float log2_transition = 0;
  int stage = 0;
  TileScan at = {args.chunks, place.begin, place.end, 0, 0};
  at.Start(kReverse);
  if (at.valid()) {
    load(at.tile(), 0);
    load_decays(at.tile());
    CpAsyncCommit();
  }
#pragma unroll 1
  while (at.valid()) {
    const ChunkEntry tile = at.tile();
    const bool resets = (tile.flags & kChunkResets) != 0;
    CpAsyncWait<0>();
    __syncthreads();
    at.Advance(kReverse);
    if (at.valid()) load(at.tile(), 1 - stage);
    if (channel < kK) {
      const bf16* const rows = x_tiles + stage * kTile * kK;
      const float sum =
          kReverse ? ScaleQueries<kK>(scaled, nullptr, rows, log_decay, channel, args, tile,
                                      place.head, params.row_scales)
                   : ScaleKeys<kK>(scaled, rows, log_decay, channel, args, tile, place.head);
      transition[channel] = Exp2Approx(sum);
      log2_transition = ExtendTransition<kReverse>(log2_transition, sum, resets);
    }
    __syncthreads();
    if (at.valid()) load_decays(at.tile());
    CpAsyncCommit();
    if (!kReverse && resets) Clear(state);
    AdvanceState<kK, kV>(state, scaled, y_tiles + stage * kTile * kV, transition);
    if (kReverse && resets) Clear(state);
    stage = 1 - stage;
  }
  const int first = place.key_slice * kK;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, first + WarpId() * 16,
                          place.slice * kV};
  StoreState<false>(
      state, params.states + place.piece * (int64_t{1} * args.head_dim_k * args.head_dim_v), rows);
  if (channel < kK && first + channel < args.head_dim_k && place.slice == 0 &&
      params.log_transition != nullptr)
    params.log_transition[place.piece * args.head_dim_k + first + channel] =
        log2_transition * params.transition_unit;
}

template <int kK, int kV>
void LaunchChannelStateScan(const StateScanParams& params, cudaStream_t stream) {
  using Forward = ChannelStateScanConfig<kK, kV, false>;
  using Reverse = ChannelStateScanConfig<kK, kV, true>;
  const unsigned blocks = NumBlocks(params.args, params.shape);
  if (params.reverse) {
    Launch({blocks, Reverse::kThreads, Reverse::kSmemBytes,
            "decay attention reverse segments, decays of channels"},
           stream, ChannelStateScanKernel<Reverse>, params);
  } else {
    Launch({blocks, Forward::kThreads, Forward::kSmemBytes,
            "decay attention segments, decays of channels"},
           stream, ChannelStateScanKernel<Forward>, params);
  }
}

}  // namespace halflife::kernels::decay
