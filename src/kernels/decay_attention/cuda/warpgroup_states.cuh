// Computes states with Hopper's instructions (sm_90a), forward and in reverse:
//
//   S' = transition S + (c outgoing k)^T v,    R' = transition R + (incoming q)^T dout
//
// With per-channel decays, the operands are the keys and queries of channel_chunks.h, and the
// transition of row c of a state is G_c.
//
// The kernel has two uses:
//   - For the gradients of all chunks (warpgroup_gradients.cuh), it stores S before each chunk,
//     scanned from the checkpoint at a segment's start, and R = dL/d(state) after each chunk,
//     scanned from the segment's end. One launch has the blocks of both directions.
//   - For segments (segment.cuh, step 1), it scans one direction from zero and stores only the end.
//
// A first kernel computes the decay factors, or the operands, of all chunks in parallel. Each block
// owns 64 x 64 of a state in one direction. One thread loads the chunks by bulk copies into four
// stages, and the four other warps do one product per chunk. Blocks are this small so that there
// are enough of them.
//
// Shared memory in KiB, C = 64:
//   | 4 x x [C, 64] 32 | 4 x y [C, 64] 32 | 4 x factors 1.1 (per channel 2) | block_index |
#pragma once

#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/chunk_states_layout.cuh"
#include "kernels/decay_attention/cuda/token_head.cuh"
#include "kernels/decay_attention/cuda/warpgroup_tiles.cuh"

namespace halflife::kernels::decay {

template <bool kPerChannel_>
struct WarpgroupStatesConfig {
  static constexpr bool kPerChannel = kPerChannel_;
  static constexpr int kStages = kStateStages;
  static constexpr int kProductWarps = kStateBlock / 16;
  static constexpr int kThreads = 32 * kProductWarps + 32;  // with the warp that loads
  static constexpr int kMinBlocksPerSm = kStateBlocksPerSm;
  // The factors of one direction as they are staged. Per channel: G and its log2. Otherwise, in
  // reverse ChunkFactors::incoming and through, forward through and outgoing_scaled, which are
  // adjacent.
  static constexpr int kStageFactors = StateStageFactors(kPerChannel);
  static constexpr int kSmemBytes = WarpgroupStatesBytes(kPerChannel);
};

// ---- factors: one warp per chunk and head ----

__global__ void __launch_bounds__(32 * kRowWarps)
    ChunkFactorsKernel(const ChunkFactorsParams params) {
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  DecayTables* const tables = carver.Take<DecayTables>(kRowWarps);
  const DecayAttentionArgs& args = params.args;
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
  if (LaneId() == 0) factors.through = {own.transition, own.log2_transition, {}};
}

// ---- states ----

// The operands of one direction: k (or keys) and v, or q (or queries) and dout.
struct StateMaps {
  RowsMap x, y;
};
struct WarpgroupStatesParams {
  DecayAttentionGradArgs grads;  // a forward uses only grads.forward
  SegmentShape shape;            // with the slices of the stored states
  int checkpoint_every;
  const void* factors;     // one decay factor per token
  ChannelChunks channels;  // per-channel decays
  unsigned num_forward;    // the number of blocks that scan forward; the others scan in reverse
  // For gradients: as in ReverseScanParams. Null for segments.
  void *states, *adjoints;
  const float* segment_states;
  // For segments: as in StateScanParams. Null for gradients.
  float *ends, *log_transition;
  float transition_unit;
};

struct WarpgroupStatesShared {
  bf16 *x, *y;              // [kStages][64, 64]
  float* factors;           // [kStages][kStageFactors]
  BlockIndex* block_index;  // the same for all threads; here it saves registers
  uint64_t *full, *empty;   // [kStages]: a chunk has arrived; the product with it is complete
};

// A chunk's staged factors (WarpgroupStatesConfig::kStageFactors).
template <bool kPerChannel>
struct StagedFactors {
  const float* staged;
  bool reverse;

  HL_DEVICE const float* tokens() const {
    constexpr int kThrough = sizeof(ThroughFactors) / sizeof(float);
    return staged + (reverse ? 0 : kThrough);
  }
  HL_DEVICE const ThroughFactors& through() const {
    return *reinterpret_cast<const ThroughFactors*>(staged + (reverse ? kChunk : 0));
  }
  // Per channel: of the channel with this thread's number within the block.
  HL_DEVICE float log2_transition() const {
    if constexpr (kPerChannel) return staged[kStateBlock + threadIdx.x % kStateBlock];
    return through().log2_transition;
  }
};

// The chunks of a block in the order of its scan.
struct StateWalk {
  int begin, end;
  int num_products;  // chunks with which the state is multiplied
  bool reverse;

