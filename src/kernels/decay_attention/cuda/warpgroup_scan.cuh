// The scan of chunk_scan.cuh with Hopper's instructions (sm_90a). Two warpgroups do the products
// with wgmma: the operand with 64 rows of V is in registers, and the other one is in shared memory,
// where one read serves four warps. In a third warpgroup, one warp loads tiles by TMA, three chunks
// ahead, and fills decay tables. Its other three warps compute the scores one chunk ahead, since
// scores do not depend on the state.
//
//   out^T = S^T q^T diag(incoming) + v^T scores^T,   S^T = transition S^T + (v diag(outgoing))^T k
//
// Each warp owns the 16 rows of S^T in its accumulators. The scores are a sixth of the work, and
// their upper half is not computed; they use mma.sync. No barrier synchronises all warps. Chunks
// are handed over by three kinds of mbarriers: full (tiles and tables are loaded), scored (the
// scores are complete) and empty (all reads are done). Heads must fill their blocks, because TMA
// would load the neighbouring head's columns into a tile that is wider than its head.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 3 x (q 2 x [C, 64] 16 | k 2 x [C, 64] 16 | v 2 x [C, 64] 16) | 2 x scores [C, C] 8
//   | stage of out 8 | 3 x tables 2.3 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/chunk_scan.cuh"
#include "kernels/decay_attention/cuda/warpgroup_tiles.cuh"

namespace halflife::kernels::decay {

template <int kK_>
struct WarpgroupScanConfig {
  static constexpr int kK = kK_, kV = kWarpgroupColumns;
  static constexpr int kTileColumns = kPieceColumns;  // of q and k in shared memory
  static constexpr bool kNormalised = false;
  static constexpr int kStages = kWarpgroupStages;
  static constexpr int kWarps = kV / 16;  // warps that do the products
  static constexpr int kScoreWarps = 3;
  static constexpr int kThreads = 32 * kWarps + 128;  // with the warpgroup that loads and scores
  // With these numbers, neither side spills. Their sum is at most the block's registers, 168 per
  // thread. The state takes kK / 2 registers of a thread that does products.
  static constexpr int kOwnRegisters = 216, kOtherRegisters = 72;
  static_assert(32 * kWarps * kOwnRegisters + 128 * kOtherRegisters <=
                65536 / kThreads / 8 * 8 * kThreads);
  static constexpr int kChunkBytes = 2 * kChunk * (2 * kK + kV);  // of q, k and v
  static constexpr int kSmemBytes = WarpgroupScanBytes(kK);
};

struct WarpgroupMaps {
  RowsMap q, k, v;
};

template <typename Config>
struct WarpgroupScanShared {
  bf16 *q, *k, *v;      // [kStages][kK | kV / 64][64, 64]
  bf16* scores;         // [kScoreStages][64, 64], zero above the diagonal tiles
  bf16* out;            // [kWarps][kOutTokens, 16]
  DecayTables* tables;  // [kStages]
  uint64_t* full;       // [kStages]: the tiles' bytes and the tables have arrived
  uint64_t* empty;      // [kStages]: every warp that does products has finished reading
  uint64_t* scored;     // [kScoreStages]: the scores are complete
};
constexpr int kScoreStages = 2;

#if HL_HAS_WGMMA

// Loads tiles and fills tables, by one warp.
template <typename Config>
HL_DEVICE void ProduceChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const WarpgroupMaps& maps, const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int q_head = SharedHead(block_index.head, args.num_q_heads, args.num_heads);
  const int k_head = SharedHead(block_index.head, args.num_k_heads, args.num_heads);
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const int key = block_index.key_slice * kK;
  const int q_column = static_cast<int>(q_head * args.q.stride_h) + key;
  const int k_column = static_cast<int>(k_head * args.k.stride_h) + key;
  const int v_column = static_cast<int>(v_head * args.v.stride_h) + block_index.slice * kV;
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const int round = step / Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    if (round > 0) MbarrierWait(smem.empty + stage, static_cast<uint32_t>((round - 1) & 1));
    if (LaneId() == 0) {
      uint64_t* const full = smem.full + stage;
      MbarrierArriveExpectTx(full, Config::kChunkBytes);
      LoadPieces(smem.q + stage * kChunk * kK, kK, kPieceElements, maps.q.map, full, q_column,
                 MapRow(maps.q, chunk));
      LoadPieces(smem.k + stage * kChunk * kK, kK, kPieceElements, maps.k.map, full, k_column,
                 MapRow(maps.k, chunk));
      LoadPieces(smem.v + stage * kChunk * kV, kV, kPieceElements, maps.v.map, full, v_column,
                 MapRow(maps.v, chunk));
    }
    FillDecayTables(smem.tables[stage], args, chunk, block_index.head);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.full + stage);
  }
}

