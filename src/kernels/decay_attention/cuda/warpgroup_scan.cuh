// The scan of chunk_scan.cuh with Hopper's instructions (sm_90a): two warpgroups multiply, the
// operand with 64 rows of V in registers and the other in shared memory, where it is read once for
// four warps; one warp of a third warpgroup has tiles brought by TMA, three chunks ahead, and fills
// decay tables.
//
//   out^T = S^T q^T diag(incoming) + v^T scores^T,   S^T = transition S^T + (v diag(outgoing))^T k
//
// A warp has the 16 rows of S^T that it has there; scores, a sixth of the work, whose upper half is
// not computed, stay with mma.sync. Heads fill their blocks: TMA brings the neighbour's columns
// where a tile is wider than its head.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 3 x (q 2 x [C, 64] 16 | k 2 x [C, 64] 16 | v 2 x [C, 64] 16) | 2 x scores [C, C] 8
//   | stage of out 8 | 3 x tables 2.3 | = kSmemBytes
#pragma once

#include "kernels/cuda/device90.h"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

template <int kK_>
struct WarpgroupScanConfig {
  static constexpr int kK = kK_, kV = kWarpgroupColumns;
  static constexpr int kTileColumns = 64;  // the swizzle's, of q, k and v
  static constexpr bool kNormalised = false;
  static constexpr int kStages = kWarpgroupStages;
  static constexpr int kWarps = kV / 16;              // that multiply
  static constexpr int kThreads = 32 * kWarps + 128;  // and a warpgroup that loads
  // Where neither side spills; together no more than the block has, which are 168 a thread. kK / 2
  // of a thread that multiplies are state.
  static constexpr int kOwnRegisters = 208, kLoaderRegisters = 88;
  static_assert(32 * kWarps * kOwnRegisters + 128 * kLoaderRegisters <=
                65536 / kThreads / 8 * 8 * kThreads);
  static constexpr int kTileElements = kChunk * kTileColumns;
  static constexpr int kChunkBytes = 2 * kChunk * (2 * kK + kV);  // of q, k and v
  static constexpr int kSmemBytes = WarpgroupScanBytes(kK);
};

// Rows of q, k and v as matrices: a head's columns beside the next head's.
struct WarpgroupMaps {
  TensorMap q, k, v;
  int64_t q_rows, k_rows, v_rows;  // from one row of the batch to the next
};

template <typename Config>
struct WarpgroupScanShared {
  bf16 *q, *k, *v;      // [kStages][kK | kV / 64][64, 64]
  bf16* scores;         // [2][64, 64], zero above the tiles of the diagonal
  bf16* out;            // [kWarps][kOutTokens, 16]
  DecayTables* tables;  // [kStages]
  uint64_t* full;       // [kStages]: the tiles' bytes and the tables are there
  uint64_t* empty;      // [kStages]: every warp is done with them
};

#if HL_HAS_WGMMA

using WgmmaTile = float[32];
// Eight neighbouring mma.m16n8k16 accumulators are one of wgmma.
HL_DEVICE WgmmaTile& TileOf(float (*d)[4]) { return *reinterpret_cast<WgmmaTile*>(d); }

template <typename Config>
HL_DEVICE void LoadPieces(bf16* tile, int columns, const TensorMap& map, uint64_t* barrier,
                          int column, int row) {
  for (int piece = 0; piece < columns / Config::kTileColumns; ++piece)
    TmaLoad2d(tile + piece * Config::kTileElements, &map, barrier,
              column + piece * Config::kTileColumns, row);
}

// By one warp.
template <typename Config>
HL_DEVICE void ProduceChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const WarpgroupMaps& maps, const Place& place) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int q_head = SharedHead(place.head, args.num_q_heads, args.num_heads);
  const int k_head = SharedHead(place.head, args.num_k_heads, args.num_heads);
  const int v_head = SharedHead(place.head, args.num_v_heads, args.num_heads);
  const int key = place.key_slice * kK;
  const int q_column = static_cast<int>(q_head * args.q.stride_h) + key;
  const int k_column = static_cast<int>(k_head * args.k.stride_h) + key;
  const int v_column = static_cast<int>(v_head * args.v.stride_h) + place.slice * kV;