  HL_DEVICE int num_chunks() const { return end - begin; }
  HL_DEVICE int chunk(int i) const { return reverse ? end - 1 - i : begin + i; }
};
HL_DEVICE StateWalk WalkOf(const WarpgroupStatesParams& params, const BlockIndex& block_index,
                           bool reverse) {
  const int num_chunks = block_index.end - block_index.begin;
  // For gradients, the state after the last chunk of a forward scan is not needed.
  const bool whole = reverse || params.ends != nullptr;
  return {block_index.begin, block_index.end, whole ? num_chunks : num_chunks - 1, reverse};
}

#if HL_HAS_WGMMA

// Issues the bulk copies of all chunks, by one thread.
template <typename Config>
HL_DEVICE void LoadStateChunks(const WarpgroupStatesShared& smem,
                               const WarpgroupStatesParams& params, const StateMaps& maps,
                               const StateWalk& walk) {
  constexpr int kStages = Config::kStages;
  constexpr int kTileElements = kChunk * kStateBlock;
  const DecayAttentionArgs& args = params.grads.forward;
  const BlockIndex& block_index = *smem.block_index;
  const int head = block_index.head;
  const TensorView& x = walk.reverse ? args.q : args.k;
  const TensorView& y = walk.reverse ? params.grads.dout : args.v;
  const int x_head =
      SharedHead(head, walk.reverse ? args.num_q_heads : args.num_k_heads, args.num_heads);
  const int y_head =
      SharedHead(head, walk.reverse ? args.num_heads : args.num_v_heads, args.num_heads);
  const int channel = block_index.key_slice * kStateBlock;
  const int x_column =
      Config::kPerChannel ? channel : static_cast<int>(x_head * x.stride_h) + channel;
  const int y_column = static_cast<int>(y_head * y.stride_h) + block_index.slice * kStateBlock;
#pragma unroll 1
  for (int i = 0; i < walk.num_products; ++i) {
    const int index = walk.chunk(i), stage = i % kStages;
    const ChunkEntry chunk = args.chunks[index];
    const int64_t slot = FactorsSlot(params, head, index);
    if (i >= kStages) MbarrierWait(smem.empty + stage, static_cast<uint32_t>(i / kStages - 1) & 1);
    uint64_t* const full = smem.full + stage;
    float* const factors = smem.factors + stage * Config::kStageFactors;
    MbarrierArriveExpectTx(full, 2 * 2 * kTileElements + Config::kStageFactors * 4);
    TmaLoad2d(smem.x + stage * kTileElements, &maps.x.map, full, x_column,
              Config::kPerChannel ? static_cast<int>(slot) * kChunk : MapRow(maps.x, chunk));
    TmaLoad2d(smem.y + stage * kTileElements, &maps.y.map, full, y_column, MapRow(maps.y, chunk));
    if constexpr (Config::kPerChannel) {
      const int64_t first = slot * args.head_dim_k + channel;
      BulkLoad(factors, params.channels.transition + first, kStateBlock * 4, full);
      BulkLoad(factors + kStateBlock, params.channels.log2_transition + first, kStateBlock * 4,
               full);
    } else {
      BulkLoad(factors,
               static_cast<const char*>(params.factors) + slot * kChunkFactorsBytes +
                   (walk.reverse ? 0 : kForwardFactors),
               Config::kStageFactors * 4, full);
    }
  }
}

// Loads the state from which a block starts.
HL_DEVICE void LoadFirstState(float (&state)[kStateBlock / 8][4],
                              const WarpgroupStatesParams& params, const BlockIndex& block_index,
                              const StateWalk& walk, const StateRows& rows) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  Clear(state);
  if (params.ends != nullptr) return;
  if (!walk.reverse) {
    if (walk.num_chunks() == 0) return;
    const int64_t slot = CheckpointSlot(block_index.sequence, block_index.first, walk.begin,
                                        params.checkpoint_every);
    LoadState<false>(state,
                     static_cast<const bf16*>(args.checkpoints) +
                         (slot * args.num_heads + block_index.head) * elements,
                     rows);
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

// Clears the rows after a short chunk's end, which belong to other documents.
HL_DEVICE void ClearStateRows(bf16* x, bf16* y, int length) {
  constexpr int kThreads = 32 * WarpgroupStatesConfig<false>::kProductWarps;
  const int thread = static_cast<int>(threadIdx.x);
  ClearRows(x, kStateBlock, length, thread, kThreads);
  ClearRows(y, kStateBlock, length, thread, kThreads);
  FenceProxyAsync();
  NamedBarrierSync<1>(kThreads);
}

// state = transition state + x^T diag(tokens) y; per channel: diag(G) state + x^T y.
template <bool kPerChannel>
HL_DEVICE void AdvanceBlock(float (&state)[kStateBlock / 8][4], const bf16* x, const bf16* y,
                            const StagedFactors<kPerChannel>& factors) {
  const int columns = ColumnsFirst<kStateBlock>(FreshLaneId());
  uint32_t a[kChunk / 16][4];
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    LoadFragment<kStateBlock, true>(a[j], x, columns, 16 * j, WarpId() * 16);
    if constexpr (!kPerChannel) ScaleColumns(a[j], factors.tokens(), 16 * j);
  }
  if constexpr (kPerChannel) {
    ScaleAccumulatorRows(state, factors.staged + WarpId() * 16);
  } else {
    Scale(state, factors.through().transition);
  }
  FenceRegisters(TileOf(state));
  FenceOperands(a);
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    WgmmaM64N64K16OfRows(TileOf(state), a[j], AdvanceTile(TileDescriptor(y), 128 * 16 * j));
  WgmmaCommit();
  WgmmaWait<0>();
  FenceRegisters(TileOf(state));
  KeepRegisters(a);
}

// Stores what the scan of a block ends with.
template <bool kPerChannel>
HL_DEVICE void StoreEnd(float (&state)[kStateBlock / 8][4], float log2_transition,
                        const WarpgroupStatesParams& params, const BlockIndex& block_index,
                        const StateWalk& walk, const StateRows& rows) {
  const int64_t elements =
      int64_t{1} * params.grads.forward.head_dim_k * params.grads.forward.head_dim_v;
  if (params.ends != nullptr) {
    StoreState<false>(state, params.ends + block_index.piece * elements, rows);
    constexpr int kTransitions = kPerChannel ? kStateBlock : 1;  // those of a slice of K
    const int first = block_index.key_slice * kStateBlock, thread = static_cast<int>(threadIdx.x);
    if (thread < kTransitions && block_index.slice == 0 && (kPerChannel || first == 0) &&
        params.log_transition != nullptr)
      params.log_transition[kPerChannel ? block_index.piece * rows.rows + first + thread
                                        : block_index.piece] =
          log2_transition * params.transition_unit;
  } else if (walk.reverse && params.grads.dinitial_state != nullptr && block_index.starts) {
    StoreState<false>(
        state, static_cast<float*>(params.grads.dinitial_state) + block_index.state * elements,
        rows);
  }
}

// Clears a state by a branch. Without the fence, the compiler would select each register in every
// chunk.
HL_DEVICE void ClearRarely(float (&state)[kStateBlock / 8][4], bool clears) {
  if (!clears) return;
  Clear(state);
  FenceRegisters(TileOf(state));
}

// The loop of the four warps that multiply.
template <typename Config>
HL_DEVICE void ScanStates(const WarpgroupStatesShared& smem, const WarpgroupStatesParams& params,
                          const StateWalk& walk) {
  constexpr int kStages = Config::kStages;
  constexpr int kTileElements = kChunk * kStateBlock;
  const DecayAttentionArgs& args = params.grads.forward;
  const BlockIndex& block_index = *smem.block_index;
  const auto rows = [&] {
    return StateRows{args.head_dim_k, args.head_dim_v,
                     block_index.key_slice * kStateBlock + FreshWarpId() * 16,
                     block_index.slice * kStateBlock};
  };
  const bool keeps = params.ends == nullptr;
  StateBlock kept = {};
  if (keeps) kept = BlockOf(params, walk.reverse ? params.adjoints : params.states, block_index);
  float state[kStateBlock / 8][4];
  float log2_transition = 0;
  LoadFirstState(state, params, block_index, walk, rows());
  const int num_chunks = walk.num_chunks();
  ChunkEntry next = {};  // loaded one chunk ahead
  if (num_chunks > 0) next = args.chunks[walk.chunk(0)];
  bool passed_start = false;  // whether the chunk before is the first of a document
#pragma unroll 1
  for (int i = 0; i < num_chunks; ++i) {
    const int index = walk.chunk(i), stage = i % kStages;
    const ChunkEntry chunk = next;
    if (i + 1 < num_chunks) next = args.chunks[walk.chunk(i + 1)];
    const bool resets = (chunk.flags & kChunkResets) != 0;
    ClearRarely(state, walk.reverse ? passed_start : resets);
    passed_start = resets;
    if (keeps)
      StoreChunkState(kept.first + (index - kept.first_chunk) * kept.chunk_stride, kept.row_stride,
                      state);
    if (i >= walk.num_products) break;
    bf16* const x = smem.x + stage * kTileElements;
    bf16* const y = smem.y + stage * kTileElements;
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(i / kStages) & 1);
    if (chunk.length < kChunk) ClearStateRows(x, y, chunk.length);
    const StagedFactors<Config::kPerChannel> factors = {
        smem.factors + stage * Config::kStageFactors, walk.reverse};
    const float log2_chunk = factors.log2_transition();
    log2_transition = walk.reverse ? ExtendTransition<true>(log2_transition, log2_chunk, resets)
                                   : ExtendTransition<false>(log2_transition, log2_chunk, resets);
    AdvanceBlock(state, x, y, factors);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.empty + stage);
  }
  ClearRarely(state, walk.reverse && passed_start);
  StoreEnd<Config::kPerChannel>(state, log2_transition, params, block_index, walk, rows());
}