// The three warps that compute scores. Of the rows of 16 x 16 tiles, which have one to four tiles
// up to the diagonal, one warp takes the last row, one the third and one the first two.
template <typename Config>
HL_DEVICE void ScoreChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                           const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int last_row = kChunk / 16 - (FreshWarpId() - Config::kWarps);
  const int first_row = last_row == 1 ? 0 : last_row;
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    const bf16* const q = smem.q + stage * kChunk * kK;
    bf16* const k = smem.k + stage * kChunk * kK;
    bf16* const scores = smem.scores + step % kScoreStages * kChunk * kChunk;
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(step / Config::kStages & 1));
    if (chunk.length < kChunk) {
      const int thread = static_cast<int>(threadIdx.x) - 32 * (Config::kWarps + 1);
      ClearRows(k, kK, chunk.length, thread, 32 * Config::kScoreWarps);
      ClearRows(smem.v + stage * kChunk * kV, kV, chunk.length, thread, 32 * Config::kScoreWarps);
      NamedBarrierSync<1>(32 * Config::kScoreWarps);
    }
    if (step >= kScoreStages) {  // the previous scores in this buffer have been read
      const int before = step - kScoreStages;
      MbarrierWait(smem.empty + before % Config::kStages,
                   static_cast<uint32_t>(before / Config::kStages & 1));
    }
    [[maybe_unused]] float sums[2];
#pragma unroll 1
    for (int row = first_row; row <= last_row; ++row) {
#pragma unroll 1
      for (int column = 0; column <= row; ++column)
        ScoreTile<Config>(scores, sums, q, k, smem.tables[stage], args.scale, FreshLaneId(), row,
                          column);
    }
    FenceProxyAsync();
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.scored + step % kScoreStages);
  }
}

// Starts out^T = S^T q^T.
template <typename Config>
HL_DEVICE void BeginInterOutput(float (&out)[kChunk / 8][4], uint32_t (&a)[Config::kK / 16][4],
                                const float (&state)[Config::kK / 8][4], const bf16* q) {
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j) PackFragment(a[j], state[2 * j], state[2 * j + 1]);
  Clear(out);
  FenceRegisters(TileOf(out));
  FenceOperands(a);
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j) {
    const uint64_t tile = TileDescriptor(q + j / 4 * kPieceElements);
    WgmmaM64N64K16(TileOf(out), a[j], AdvanceTile(tile, 32 * (j % 4)));
  }
  WgmmaCommit();
}

// Loads v^T for the warp's 16 rows, and computes v^T diag(outgoing).
template <typename Config>
HL_DEVICE void LoadValues(uint32_t (&a)[kChunk / 16][4], uint32_t (&scaled)[kChunk / 16][4],
                          const bf16* v, const float* outgoing) {
  const bf16* const own_v = v + WarpId() / 4 * kPieceElements;
  const int columns_v = ColumnsFirst<kPieceColumns>(FreshLaneId());
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    LoadFragment<kPieceColumns, true>(a[j], own_v, columns_v, 16 * j, WarpId() % 4 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[j][i] = a[j][i];
    ScaleColumns(scaled[j], outgoing, 16 * j);
  }
}

// Starts out^T += v^T scores^T and S^T += (v diag(outgoing))^T k, as two groups in this order.
template <typename Config>
HL_DEVICE void BeginChunk(float (&out)[kChunk / 8][4], float (&state)[Config::kK / 8][4],
                          uint32_t (&a)[kChunk / 16][4], uint32_t (&scaled)[kChunk / 16][4],
                          const bf16* k, const bf16* scores) {
  constexpr int kPieces = Config::kK / 64;
  FenceRegisters(TileOf(out));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) FenceRegisters(TileOf(state + 8 * piece));
  FenceOperands(a);
  FenceOperands(scaled);
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    WgmmaM64N64K16(TileOf(out), a[j], AdvanceTile(TileDescriptor(scores), 32 * j));
  WgmmaCommit();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint64_t tile = TileDescriptor(k + piece * kPieceElements);
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j)
      WgmmaM64N64K16OfRows(TileOf(state + 8 * piece), scaled[j], AdvanceTile(tile, 128 * 16 * j));
  }
  WgmmaCommit();
}

