// Shared by the two wgmma scans (warpgroup_scan.cuh, warpgroup_adjoint_scan.cuh; sm_90a):
// the ring of chunks in shared memory, and the warp that fills it.
//
// A block owns 64 columns of V of one value head. Its four product warps form one warpgroup and
// hold the transposed state, 16 columns of V per warp, in accumulators. One thread of a fifth warp
// loads the chunks by bulk copies, some chunks ahead. Chunks are handed over by two kinds of
// mbarriers: full (a chunk has arrived) and empty (all reads of it are done). The product warps
// read no global memory for a chunk.
//
// Shared memory in KiB, K = 128:
//   | 3 x (W [C, K] 16 | k Q [C, K] 16 | scale q P [C, K] 16 | A [C, C] 8 | values [C, 64] 8
//   | Gamma 0.5 | chunk) | stages for results 4 |
// The values are U~ or dout. A scan without queries has neither scale q P nor A. It has two stages,
// as all scans with another K. With K = 256 there is no memory for stages of results, so a result
// is staged in W or k Q of its chunk.
#pragma once

#include "kernels/common/cuda/warpgroup_tiles.cuh"
#include "kernels/delta_rule/cuda/passes.h"

namespace halflife::kernels::delta {

using tiles::Clear;

// kQueries_: whether the scan reads `q_entry` and `scores`.
template <int kK_, bool kQueries_>
struct RingConfig {
  static constexpr int kK = kK_;
  static constexpr bool kQueries = kQueries_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps + 32;
  static constexpr int kStages = kQueries && kK == 128 ? 3 : 2;
  static constexpr int kMinBlocksPerSm = (kQueries && kK > 64) || kK > 128 ? 1 : 2;
  static constexpr int kStageTokens = 32;  // tokens of a result that a warp stages at once
  // Whether results are staged in the chunk's k Q, or W, once all warps have multiplied by it,
  // because there is no memory left for a stage of their own.
  static constexpr bool kBorrowsStage = kQueries && kK > 128;
  // The part of K whose operand S^T or R^T is in registers at once.
  static constexpr int kPart = kK < 128 ? kK : 128, kParts = kK / kPart;
  static constexpr int kRowElements = kChunk * kK;
  static constexpr int kThroughBytes = static_cast<int>(sizeof(float)) * kK;
  static constexpr int kValueBytes = 2 * tiles::kPieceElements;
  // Bytes of a chunk that the bulk copies load, without the values.
  static constexpr int kCopiedBytes =
      2 * (2 * kRowElements + (kQueries ? kRowElements + tiles::kPieceElements : 0)) +
      kThroughBytes;
  static constexpr int kSmemBytes =
      kStages * (kCopiedBytes + kValueBytes + static_cast<int>(sizeof(ChunkEntry)) +
                 2 * static_cast<int>(sizeof(uint64_t))) +
      (kBorrowsStage ? 0 : 2 * kWarps * kStageTokens * 16) + 16;  // 16: alignment of the barriers
  static_assert(kMinBlocksPerSm * (kSmemBytes + 1024) <= 228 * 1024);
};

// One chunk of the ring. The matrices are in pieces of 64 columns.
struct RingStage {
  bf16 *w, *k_exit, *q_entry;  // [64, K]
  bf16 *scores, *values;       // [64, 64]
  float* through;              // [K]
  ChunkEntry* chunk;
};
template <typename Config>
struct Ring {
  bf16 *w, *k_exit, *q_entry, *scores, *values;  // [kStages]
  bf16* results;                                 // [kWarps][kStageTokens, 16]
  float* through;                                // [kStages][K]
  ChunkEntry* chunks;                            // [kStages]
  uint64_t *full, *empty;                        // [kStages]

  HL_DEVICE explicit Ring(unsigned char* raw) {
    constexpr int kStages = Config::kStages, kRows = Config::kRowElements;
    SmemCarver carver(raw);
    w = carver.Take<bf16, 1024>(kStages * kRows);
    k_exit = carver.Take<bf16, 1024>(kStages * kRows);
    q_entry = Config::kQueries ? carver.Take<bf16, 1024>(kStages * kRows) : nullptr;
    scores = Config::kQueries ? carver.Take<bf16, 1024>(kStages * tiles::kPieceElements) : nullptr;
    values = carver.Take<bf16, 1024>(kStages * tiles::kPieceElements);
    results = Config::kBorrowsStage ? nullptr
                                    : carver.Take<bf16>(Config::kWarps * Config::kStageTokens * 16);
    through = carver.Take<float>(kStages * Config::kK);
    chunks = carver.Take<ChunkEntry>(kStages);
    full = carver.Take<uint64_t>(kStages);
    empty = carver.Take<uint64_t>(kStages);
  }
  HL_DEVICE RingStage Stage(int stage) const {
    constexpr int kRows = Config::kRowElements, kPiece = tiles::kPieceElements;
    return {w + stage * kRows,       k_exit + stage * kRows,  q_entry + stage * kRows,
            scores + stage * kPiece, values + stage * kPiece, through + stage * Config::kK,
            chunks + stage};
  }
  // The warp's buffer of results.
  HL_DEVICE bf16* Results() const { return results + WarpId() * Config::kStageTokens * 16; }
  // The same, if need be in `tile` of a chunk, by which every warp has issued its products and
  // waited for them. ReleaseChunk() orders these stores before the next copy into the tile.
  HL_DEVICE bf16* Results(bf16* tile) const {
    if constexpr (!Config::kBorrowsStage) return Results();
    NamedBarrierSync<1>(32 * Config::kWarps);
    return tile + WarpId() * Config::kStageTokens * 16;
  }
};

// Maps over the arrays of the workspace. Those that a scan does not read are empty.
struct ChunkMaps {
  TensorMap w, k_exit, q_entry, scores;
};
template <typename Config>
ChunkMaps MakeChunkMaps(const DeltaRuleArgs& args, const Workspace& workspace) {
  const int64_t chunks = int64_t{1} * args.num_chunks * args.num_value_heads;
  const auto map = [&](const void* data, int columns, const char* name) {
    return tiles::MapOfTiles(data, chunks, kChunk, columns, name);
  };
  ChunkMaps maps = {};
  maps.w = map(workspace.w, Config::kK, "W of chunks");
  maps.k_exit = map(workspace.k_exit, Config::kK, "keys of chunks");
  if (!Config::kQueries) return maps;
  maps.q_entry = map(workspace.q_entry, Config::kK, "queries of chunks");
  maps.scores = map(workspace.scores, kChunk, "scores of chunks");
  return maps;
}

// The chunks of a block, in the order of its scan.
struct ChunkWalk {
  int first, count, step;  // step: 1, or -1 in reverse
  int head;

