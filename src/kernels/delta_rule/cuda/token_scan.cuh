// The forward of bf16 heads without decays or with one decay per token, with Hopper's instructions
// (sm_90a). A decay of a token scales whole rows, so W, U~, k Q and scale q P of workspace.h need
// not exist: the scan multiplies by k and q themselves and scales rows or columns of accumulators.
// With T = X diag(beta), so that U = T E, `prepare` only computes diag(Q) T, A T and P. For each
// chunk:
//
//   E^T = v^T - S^T k^T diag(P)          what the keys do not find in the state
//   S'^T = Gamma S^T + (E^T (diag(Q) T)^T) k
//   out = diag(scale P) q S + (A T) E
//
// A block owns 64 columns of V of one value head and has three warpgroups. The first one holds S^T,
// 16 columns of V per warp, in accumulators; its products are the serial part. It passes S^T and
// E^T, rounded to bf16, through shared memory to the second one, which computes the outputs at the
// same time. A thread of the third one loads chunks by bulk copies, some chunks ahead. Chunks are
// handed over by mbarriers: full (loaded), empty (all reads are done), and two for each of S^T and
// E^T: stored, and read.
//
// Shared memory in KiB, K = 128:
//   | 3 x (k [C, K] 16 | q [C, K] 16 | Q T [C, C] 8 | A T [C, C] 8 | v [C, 64] 8 | P 0.25 | chunk)
//   | S^T [64, K] 16 | E^T [64, C] 8 | barriers
#pragma once

#include "kernels/delta_rule/cuda/scan_block.cuh"
#include "kernels/delta_rule/cuda/warpgroup_scan.cuh"

namespace halflife::kernels::delta {

template <int kK_>
struct TokenScanConfig {
  static constexpr int kK = kK_;
  static constexpr int kWarps = 4;  // of a warpgroup
  static constexpr int kThreads = 3 * 32 * kWarps;
  // Registers of a thread, in each warpgroup. Without the transfer, all would have 168.
  static constexpr int kStateRegisters = 240, kOutputRegisters = 152, kLoadRegisters = 40;
  static_assert(kStateRegisters + kOutputRegisters + kLoadRegisters <= 3 * 168);
  static constexpr int kStages = kK > 128 ? 2 : 3;
  static constexpr int kPart = kK < 128 ? kK : 128, kParts = kK / kPart;  // as RingConfig
  static constexpr int kRowElements = kChunk * kK, kSquareElements = tiles::kPieceElements;
  static constexpr int kDecayBytes = kChunk * static_cast<int>(sizeof(float));
  static constexpr int kCopiedBytes = 2 * (2 * kRowElements + 3 * kSquareElements) + kDecayBytes;
  static constexpr int kSmemBytes =
      kStages * (kCopiedBytes + static_cast<int>(sizeof(ChunkEntry) + 2 * sizeof(uint64_t))) +
      2 * (kRowElements + kSquareElements) + 64;  // 64: the other barriers, and alignment
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

// One chunk of the ring. The matrices are in pieces of 64 columns.
struct TokenStage {
  bf16 *k, *q;                      // [64, K]
  bf16 *operand, *scores, *values;  // diag(Q) T, A T, v: [64, 64]
  float* entry;                     // P [64]
  ChunkEntry* chunk;
};
template <typename Config>
struct TokenScanShared {
  bf16 *k, *q, *operand, *scores, *values;  // [kStages]
  float* entry;                             // [kStages][64]
  ChunkEntry* chunks;                       // [kStages]
  bf16 *state, *errors;                     // S^T [64, K], E^T [64, 64], rounded
  uint64_t *full, *empty;                   // [kStages]
  uint64_t *state_stored, *state_read, *errors_stored, *errors_read;

