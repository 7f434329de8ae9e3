// Parallel scans of sequences that are cut into segments, in three steps: (1) StateScan computes
// the state of each segment from zero. (2) A scan over the segments of a sequence computes the
// state before each segment. (3) The scan of each segment starts from this state. In reverse, the
// steps are the same with dL/dS. The ranks of sequence parallelism exchange the results of steps 1
// and 2. On sm_90, warpgroup_states.cuh can replace StateScan.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (x [C, K] 16 | y [C, V] 16) | 2 x tables 2.3 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kReverse_, int kTerms_>
struct StateScanConfig {
  static constexpr int kK = kK_, kV = kV_, kTerms = kTerms_;
  static constexpr int kStages = kTerms == 1 ? 2 : 1;  // 1: loads do not overlap
  static constexpr bool kReverse = kReverse_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = kV == 64 && kK == 64 ? 3 : 1;
  static constexpr int kSmemBytes = StateScanBytes(kK, kV);
};

// S' = transition S + (c outgoing k)^T v, or R' = transition R + (incoming q)^T dout.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    StateScanKernel(const StateScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  constexpr int kTerms = Config::kTerms, kStages = Config::kStages, kRows = kTerms * kChunk;
  constexpr bool kReverse = Config::kReverse;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  bf16* const x_tiles = carver.Take<bf16>(kStages * kRows * kK);
  bf16* const y_tiles = carver.Take<bf16>(kStages * kRows * kV);
  DecayTables* const tables = carver.Take<DecayTables>(2);

  const DecayAttentionArgs& args = params.args;
  const BlockIndex block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  const int num_chunks = block_index.end - block_index.begin;
  const auto chunk_at = [&](int i) {
    return args.chunks[kReverse ? block_index.end - 1 - i : block_index.begin + i];
  };
  const auto load = [&](int i) {
    if (i >= num_chunks) return;
    const ChunkEntry chunk = chunk_at(i);
    const TensorView& x = kReverse ? args.q : args.k;
    const TensorView& y = kReverse ? params.dout : args.v;
    const int x_head = SharedHead(block_index.head, kReverse ? args.num_q_heads : args.num_k_heads,
                                  args.num_heads);
    const int y_head = kReverse ? block_index.head
                                : SharedHead(block_index.head, args.num_v_heads, args.num_heads);
    LoadTerms<kTerms, kK, kThreads>(
        x_tiles + i % kStages * kRows * kK,
        RowsOf(x, chunk, x_head, block_index.key_slice * kK, args.head_dim_k), chunk.length);
    LoadTerms<kTerms, kV, kThreads>(
        y_tiles + i % kStages * kRows * kV,
        RowsOf(y, chunk, y_head, block_index.slice * kV, args.head_dim_v), chunk.length);
    CpAsyncCommit();
    if (WarpId() == 0)
      FillDecayTables(tables[i % 2], args, chunk, block_index.head, params.row_scales);
  };

  float state[kV / 8][4];
  Clear(state);
  float log2_transition = 0;
  if (kStages == 2) load(0);
#pragma unroll 1
  for (int i = 0; i < num_chunks; ++i) {
    const bool resets = (chunk_at(i).flags & kChunkResets) != 0;
    if (kStages == 1) load(i);
    CpAsyncWait<0>();
    __syncthreads();
    if (kStages == 2) load(i + 1);
    const DecayTables& table = tables[i % 2];
    log2_transition = ExtendTransition<kReverse>(log2_transition, table.log2_transition, resets);
    if (!kReverse && resets) Clear(state);
    Scale(state, table.transition);
    AccumulateOuter<kTerms, kK, kV>(state, x_tiles + i % kStages * kRows * kK,
                                    y_tiles + i % kStages * kRows * kV,
                                    kReverse ? table.incoming : table.outgoing_scaled);
    if (kReverse && resets) Clear(state);
    if (kStages == 1) __syncthreads();
  }
  const StateRows rows = {args.head_dim_k, args.head_dim_v,
                          block_index.key_slice * kK + WarpId() * 16, block_index.slice * kV};
  StoreState<false>(
      state, params.states + block_index.piece * (int64_t{1} * args.head_dim_k * args.head_dim_v),
      rows);
  if (threadIdx.x == 0 && block_index.slice == 0 && block_index.key_slice == 0 &&
      params.log_transition != nullptr)
    params.log_transition[block_index.piece] = log2_transition * params.transition_unit;
}

template <int kK, int kV, int kTerms>
void LaunchStateScan(const StateScanParams& params, cudaStream_t stream) {
  using Forward = StateScanConfig<kK, kV, false, kTerms>;
  using Reverse = StateScanConfig<kK, kV, true, kTerms>;
  const unsigned blocks = NumBlocks(params.args, params.shape);
  if (params.reverse) {
    Launch({blocks, Reverse::kThreads, Reverse::kSmemBytes, "decay attention reverse segments"},
           stream, StateScanKernel<Reverse>, params);
  } else {
    Launch({blocks, Forward::kThreads, Forward::kSmemBytes, "decay attention segments"}, stream,
           StateScanKernel<Forward>, params);
  }
}