#endif  // HL_HAS_WGMMA

// The body is empty for other architectures; see WarpgroupScanKernel.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    WarpgroupStatesKernel([[maybe_unused]] HL_GRID_CONSTANT const WarpgroupStatesParams params,
                          [[maybe_unused]] HL_GRID_CONSTANT const StateMaps forward_maps,
                          [[maybe_unused]] HL_GRID_CONSTANT const StateMaps reverse_maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  HL_SHARED(full, uint64_t[Config::kStages]);
  HL_SHARED(empty, uint64_t[Config::kStages]);
  SmemCarver carver(raw);
  WarpgroupStatesShared smem;
  smem.x = carver.Take<bf16, 1024>(Config::kStages * kChunk * kStateBlock);
  smem.y = carver.Take<bf16, 1024>(Config::kStages * kChunk * kStateBlock);
  smem.factors = carver.Take<float>(Config::kStages * Config::kStageFactors);
  smem.block_index = carver.Take<BlockIndex>(1);
  smem.full = full;
  smem.empty = empty;
  const DecayAttentionArgs& args = params.grads.forward;
  const bool reverse = blockIdx.x >= params.num_forward;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(full + stage, 1);
      MbarrierInit(empty + stage, Config::kProductWarps);
    }
    MbarrierInitFence();
    *smem.block_index =
        MakeBlockIndex(args, StateBlocks(args, params.shape), params.checkpoint_every,
                       reverse ? blockIdx.x - params.num_forward : blockIdx.x);
  }
  __syncthreads();
  const StateWalk walk = WalkOf(params, *smem.block_index, reverse);
  if (WarpId() < Config::kProductWarps) {
    ScanStates<Config>(smem, params, walk);
  } else if (LaneId() == 0) {
    LoadStateChunks<Config>(smem, params, reverse ? reverse_maps : forward_maps, walk);
  }