#pragma unroll 1
  for (int index = place.begin; index < place.end; ++index) {
    const int step = index - place.begin, stage = step % Config::kStages;
    const int round = step / Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    if (round > 0) MbarrierWait(smem.empty + stage, static_cast<uint32_t>((round - 1) & 1));
    if (LaneId() == 0) {
      uint64_t* const full = smem.full + stage;
      MbarrierArriveExpectTx(full, Config::kChunkBytes);
      LoadPieces<Config>(smem.q + stage * kChunk * kK, kK, maps.q, full, q_column,
                         static_cast<int>(chunk.row * maps.q_rows) + chunk.token);
      LoadPieces<Config>(smem.k + stage * kChunk * kK, kK, maps.k, full, k_column,
                         static_cast<int>(chunk.row * maps.k_rows) + chunk.token);
      LoadPieces<Config>(smem.v + stage * kChunk * kV, kV, maps.v, full, v_column,
                         static_cast<int>(chunk.row * maps.v_rows) + chunk.token);
    }
    FillDecayTables(smem.tables[stage], args, chunk, place.head);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.full + stage);
  }
}

// Rows from `length` on of a tile in pieces: TMA has brought what follows the chunk, which may be
// of another document and no number.
template <typename Config>
HL_DEVICE void ClearRows(bf16* tile, int columns, int length) {
  constexpr int kUnits = Config::kTileColumns / 8;
  const int dead = (kChunk - length) * kUnits;
#pragma unroll 1
  for (int piece = 0; piece < columns / Config::kTileColumns; ++piece) {
    bf16* const rows = tile + piece * Config::kTileElements + length * Config::kTileColumns;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < dead; i += 32 * Config::kWarps)
      *reinterpret_cast<uint4*>(rows + 8 * i) = make_uint4(0, 0, 0, 0);
  }
}

// out^T = S^T q^T diag(incoming)
template <typename Config>
HL_DEVICE void InterOutputOfWarpgroup(float (&out)[kChunk / 8][4],
                                      const float (&state)[Config::kK / 8][4], const bf16* q,
                                      const DecayTables& tables) {
  uint32_t a[Config::kK / 16][4];
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j) PackFragment(a[j], state[2 * j], state[2 * j + 1]);
  Clear(out);
  FenceRegisters(TileOf(out));
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j) {
    const uint64_t tile = TileDescriptor(q + j / 4 * Config::kTileElements);
    WgmmaM64N64K16(TileOf(out), a[j], AdvanceTile(tile, 32 * (j % 4)));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  FenceRegisters(TileOf(out));
  ScaleAccumulatorColumns(out, tables.incoming);
}

// out^T += v^T scores^T and S^T += (v diag(outgoing))^T k
template <typename Config>
HL_DEVICE void AddChunk(float (&out)[kChunk / 8][4], float (&state)[Config::kK / 8][4],
                        const bf16* k, const bf16* v, const bf16* scores, const float* outgoing) {
  constexpr int kPieces = Config::kK / 64;
  const bf16* const own_v = v + WarpId() / 4 * Config::kTileElements;
  const int columns_v = ColumnsFirst<Config::kTileColumns>(FreshLaneId());
  uint32_t a[kChunk / 16][4], scaled[kChunk / 16][4];
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    LoadFragment<Config::kTileColumns, true>(a[j], own_v, columns_v, 16 * j, WarpId() % 4 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[j][i] = a[j][i];
    ScaleColumns(scaled[j], outgoing, 16 * j);
  }
  FenceRegisters(TileOf(out));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) FenceRegisters(TileOf(state + 8 * piece));
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    WgmmaM64N64K16(TileOf(out), a[j], AdvanceTile(TileDescriptor(scores), 32 * j));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint64_t tile = TileDescriptor(k + piece * Config::kTileElements);
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j)
      WgmmaM64N64K16OfRows(TileOf(state + 8 * piece), scaled[j], AdvanceTile(tile, 128 * 16 * j));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  FenceRegisters(TileOf(out));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) FenceRegisters(TileOf(state + 8 * piece));
}

// The warps that multiply. One barrier a chunk, between the scores and what reads them; the scores
// have two places, so that no warp is a barrier ahead of what another still reads.
template <typename Config>
HL_DEVICE void ConsumeChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const Place& place) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = 32 * Config::kWarps;
  const DecayAttentionArgs& args = params.args;
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, place.key_slice * kK,
                          place.slice * kV + WarpId() * 16};
  bf16* const stage_out = smem.out + WarpId() * kOutTokens * 16;
  float state[kK / 8][4];
  Clear(state);
  if (params.segment_states != nullptr) {
    LoadState<true>(state, params.segment_states + place.piece * state_elements, rows);
  } else if (args.initial_state != nullptr) {
    LoadState<true>(
        state, static_cast<const float*>(args.initial_state) + place.state * state_elements, rows);
  }