  HL_DEVICE int chunk(int i) const { return first + i * step; }
};

#if HL_HAS_WGMMA

// Initialises the barriers. Ends with a barrier of the block.
template <typename Config>
HL_DEVICE void InitRing(const Ring<Config>& ring) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(ring.full + stage, 1);
      MbarrierInit(ring.empty + stage, Config::kWarps);
    }
    MbarrierInitFence();
  }
  __syncthreads();
}

// Loads the chunks of a walk, by one thread. load_values(target, barrier, n, chunk) loads the
// values, of `value_bytes`.
template <typename Config, typename LoadValues>
HL_DEVICE void LoadRing(const Ring<Config>& ring, const ChunkMaps& maps, const DeltaRuleArgs& args,
                        const float* through, const ChunkWalk& walk, int value_bytes,
                        const LoadValues& load_values) {
  constexpr int kK = Config::kK;
#pragma unroll 1
  for (int i = 0; i < walk.count; ++i) {
    const int n = walk.chunk(i), stage = i % Config::kStages, round = i / Config::kStages;
    const int64_t index = int64_t{1} * n * args.num_value_heads + walk.head;
    const int row = static_cast<int>(index * kChunk);
    const ChunkEntry chunk = args.chunks[n];
    const RingStage to = ring.Stage(stage);
    uint64_t* const full = ring.full + stage;
    if (round > 0) MbarrierWait(ring.empty + stage, static_cast<uint32_t>((round - 1) & 1));
    *to.chunk = chunk;
    MbarrierArriveExpectTx(full, Config::kCopiedBytes + value_bytes);
    tiles::LoadPieces(to.w, kK, tiles::kPieceElements, maps.w, full, 0, row);
    tiles::LoadPieces(to.k_exit, kK, tiles::kPieceElements, maps.k_exit, full, 0, row);
    if constexpr (Config::kQueries) {
      tiles::LoadPieces(to.q_entry, kK, tiles::kPieceElements, maps.q_entry, full, 0, row);
      tiles::LoadPieces(to.scores, kChunk, tiles::kPieceElements, maps.scores, full, 0, row);
    }
    if (value_bytes > 0) load_values(to.values, full, n, chunk);
    BulkLoad(to.through, through + index * kK, Config::kThroughBytes, full);
  }
}

// Waits for chunk i of the walk.
template <typename Config>
HL_DEVICE RingStage WaitForChunk(const Ring<Config>& ring, int i) {
  const int stage = i % Config::kStages;
  MbarrierWait(ring.full + stage, static_cast<uint32_t>(i / Config::kStages & 1));
  return ring.Stage(stage);
}

// Arrives once for the whole warp, after all of its lanes have come here.
HL_DEVICE void ArriveByWarp(uint64_t* barrier) {
  __syncwarp();
  if (LaneId() == 0) MbarrierArrive(barrier);
}

// Releases chunk i, after the warp's last read of it.
template <typename Config>
HL_DEVICE void ReleaseChunk(const Ring<Config>& ring, int i) {
  if constexpr (Config::kBorrowsStage) FenceProxyAsync();
  ArriveByWarp(ring.empty + i % Config::kStages);
}

// Rounds the accumulators from `tile` on to bf16 operands.
template <int kSteps, int kTiles>
HL_DEVICE void PackTiles(uint32_t (&packed)[kSteps][4], const float (&d)[kTiles][4], int tile = 0) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
    tiles::PackFragment(packed[j], d[tile + 2 * j], d[tile + 2 * j + 1]);
}

// Clears a state by a branch: without the fence, the compiler would select each register in every
// chunk.
template <int kTiles>
HL_DEVICE void ClearRarely(float (&state)[kTiles][4], bool clears) {
  if (!clears) return;
  Clear(state);
  tiles::FenceTiles(state);
}

// Stores what the warp holds transposed to rows of `width` elements of the workspace, of which the
// block owns those from `column` on: 64 rows from `rows` on.
template <typename Config>
HL_DEVICE void StoreToWorkspace(const float (&d)[kChunk / 8][4], bf16* results, bf16* rows,
                                int width, int column) {
  tiles::Rows target;
  target.data = reinterpret_cast<char*>(rows + column);
  target.stride_t = width;
  target.dim = width - column;
  target.aligned = true;
  target.is_wide = false;
  tiles::StoreTransposed<Config::kStageTokens>(d, results, target, kChunk, WarpId() * 16);
}

#endif  // HL_HAS_WGMMA

}  // namespace halflife::kernels::delta