#else
  __trap();
#endif
}

inline StateMaps MapsOfStates(const WarpgroupStatesParams& params, bool reverse) {
  const DecayAttentionArgs& args = params.grads.forward;
  const auto map = [&](const TensorView& view, int heads, int dim, const char* name) {
    return MapOfRows(view, args, params.shape, heads, dim, name);
  };
  if (IsPerChannel(args.decay_kind)) {
    const int64_t chunk_heads =
        MaxStatesInBatchTile(args, params.shape.num_sequences, /*num_parts=*/1);
    const auto tiles = [&](const void* data, const char* name) {
      return RowsMap{MapOfTiles(data, chunk_heads, kChunk, args.head_dim_k, name), 0};
    };
    if (reverse)
      return {tiles(params.channels.queries, "queries of chunks"),
              map(params.grads.dout, args.num_heads, args.head_dim_v, "dout")};
    return {tiles(params.channels.keys, "keys of chunks"),
            map(args.v, args.num_v_heads, args.head_dim_v, "v")};
  }
  if (reverse)
    return {map(args.q, args.num_q_heads, args.head_dim_k, "q"),
            map(params.grads.dout, args.num_heads, args.head_dim_v, "dout")};
  return {map(args.k, args.num_k_heads, args.head_dim_k, "k"),
          map(args.v, args.num_v_heads, args.head_dim_v, "v")};
}

}  // namespace halflife::kernels::decay
