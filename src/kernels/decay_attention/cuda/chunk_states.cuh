// Computes the states that the gradients of all chunks start from (warpgroup_gradients.cuh): S
// before each chunk, scanned from the checkpoint at a segment's start, and R = dL/d(state) after
// each chunk, scanned from the segment's end. A first kernel computes the decay factors of all
// chunks in parallel. Then each block owns 64 x 64 of the state in one direction. Per chunk, it
// does one product and stores its state, rounded. Blocks are this small so that there are enough of
// them without segments, which would need another pass.
//
//   S' = transition S + (c outgoing k)^T v,    R' = transition R + (incoming q)^T dout
//
// Shared memory in KiB, C = 64:
//   | 4 x (x [C, 64] 8 | y [C, 64] 8 | factors 0.5) | block_index | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/chunk_states_layout.cuh"
#include "kernels/decay_attention/cuda/token_head.cuh"

namespace halflife::kernels::decay {

struct ChunkStatesConfig {
  static constexpr int kK = kStateBlock, kV = kStateBlock;
  static constexpr int kStages = kStateStages;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = 3;  // as many as fit sm_90's shared memory
  static constexpr int kSmemBytes = kChunkStatesBytes;
};

// ---- factors: one warp per chunk and head ----

__global__ void __launch_bounds__(32 * kRowWarps)
    ChunkFactorsKernel(const ReverseScanParams params) {
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  DecayTables* const tables = carver.Take<DecayTables>(kRowWarps);
  const DecayAttentionArgs& args = params.grads.forward;
  const SegmentShape& shape = params.shape;
  const int64_t index = WarpRow();
  const int head = static_cast<int>(index % args.num_heads);
  const int chunk =
      args.sequence_begin[shape.first_sequence] + static_cast<int>(index / args.num_heads);
  if (chunk >= args.sequence_begin[shape.first_sequence + shape.num_sequences]) return;
  DecayTables& own = tables[WarpId()];
  FillDecayTables(own, args, args.chunks[chunk], head, params.row_scales);
  __syncwarp();
  ChunkFactors& factors = static_cast<ChunkFactors*>(params.factors)[index];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = LaneId() + 32 * half;
    factors.incoming[r] = own.incoming[r];
    factors.outgoing_scaled[r] = own.outgoing_scaled[r];
  }
  if (LaneId() == 0) factors.transition = own.transition;
}

// ---- states ----

struct ChunkStatesShared {
  bf16 *x, *y;            // [kStages][64, 64]
  ChunkFactors* factors;  // [kStages]
  BlockIndex*
      block_index;  // the same value for all threads; here it saves registers, which are scarce
};

// Issues the async copies for a chunk's product: k and v, or q and dout, and the factors.
HL_DEVICE void LoadStateChunk(const ChunkStatesShared& smem, const ReverseScanParams& params,
                              int index, int stage, bool reverse) {
  using Config = ChunkStatesConfig;
  const DecayAttentionArgs& args = params.grads.forward;
  const ChunkEntry chunk = args.chunks[index];
  const BlockIndex& block_index = *smem.block_index;
  const TensorView& x = reverse ? args.q : args.k;
  const TensorView& y = reverse ? params.grads.dout : args.v;
  const int x_heads = reverse ? args.num_q_heads : args.num_k_heads;
  const int y_heads = reverse ? args.num_heads : args.num_v_heads;
  LoadTile<Config::kK, Config::kThreads>(
      smem.x + stage * kChunk * Config::kK,
      RowsOf(x, chunk, SharedHead(block_index.head, x_heads, args.num_heads),
             block_index.key_slice * Config::kK, args.head_dim_k),
      chunk.length);
  LoadTile<Config::kV, Config::kThreads>(
      smem.y + stage * kChunk * Config::kV,
      RowsOf(y, chunk, SharedHead(block_index.head, y_heads, args.num_heads),
             block_index.slice * Config::kV, args.head_dim_v),
      chunk.length);
  const auto* const factors =
      reinterpret_cast<const char*>(static_cast<const ChunkFactors*>(params.factors) +
                                    FactorsSlot(params, block_index.head, index));
  for (int i = static_cast<int>(threadIdx.x); i < kChunkFactorsBytes / 16; i += Config::kThreads)
    CpAsync16(reinterpret_cast<char*>(smem.factors + stage) + 16 * i, factors + 16 * i, true);
}