  HL_DEVICE explicit TokenScanShared(unsigned char* raw) {
    constexpr int kStages = Config::kStages, kSquare = Config::kSquareElements;
    SmemCarver carver(raw);
    k = carver.Take<bf16, 1024>(kStages * Config::kRowElements);
    q = carver.Take<bf16, 1024>(kStages * Config::kRowElements);
    operand = carver.Take<bf16, 1024>(kStages * kSquare);
    scores = carver.Take<bf16, 1024>(kStages * kSquare);
    values = carver.Take<bf16, 1024>(kStages * kSquare);
    state = carver.Take<bf16, 1024>(Config::kRowElements);
    errors = carver.Take<bf16, 1024>(kSquare);
    entry = carver.Take<float>(kStages * kChunk);
    full = carver.Take<uint64_t>(2 * kStages + 4);
    chunks = carver.Take<ChunkEntry>(kStages);
    empty = full + kStages;
    state_stored = empty + kStages;
    state_read = state_stored + 1;
    errors_stored = state_stored + 2;
    errors_read = state_stored + 3;
  }
  HL_DEVICE TokenStage Stage(int stage) const {
    constexpr int kRows = Config::kRowElements, kSquare = Config::kSquareElements;
    return {k + stage * kRows,
            q + stage * kRows,
            operand + stage * kSquare,
            scores + stage * kSquare,
            values + stage * kSquare,
            entry + stage * kChunk,
            chunks + stage};
  }
};

struct TokenScanMaps {
  tiles::RowsMap q, k, v;
  TensorMap operand, scores;
};

#if HL_HAS_WGMMA

template <typename Config>
HL_DEVICE void InitTokenScan(const TokenScanShared<Config>& smem) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(smem.full + stage, 1);
      MbarrierInit(smem.empty + stage, 2 * Config::kWarps);
    }
    for (int i = 0; i < 4; ++i) MbarrierInit(smem.state_stored + i, Config::kWarps);
    MbarrierInitFence();
  }
  __syncthreads();
}

// Loads the block's chunks, by one thread.
template <typename Config>
HL_DEVICE void LoadTokenChunks(const TokenScanShared<Config>& smem, const ScanParams& params,
                               const TokenScanMaps& maps, const ScanBlock& block) {
  constexpr int kK = Config::kK, kStages = Config::kStages, kPiece = tiles::kPieceElements;
  const DeltaRuleArgs& args = params.args;
  const int key_head = SharedHead(block.head, args.num_heads, args.num_value_heads);
  const int query = static_cast<int>(key_head * args.q.stride_h);
  const int key = static_cast<int>(key_head * args.k.stride_h);
  const int value = static_cast<int>(block.head * args.v.stride_h) + block.column;
#pragma unroll 1
  for (int n = block.begin; n < block.end; ++n) {
    const int i = n - block.begin, stage = i % kStages;
    const int64_t index = int64_t{1} * n * args.num_value_heads + block.head;
    const int row = static_cast<int>(index * kChunk);
    const ChunkEntry chunk = args.chunks[n];
    const TokenStage to = smem.Stage(stage);
    uint64_t* const full = smem.full + stage;
    if (i >= kStages)
      MbarrierWait(smem.empty + stage, static_cast<uint32_t>((i / kStages - 1) & 1));
    *to.chunk = chunk;
    MbarrierArriveExpectTx(full, Config::kCopiedBytes);
    tiles::LoadPieces(to.k, kK, kPiece, maps.k.map, full, key, tiles::MapRow(maps.k, chunk));
    TmaLoad2d(to.values, &maps.v.map, full, value, tiles::MapRow(maps.v, chunk));
    TmaLoad2d(to.operand, &maps.operand, full, 0, row);
    BulkLoad(to.entry, params.workspace.entry + index * kChunk, Config::kDecayBytes, full);
    tiles::LoadPieces(to.q, kK, kPiece, maps.q.map, full, query, tiles::MapRow(maps.q, chunk));
    TmaLoad2d(to.scores, &maps.scores, full, 0, row);
  }
}

// Stores an operand of the warp's 16 rows to a tile of 64 rows in pieces.
template <int kSteps>
HL_DEVICE void StoreOperand(const uint32_t (&x)[kSteps][4], bf16* tile) {
  const int lane = tiles::FreshLaneId(), g = lane / 4;
  bf16* const row = tile + (WarpId() % 4 * 16 + g) * tiles::kPieceColumns + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // as PackFragment
      const int unit = 2 * (j % 4) + i / 2;
      *reinterpret_cast<uint32_t*>(row + j / 4 * tiles::kPieceElements +
                                   i % 2 * 8 * tiles::kPieceColumns + (unit ^ g) * 8) = x[j][i];
    }
  }
}

// read = values - read diag(factor)
HL_DEVICE void SubtractScaledColumns(float (&read)[kChunk / 8][4],
                                     const uint32_t (&values)[kChunk / 16][4],
                                     const float* factor) {
  tiles::ScaleAccumulatorColumns(read, factor);
  SubtractFromValues(read, values);
}