#pragma unroll 1
  for (int index = place.begin; index < place.end; ++index) {
    const int step = index - place.begin, stage = step % Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    const bf16* const q = smem.q + stage * kChunk * kK;
    bf16* const k = smem.k + stage * kChunk * kK;
    bf16* const v = smem.v + stage * kChunk * kV;
    bf16* const scores = smem.scores + step % 2 * kChunk * kChunk;
    const DecayTables& tables = smem.tables[stage];
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(step / Config::kStages & 1));
    if (chunk.length < kChunk) {
      ClearRows<Config>(k, kK, chunk.length);
      ClearRows<Config>(v, kV, chunk.length);
      NamedBarrierSync<1>(kThreads);
    }
    if ((chunk.flags & kChunkResets) != 0) Clear(state);
    SaveCheckpoint<Config, kOutTokens>(state, stage_out, params, place, index, rows);
    IntraTile<Config>(scores, nullptr, q, k, tables, args.scale);
    FenceProxyAsync();
    NamedBarrierSync<1>(kThreads);
    float out[kChunk / 8][4];
    InterOutputOfWarpgroup<Config>(out, state, q, tables);
    Scale(state, tables.transition);
    AddChunk<Config>(out, state, k, v, scores, tables.outgoing_scaled);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.empty + stage);
    const Rows target = RowsOf(SliceOf(params.out, args, place.key_slice, args.head_dim_v), chunk,
                               place.head, place.slice * kV, args.head_dim_v);
    StoreTokens<kOutTokens>(out, stage_out, target, chunk.length, WarpId() * 16);
  }
  if (args.final_state != nullptr && place.stops)
    StoreState<true>(state, static_cast<float*>(args.final_state) + place.state * state_elements,
                     rows);
}

#endif  // HL_HAS_WGMMA

// For other architectures an empty body. Launched all the same, on a GPU of compute capability 9.0
// by a build for sm_90 without the a, it ends the program: its outputs would be left as they were.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WarpgroupScanKernel([[maybe_unused]] HL_GRID_CONSTANT const ChunkScanParams params,
                        [[maybe_unused]] HL_GRID_CONSTANT const WarpgroupMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  HL_SHARED(full, uint64_t[Config::kStages]);
  HL_SHARED(empty, uint64_t[Config::kStages]);
  SmemCarver carver(raw);
  WarpgroupScanShared<Config> smem;
  smem.q = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.k = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.v = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kV);
  smem.scores = carver.Take<bf16, 1024>(2 * kChunk * kChunk);
  smem.out = carver.Take<bf16>(kOutTokens * Config::kV);
  smem.tables = carver.Take<DecayTables>(Config::kStages);
  smem.full = full;
  smem.empty = empty;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(full + stage, 2);  // with the bytes, and with the tables
      MbarrierInit(empty + stage, Config::kWarps);
    }
    MbarrierInitFence();
  }
  for (int i = thread; i < 2 * kChunk * kChunk / 8; i += Config::kThreads)
    *reinterpret_cast<uint4*>(smem.scores + 8 * i) = make_uint4(0, 0, 0, 0);
  FenceProxyAsync();
  __syncthreads();
  const Place place = PlaceOf(params.args, params.shape, params.checkpoint_every);
  if (WarpgroupId() == Config::kWarps / 4) {
    GiveRegisters<Config::kLoaderRegisters>();
    if (FreshWarpId() == Config::kWarps) ProduceChunks<Config>(smem, params, maps, place);
  } else {
    TakeRegisters<Config::kOwnRegisters>();
    ConsumeChunks<Config>(smem, params, place);
  }
#else
  __trap();
#endif
}

// A tensor's rows of the batch up to the turn's last, as one matrix.
inline TensorMap MapOfRows(const TensorView& view, const ChunkScanParams& params, int heads,
                           int dim, const char* name) {
  const DecayAttentionArgs& args = params.args;
  const int64_t batch_rows = view.stride_b / view.stride_t;
  const int64_t last = int64_t{params.shape.first_sequence} + args.batch - 1;
  TileSource source;
  source.data = view.data;
  source.num_rows = last * batch_rows + args.seq_len;
  source.num_cols = (heads - 1) * view.stride_h + dim;
  source.row_bytes = 2 * view.stride_t;
  source.element_bytes = 2;
  source.box_rows = kChunk;
  source.name = name;
  return MakeTensorMap(source);
}

template <int kK>
void LaunchWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream) {
  using Config = WarpgroupScanConfig<kK>;
  const DecayAttentionArgs& args = params.args;
  WarpgroupMaps maps;
  maps.q = MapOfRows(args.q, params, args.num_q_heads, args.head_dim_k, "q");
  maps.k = MapOfRows(args.k, params, args.num_k_heads, args.head_dim_k, "k");
  maps.v = MapOfRows(args.v, params, args.num_v_heads, args.head_dim_v, "v");
  maps.q_rows = args.q.stride_b / args.q.stride_t;
  maps.k_rows = args.k.stride_b / args.k.stride_t;
  maps.v_rows = args.v.stride_b / args.v.stride_t;
  Launch({NumBlocks(args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan by warpgroups"},
         stream, WarpgroupScanKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::decay