// Loads the state from which a segment starts.
HL_DEVICE void LoadFirstState(float (&state)[kStateBlock / 8][4], const ReverseScanParams& params,
                              const BlockIndex& block_index, bool reverse, const StateRows& rows) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  Clear(state);
  if (!reverse) {
    if (block_index.begin < block_index.end)
      LoadCheckpoint<ChunkStatesConfig>(state, params, block_index, block_index.begin, rows);
  } else if (params.segment_states != nullptr) {
    LoadState<false>(state, params.segment_states + block_index.piece * elements, rows);
  } else if (params.grads.dfinal_state != nullptr) {
    LoadState<false>(
        state, static_cast<const float*>(params.grads.dfinal_state) + block_index.state * elements,
        rows);
  }
}

// Stores a warp's 16 rows of a block, rounded; the rows are `stride` elements apart.
HL_DEVICE void StoreChunkState(bf16* block, int stride, const float (&state)[kStateBlock / 8][4]) {
  const int lane = FreshLaneId();
  bf16* const target = block + (WarpId() * 16 + lane / 4) * stride + lane % 4 * 8;
#pragma unroll
  for (int n = 0; n < kStateBlock / 8; n += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint4*>(target + 8 * half * stride + 8 * n) = RowOfQuad(state + n, half);
  }
}

__global__ void __launch_bounds__(ChunkStatesConfig::kThreads, ChunkStatesConfig::kMinBlocksPerSm)
    ChunkStatesKernel(const ReverseScanParams params) {
  using Config = ChunkStatesConfig;
  constexpr int kK = Config::kK, kV = Config::kV, kStages = Config::kStages;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ChunkStatesShared smem;
  smem.x = carver.Take<bf16>(kStages * kChunk * kK);
  smem.y = carver.Take<bf16>(kStages * kChunk * kV);
  smem.factors = carver.Take<ChunkFactors>(kStages);
  smem.block_index = carver.Take<BlockIndex>(1);

  const DecayAttentionArgs& args = params.grads.forward;
  const unsigned one_way = gridDim.x / 2;
  const bool reverse = blockIdx.x >= one_way;
  if (threadIdx.x == 0)
    *smem.block_index =
        MakeBlockIndex(args, StateBlocks(args, params.shape), params.checkpoint_every,
                       reverse ? blockIdx.x - one_way : blockIdx.x);
  __syncthreads();
  const BlockIndex& block_index = *smem.block_index;
  const int num_chunks = block_index.end - block_index.begin;
  // The state after the last forward chunk is not needed.
  const int num_products = reverse ? num_chunks : num_chunks - 1;
  const auto index_of = [&](int i) {
    return reverse ? block_index.end - 1 - i : block_index.begin + i;
  };
  const auto load = [&](int i) {
    if (i < num_products) LoadStateChunk(smem, params, index_of(i), i % kStages, reverse);
    CpAsyncCommit();  // commits an empty group, too, because the wait counts groups
  };
  const auto rows = [&] {
    return StateRows{args.head_dim_k, args.head_dim_v,
                     block_index.key_slice * kK + FreshWarpId() * 16, block_index.slice * kV};
  };
  float state[kV / 8][4];
  LoadFirstState(state, params, block_index, reverse, rows());
  const StateBlock kept = BlockOf(params, reverse ? params.adjoints : params.states, block_index);
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) load(i);
#pragma unroll 1
  for (int i = 0; i < num_chunks; ++i) {
    const int index = index_of(i), stage = i % kStages;
    const bool resets = (args.chunks[index].flags & kChunkResets) != 0;
    if (!reverse && resets) Clear(state);
    StoreChunkState(kept.first + (index - kept.first_chunk) * kept.chunk_stride, kept.row_stride,
                    state);
    if (i >= num_products) break;
    CpAsyncWait<kStages - 2>();
    __syncthreads();
    load(i + kStages - 1);
    const ChunkFactors& factors = smem.factors[stage];
    Scale(state, factors.transition);
    AccumulateOuter<kK, kV>(state, smem.x + stage * kChunk * kK, smem.y + stage * kChunk * kV,
                            reverse ? factors.incoming : factors.outgoing_scaled);
    if (reverse && resets) Clear(state);
  }
  CpAsyncWait<0>();
  if (reverse && params.grads.dinitial_state != nullptr && block_index.starts)
    StoreState<false>(state,
                      static_cast<float*>(params.grads.dinitial_state) +
                          block_index.state * (int64_t{1} * args.head_dim_k * args.head_dim_v),
                      rows());
}

}  // namespace halflife::kernels::decay