// Processes one chunk in the warps that hold the state: computes E, and the state after the chunk.
template <typename Config>
HL_DEVICE void AdvanceTokenState(float (&state)[Config::kK / 8][4],
                                 const TokenScanShared<Config>& smem, const TokenStage& from,
                                 int i) {
  const int length = from.chunk->length;
  const uint32_t before = static_cast<uint32_t>((i - 1) & 1);  // phase of the chunk before
  float u[kChunk / 8][4];
  uint32_t rounded[Config::kPart / 16][4], values[kChunk / 16][4], written[kChunk / 16][4];
  if (length < kChunk) {
    tiles::ClearRows(from.k, Config::kK, length, static_cast<int>(threadIdx.x),
                     32 * Config::kWarps);
    FenceProxyAsync();
    NamedBarrierSync<1>(32 * Config::kWarps);
  }
  Clear(u);
  tiles::FenceTiles(u);
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    if (part > 0) {  // the registers of the operand are used again
      WgmmaWait<0>();
      KeepRegisters(rounded);
    }
    PackTiles(rounded, state, part * Config::kPart / 8);
    FenceOperands(rounded);
    WgmmaFence();
    tiles::IssueTimesTransposed(u, rounded, from.k + part * kChunk * Config::kPart);
    WgmmaCommit();
    if (part == 0 && i > 0) MbarrierWait(smem.state_read, before);
    StoreOperand(rounded, smem.state + part * kChunk * Config::kPart);
  }
  FenceProxyAsync();
  ArriveByWarp(smem.state_stored);
  tiles::LoadOwnValues(values, from.values, length);
  WgmmaWait<0>();
  tiles::FenceTiles(u);
  KeepRegisters(rounded);
  SubtractScaledColumns(u, values, from.entry);
  PackTiles(values, u);
  Clear(u);
  tiles::FenceTiles(u);
  FenceOperands(values);
  WgmmaFence();
  tiles::IssueTimesTransposed(u, values, from.operand);
  WgmmaCommit();
  tiles::Scale(state, from.entry[kChunk - 1]);  // Gamma
  WgmmaWait<0>();
  tiles::FenceTiles(u);
  KeepRegisters(values);
  PackTiles(written, u);
  FenceOperands(written);
  tiles::FenceTiles(state);
  WgmmaFence();
  tiles::IssueTimes(state, written, from.k);
  WgmmaCommit();
  if (i > 0) MbarrierWait(smem.errors_read, before);
  StoreOperand(values, smem.errors);
  FenceProxyAsync();
  ArriveByWarp(smem.errors_stored);
  WgmmaWait<0>();
  tiles::FenceTiles(state);
  KeepRegisters(written);
}

// Stores the warp's columns of a state [K, V] of fp32, all of which exist.
template <int kTiles>
HL_DEVICE void StoreWholeState(const float (&state)[kTiles][4], float* data, int width,
                               const ScanBlock& block) {
  const int lane = tiles::FreshLaneId();
  float* row = data + lane % 4 * 2 * width + block.column + WarpId() * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i % 2 * width + i / 2 * 8] = state[n][i];
    row += 8 * width;
  }
}

template <typename Config>
HL_DEVICE TokenStage WaitForTokenChunk(const TokenScanShared<Config>& smem, int i) {
  const int stage = i % Config::kStages;
  MbarrierWait(smem.full + stage, static_cast<uint32_t>(i / Config::kStages & 1));
  return smem.Stage(stage);
}

// The loop of the warpgroup that holds the state.
template <typename Config>
HL_DEVICE void ScanTokenStates(const TokenScanShared<Config>& smem, const ScanParams& params,
                               const ScanBlock& block) {
  float state[Config::kK / 8][4];
  LoadFirstColumns(state, params, block);
#pragma unroll 1
  for (int n = block.begin; n < block.end; ++n) {
    const int i = n - block.begin;
    const TokenStage from = WaitForTokenChunk(smem, i);
    ClearRarely(state, (from.chunk->flags & kChunkResets) != 0);
    if (params.checkpoints != nullptr && i % kDeltaCheckpointEvery == 0)
      StoreWholeState(state, CheckpointAt(params, block, n), params.args.head_dim_v, block);
    AdvanceTokenState(state, smem, from, i);
    ArriveByWarp(smem.empty + i % Config::kStages);
  }
  if (params.final_state != nullptr)
    StoreWholeState(state, params.final_state + StateIndex(params, block), params.args.head_dim_v,
                    block);
}

// d += x y^T for 64 columns of x and y.
HL_DEVICE void IssuePiece(float (&d)[kChunk / 8][4], const bf16* x, const bf16* y) {
  const uint64_t a = TileDescriptor(x), b = TileDescriptor(y);
#pragma unroll
  for (int j = 0; j < tiles::kPieceColumns / 16; ++j)
    WgmmaM64N64K16(tiles::TileOf(d), AdvanceTile(a, 32 * j), AdvanceTile(b, 32 * j));
}

