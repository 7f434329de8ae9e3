// Sequences that are cut into segments, which are scanned in parallel in three steps: (1) StateScan
// computes the state of each segment from zero, (2) a scan over the segments of a sequence computes
// the state before each segment, (3) the scan starts from these states. In reverse, the same with
// dL/dS. The ranks of sequence parallelism exchange the results of steps 1 and 2.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (x [C, K] 16 | y [C, V] 16) | 2 x tables 2.3 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kReverse_>
struct StateScanConfig {
  static constexpr int kK = kK_, kV = kV_;
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
  constexpr bool kReverse = Config::kReverse;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  bf16* const x_tiles = carver.Take<bf16>(2 * kChunk * kK);
  bf16* const y_tiles = carver.Take<bf16>(2 * kChunk * kV);
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
    LoadTile<kK, kThreads>(x_tiles + i % 2 * kChunk * kK,
                           RowsOf(x, chunk, x_head, block_index.key_slice * kK, args.head_dim_k),
                           chunk.length);
    LoadTile<kV, kThreads>(y_tiles + i % 2 * kChunk * kV,
                           RowsOf(y, chunk, y_head, block_index.slice * kV, args.head_dim_v),
                           chunk.length);
    CpAsyncCommit();
    if (WarpId() == 0)
      FillDecayTables(tables[i % 2], args, chunk, block_index.head, params.row_scales);
  };

  float state[kV / 8][4];
  Clear(state);
  float log2_transition = 0;
  load(0);
#pragma unroll 1
  for (int i = 0; i < num_chunks; ++i) {
    const bool resets = (chunk_at(i).flags & kChunkResets) != 0;
    CpAsyncWait<0>();
    __syncthreads();
    load(i + 1);
    const DecayTables& table = tables[i % 2];
    log2_transition = ExtendTransition<kReverse>(log2_transition, table.log2_transition, resets);
    if (!kReverse && resets) Clear(state);
    Scale(state, table.transition);
    AccumulateOuter<kK, kV>(state, x_tiles + i % 2 * kChunk * kK, y_tiles + i % 2 * kChunk * kV,
                            kReverse ? table.incoming : table.outgoing_scaled);
    if (kReverse && resets) Clear(state);
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

template <int kK, int kV>
void LaunchStateScan(const StateScanParams& params, cudaStream_t stream) {
  using Forward = StateScanConfig<kK, kV, false>;
  using Reverse = StateScanConfig<kK, kV, true>;
  const unsigned blocks = NumBlocks(params.args, params.shape);
  if (params.reverse) {
    Launch({blocks, Reverse::kThreads, Reverse::kSmemBytes, "decay attention reverse segments"},
           stream, StateScanKernel<Reverse>, params);
  } else {
    Launch({blocks, Forward::kThreads, Forward::kSmemBytes, "decay attention segments"}, stream,
           StateScanKernel<Forward>, params);
  }
}

}  // namespace halflife::kernels::decay