// The warps that do the products. Work that does not depend on a running product is overlapped with
// it: values are loaded during S^T q^T, and outputs are stored during the update of the state.
template <typename Config>
HL_DEVICE void ConsumeChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, block_index.key_slice * kK,
                          block_index.slice * kV + WarpId() * 16};
  bf16* const stage_out = smem.out + WarpId() * kOutTokens * 16;
  float state[kK / 8][4];
  Clear(state);
  if (params.segment_states != nullptr) {
    LoadState<true>(state, params.segment_states + block_index.piece * state_elements, rows);
  } else if (args.initial_state != nullptr) {
    LoadState<true>(
        state, static_cast<const float*>(args.initial_state) + block_index.state * state_elements,
        rows);
  }
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    const bf16* const scores = smem.scores + step % kScoreStages * kChunk * kChunk;
    const DecayTables& tables = smem.tables[stage];
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(step / Config::kStages & 1));
    if ((chunk.flags & kChunkResets) != 0) Clear(state);
    SaveCheckpoint<Config, kOutTokens>(state, stage_out, params, block_index, index, rows);
    float out[kChunk / 8][4];
    uint32_t rounded[kK / 16][4], v[kChunk / 16][4], scaled_v[kChunk / 16][4];
    BeginInterOutput<Config>(out, rounded, state, smem.q + stage * kChunk * kK);
    MbarrierWait(smem.scored + step % kScoreStages, static_cast<uint32_t>(step / kScoreStages & 1));
    LoadValues<Config>(v, scaled_v, smem.v + stage * kChunk * kV, tables.outgoing_scaled);
    Scale(state, tables.transition);
    WgmmaWait<0>();
    FenceRegisters(TileOf(out));
    KeepRegisters(rounded);
    ScaleAccumulatorColumns(out, tables.incoming);
    BeginChunk<Config>(out, state, v, scaled_v, smem.k + stage * kChunk * kK, scores);
    WgmmaWait<1>();
    FenceRegisters(TileOf(out));
    const Rows target = RowsOf(SliceOf(params.out, args, block_index.key_slice, args.head_dim_v),
                               chunk, block_index.head, block_index.slice * kV, args.head_dim_v);
    StoreTokens<kOutTokens>(out, stage_out, target, chunk.length, WarpId() * 16);
    WgmmaWait<0>();
#pragma unroll
    for (int piece = 0; piece < kK / 64; ++piece) FenceRegisters(TileOf(state + 8 * piece));
    KeepRegisters(v);
    KeepRegisters(scaled_v);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.empty + stage);
  }
  if (args.final_state != nullptr && block_index.stops)
    StoreState<true>(
        state, static_cast<float*>(args.final_state) + block_index.state * state_elements, rows);
}

#endif  // HL_HAS_WGMMA

// The body is empty for other architectures. If the kernel is launched all the same, for example on
// a GPU of compute capability 9.0 by a build for sm_90 without the "a", it traps, because its
// outputs would not be written.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WarpgroupScanKernel([[maybe_unused]] HL_GRID_CONSTANT const ChunkScanParams params,
                        [[maybe_unused]] HL_GRID_CONSTANT const WarpgroupMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  HL_SHARED(full, uint64_t[Config::kStages]);
  HL_SHARED(empty, uint64_t[Config::kStages]);
  HL_SHARED(scored, uint64_t[kScoreStages]);
  SmemCarver carver(raw);
  WarpgroupScanShared<Config> smem;
  smem.q = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.k = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.v = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kV);
  smem.scores = carver.Take<bf16, 1024>(kScoreStages * kChunk * kChunk);
  smem.out = carver.Take<bf16>(kOutTokens * Config::kV);
  smem.tables = carver.Take<DecayTables>(Config::kStages);
  smem.full = full;
  smem.empty = empty;
  smem.scored = scored;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(full + stage, 2);  // one arrival with the bytes, one with the tables
      MbarrierInit(empty + stage, Config::kWarps);
    }
    for (int i = 0; i < kScoreStages; ++i) MbarrierInit(scored + i, Config::kScoreWarps);
    MbarrierInitFence();
  }
  for (int i = thread; i < kScoreStages * kChunk * kChunk / 8; i += Config::kThreads)
    *reinterpret_cast<uint4*>(smem.scores + 8 * i) = make_uint4(0, 0, 0, 0);
  FenceProxyAsync();
  __syncthreads();
  const BlockIndex block_index = MakeBlockIndex(params.args, params.shape, params.checkpoint_every);
  if (WarpgroupId() == Config::kWarps / 4) {
    GiveRegisters<Config::kOtherRegisters>();
    if (FreshWarpId() == Config::kWarps) {
      ProduceChunks<Config>(smem, params, maps, block_index);
    } else {
      ScoreChunks<Config>(smem, params, block_index);
    }
  } else {
    TakeRegisters<Config::kOwnRegisters>();
    ConsumeChunks<Config>(smem, params, block_index);
  }
#else
  __trap();
#endif
}

template <int kK>
void LaunchWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream) {
  using Config = WarpgroupScanConfig<kK>;
  const DecayAttentionArgs& args = params.args;
  const auto map = [&](const TensorView& view, int heads, int dim, const char* name) {
    return MapOfRows(view, args, params.shape, heads, dim, name);
  };
  const WarpgroupMaps maps = {map(args.q, args.num_q_heads, args.head_dim_k, "q"),
                              map(args.k, args.num_k_heads, args.head_dim_k, "k"),
                              map(args.v, args.num_v_heads, args.head_dim_v, "v")};
  Launch({NumBlocks(args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan by warpgroups"},
         stream, WarpgroupScanKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::decay