// Stores the warp's 16 rows. The rows of the tensor are aligned, and the columns exist.
HL_DEVICE void StoreOutputRows(const float (&out)[kChunk / 8][4], const tiles::Rows& rows,
                               int length) {
  const int lane = tiles::FreshLaneId();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = WarpId() % 4 * 16 + lane / 4 + 8 * half;
    bf16* const target = reinterpret_cast<bf16*>(rows.data) + row * rows.stride_t + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < kChunk / 8; n += 4) {
      const uint4 values = tiles::RowOfQuad(out + n, half);  // executed by all lanes
      if (row < length) *reinterpret_cast<uint4*>(target + 8 * n) = values;
    }
  }
}

// The loop of the warpgroup that computes the outputs.
template <typename Config>
HL_DEVICE void ComputeTokenOutputs(const TokenScanShared<Config>& smem, const ScanParams& params,
                                   const ScanBlock& block) {
  const DeltaRuleArgs& args = params.args;
  const float scale = static_cast<float>(args.scale);
#pragma unroll 1
  for (int n = block.begin; n < block.end; ++n) {
    const int i = n - block.begin;
    const uint32_t phase = static_cast<uint32_t>(i & 1);
    const TokenStage from = WaitForTokenChunk(smem, i);
    const ChunkEntry chunk = *from.chunk;
    float out[kChunk / 8][4];
    Clear(out);
    tiles::FenceTiles(out);
    MbarrierWait(smem.state_stored, phase);
    WgmmaFence();
#pragma unroll
    for (int piece = 0; piece < Config::kK / tiles::kPieceColumns; ++piece)
      IssuePiece(out, from.q + piece * tiles::kPieceElements,
                 smem.state + piece * tiles::kPieceElements);
    WgmmaCommit();
    WgmmaWait<0>();
    tiles::FenceTiles(out);
    ArriveByWarp(smem.state_read);
    tiles::ScaleAccumulatorRows(out, from.entry + WarpId() % 4 * 16);
    tiles::Scale(out, scale);
    tiles::FenceTiles(out);
    MbarrierWait(smem.errors_stored, phase);
    WgmmaFence();
    IssuePiece(out, from.scores, smem.errors);
    WgmmaCommit();
    WgmmaWait<0>();
    tiles::FenceTiles(out);
    ArriveByWarp(smem.errors_read);
    ArriveByWarp(smem.empty + i % Config::kStages);
    StoreOutputRows(out, tiles::RowsOf(args.out, chunk, block.head, block.column, args.head_dim_v),
                    chunk.length);
  }
}

#endif  // HL_HAS_WGMMA

// Traps on other architectures, for which no caller selects it.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    TokenScanKernel([[maybe_unused]] HL_GRID_CONSTANT const ScanParams params,
                    [[maybe_unused]] HL_GRID_CONSTANT const TokenScanMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  const TokenScanShared<Config> smem(raw);
  const ScanBlock block = MakeScanBlock<kWarpgroupValues>(params);
  InitTokenScan(smem);
  const int warpgroup = WarpgroupId();
  if (warpgroup == 0) {
    TakeRegisters<Config::kStateRegisters>();
    ScanTokenStates(smem, params, block);
  } else if (warpgroup == 1) {
    GiveRegisters<Config::kOutputRegisters>();
    ComputeTokenOutputs(smem, params, block);
  } else {
    GiveRegisters<Config::kLoadRegisters>();
    if (threadIdx.x == 2 * 32 * Config::kWarps) LoadTokenChunks(smem, params, maps, block);
  }
#else
  __trap();
#endif
}

template <typename Config>
void LaunchTokenScanAs(const ScanParams& params, cudaStream_t stream) {
  const DeltaRuleArgs& args = params.args;
  const int64_t slices = args.head_dim_v / kWarpgroupValues;
  const int64_t chunks = int64_t{1} * args.num_chunks * args.num_value_heads;
  const auto rows = [&](const TensorView& view, int heads, int dim, const char* name) {
    return tiles::MapOfRows(view, args.batch, args.seq_len, heads, dim, name);
  };
  const TokenScanMaps maps = {
      rows(args.q, args.num_heads, args.head_dim_k, "q"),
      rows(args.k, args.num_heads, args.head_dim_k, "k"),
      rows(args.v, args.num_value_heads, args.head_dim_v, "v"),
      tiles::MapOfTiles(params.workspace.operand, chunks, kChunk, kChunk, "Q T of chunks"),
      tiles::MapOfTiles(params.workspace.scores, chunks, kChunk, kChunk, "scores of chunks")};
  constexpr const char* kName = "delta rule, scan with decays per token";
  Launch({dim3(GridBlocks(int64_t{1} * args.num_sequences * args.num_value_heads * slices, kName)),
          dim3(Config::kThreads), Config::kSmemBytes, kName},
         stream, TokenScanKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::delta