// ---- per-channel decays ----
//
// The state that each segment of a sequence computes from a zero state (reverse: from a zero
// dL/d(state) at its end), with per-channel decays. This is step 1, in tiles of 16
// tokens, with prepared operands (channel_operands.cuh).
//
// Shared memory in KiB, K = V = 128:
//   | 4 x (x [16, K] 4 | y [16, V] 4 | G and log2 of it 1) | = kSmemBytes

template <int kK_, int kV_, bool kReverse_, int kTerms_>
struct ChannelStateScanConfig {
  static constexpr int kK = kK_, kV = kV_, kTerms = kTerms_;
  static constexpr bool kReverse = kReverse_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = kV == 64 && kK == 64 ? 3 : 1;
  static constexpr int kSmemBytes = ChannelStateScanBytes(kK, kV, kTerms);
};

// S' = G S + (c k Q)^T v, or R' = G R + (scale q P)^T dout. The barrier of a tile: it is loaded,
// and the previous tile's stage is free.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelStateScanKernel(const StateScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  constexpr int kTerms = Config::kTerms;
  constexpr bool kReverse = Config::kReverse;
  using Offsets = OperandOffsets<kK, kTerms>;
  using T = typename Unsplit<kTerms>::Type;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  bf16* const x_tiles = carver.Take<bf16>(kTileStages * kTerms * kTile * kK);
  T* const y_tiles = carver.Take<T>(kTileStages * kTile * kV);
  float* const transitions = carver.Take<float>(kTileStages * 2 * kK);  // G and its log2
  StagedTile* const tiles = carver.Take<StagedTile>(kTileStages);

  const DecayAttentionArgs& args = params.args;
  const BlockIndex block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  const TensorView& y = kReverse ? params.dout : args.v;
  const int y_head =
      kReverse ? block_index.head : SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const TilesOfHead tiles_of_head = TilesOfHeadOf(args, params.shape, block_index);
  const Rows y_rows = HeadRows(y, y_head, block_index.slice * kV, args.head_dim_v);
  TileScan next = {args.chunks, block_index.begin, block_index.end, kReverse};
  next.Start();
  const auto stage_next = [&](int stage) {
    const StagedTile staged = next.staged();
    if (threadIdx.x == 0) tiles[stage] = staged;
    if (!staged.valid) return;
    const char* const source = static_cast<const char*>(params.operands) +
                               tiles_of_head.Index(staged.chunk, staged.row) * Offsets::kBytes;
    CopyUnits<kThreads, 0, Offsets::kRows>(
        reinterpret_cast<unsigned char*>(x_tiles + stage * kTerms * kTile * kK),
        source + (kReverse ? Offsets::kQ : Offsets::kKeys));
    CopyUnits<kThreads, 0, 2 * kK * 4>(
        reinterpret_cast<unsigned char*>(transitions + stage * 2 * kK),
        source + Offsets::kTransition);
    LoadTile<kV, kThreads, kTile>(y_tiles + stage * kTile * kV, RowsAt(y_rows, y, staged.tile),
                                  staged.tile.length);
    next.Advance();
  };

  float state[kV / 8][4];
  Clear(state);
  const int channel = static_cast<int>(threadIdx.x);  // valid if < kK
  float log2_transition = 0;
  VisitStaged(tiles, stage_next, [&](const StagedTile& at, int stage) {
    const bool resets = (at.tile.flags & kChunkResets) != 0;
    const float* const transition = transitions + stage * 2 * kK;
    if (channel < kK)
      log2_transition =
          ExtendTransition<kReverse>(log2_transition, transition[kK + channel], resets);
    if (!kReverse && resets) Clear(state);
    AdvanceState<kTerms, kK, kV>(state, x_tiles + stage * kTerms * kTile * kK,
                                 y_tiles + stage * kTile * kV, transition);
    if (kReverse && resets) Clear(state);
  });
  const int first = block_index.key_slice * kK;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, first + WarpId() * 16,
                          block_index.slice * kV};
  StoreState<false>(
      state, params.states + block_index.piece * (int64_t{1} * args.head_dim_k * args.head_dim_v),
      rows);
  if (channel < kK && first + channel < args.head_dim_k && block_index.slice == 0 &&
      params.log_transition != nullptr)
    params.log_transition[block_index.piece * args.head_dim_k + first + channel] =
        log2_transition * params.transition_unit;
}

template <int kK, int kV, int kTerms>
void LaunchChannelStateScan(const StateScanParams& params, cudaStream_t stream) {
  using Forward = ChannelStateScanConfig<kK, kV, false, kTerms>;
  using Reverse = ChannelStateScanConfig<kK, kV, true, kTerms>;
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
