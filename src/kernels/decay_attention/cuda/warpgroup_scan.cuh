// The scan of chunk_scan.cuh with Hopper's instructions (sm_90a). A warpgroup for each 64 columns
// of V does products with wgmma: the operand with 64 rows of V is in registers, and the other one
// is in shared memory, where one read serves four warps. The last warpgroup computes the scores one
// chunk ahead, since scores do not depend on the state. Its warps also load tiles by TMA and fill
// decay tables.
//
//   out^T = S^T q^T diag(incoming) + v^T scores^T,   S^T = transition S^T + (v diag(outgoing))^T k
//
// Each warp that does products owns the 16 rows of S^T in its accumulators. No barrier synchronises
// all warps. Chunks are handed over by three kinds of mbarriers: full (tiles and tables are
// loaded), scored (the scores are complete) and empty (all reads are done). Heads must fill their
// blocks, because TMA would load the neighbouring head's columns into a tile that is wider than its
// head.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 3 x (q 2 x [C, 64] 16 | k 2 x [C, 64] 16 | v 2 x [C, 64] 16) | 2 x scores [C, C] 8
//   | stage of out 8 | 3 x tables 4.3 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/chunk_scan.cuh"
#include "kernels/decay_attention/cuda/warpgroup_tiles.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_>
struct WarpgroupScanConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kStages = kWarpgroupStages;
  static constexpr int kWarps = kV / 16;  // warps that do the products
  static constexpr int kScoreWarps = 4;   // the warpgroup that loads and scores
  static constexpr int kThreads = 32 * (kWarps + kScoreWarps);
  static constexpr int kMinBlocksPerSm = WarpgroupScanBlocksPerSm(kK, kV);
  // With these numbers, neither side spills. Their sum is at most the block's registers. The state
  // takes kK / 2 registers of a thread that does products.
  static constexpr int kOwnRegisters = kMinBlocksPerSm == 1 ? 208 : 168;
  static constexpr int kOtherRegisters = 88;
  static_assert(32 * kWarps * kOwnRegisters + 128 * kOtherRegisters <=
                65536 / kMinBlocksPerSm / kThreads / 8 * 8 * kThreads);
  static constexpr int kChunkBytes = 2 * kChunk * (2 * kK + kV);  // of q, k and v
  static constexpr int kSmemBytes = WarpgroupScanBytes(kK, kV);
};

struct WarpgroupMaps {
  RowsMap q, k, v;
};

template <typename Config>
struct WarpgroupScanShared {
  bf16 *q, *k, *v;     // [kStages][kK | kV / 64][64, 64]
  bf16* scores;        // [kScoreStages][64, 64], zero after each query's base block
  bf16* out;           // [kWarps][kOutTokens, 16]
  PairTables* tables;  // [kStages]
  uint64_t* full;      // [kStages]: the tiles' bytes and the tables have arrived
  uint64_t* empty;     // [kStages]: every warp that does products has finished reading
  uint64_t* scored;    // [kScoreStages]: the scores are complete
};
constexpr int kScoreStages = 2;

#if HL_HAS_WGMMA

// Starts the copies of chunk `index` of the block's segment, by one thread.
template <typename Config>
HL_DEVICE void LoadScanChunk(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const WarpgroupMaps& maps, const BlockIndex& block_index, int index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int stage = (index - block_index.begin) % Config::kStages;
  const ChunkEntry chunk = args.chunks[index];
  const auto column = [&](const TensorView& view, int heads, int first) {
    return static_cast<int>(SharedHead(block_index.head, heads, args.num_heads) * view.stride_h) +
           first;
  };
  const int key = block_index.key_slice * kK, value = block_index.slice * kV;
  uint64_t* const full = smem.full + stage;
  MbarrierArriveExpectTx(full, Config::kChunkBytes);
  LoadPieces(smem.q + stage * kChunk * kK, kK, kPieceElements, maps.q.map, full,
             column(args.q, args.num_q_heads, key), MapRow(maps.q, chunk));
  LoadPieces(smem.k + stage * kChunk * kK, kK, kPieceElements, maps.k.map, full,
             column(args.k, args.num_k_heads, key), MapRow(maps.k, chunk));
  LoadPieces(smem.v + stage * kChunk * kV, kV, kPieceElements, maps.v.map, full,
             column(args.v, args.num_v_heads, value), MapRow(maps.v, chunk));
}

// Fills the tables of one chunk after the other, by one warp. The factors of the next chunk's
// tokens are loaded a chunk ahead. If all tokens have the same factors, the tables depend only on
// the chunk's length, and a stage that already has them is left as it is.
template <typename Config>
class TableFiller {
 public:
  HL_DEVICE TableFiller(const WarpgroupScanShared<Config>& smem, const DecayAttentionArgs& args,
                        const BlockIndex& block_index)
      : smem_(smem),
        args_(args),
        next_(block_index.begin),
        begin_(block_index.begin),
        end_(block_index.end),
        head_(block_index.head),
        varies_(IsPerToken(args.decay_kind) || args.key_scale.data != nullptr) {}
  HL_DEVICE void FillFirst() {
    LoadNext();
    FillNext();
  }
  HL_DEVICE void FillNext() {
    if (next_ >= end_) return;
    const int stage = (next_ - begin_) % Config::kStages;
    const int filled = static_cast<int>(lengths_ >> (8 * stage) & 0xffu);
    if (varies_ || filled != length_) {
      PairTables& tables = smem_.tables[stage];
      FillDecayTables(tables, [&](int r) { return r < 32 ? first_ : second_; });
      FillNearWeights(tables);
      lengths_ += static_cast<uint32_t>(length_ - filled) << (8 * stage);
    }
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem_.full + stage);
    ++next_;
    LoadNext();
  }

 private:
  HL_DEVICE void LoadNext() {
    if (next_ >= end_) return;
    const ChunkEntry chunk = args_.chunks[next_];
    length_ = chunk.length;
    const int decay_head = SharedHead(head_, args_.num_decay_heads, args_.num_heads);
    first_ = LoadTokenFactors(args_, {}, chunk, LaneId(), head_, decay_head);
    second_ = LoadTokenFactors(args_, {}, chunk, LaneId() + 32, head_, decay_head);
  }

  const WarpgroupScanShared<Config>& smem_;
  const DecayAttentionArgs& args_;
  int next_, begin_, end_, head_;  // chunks; next_ is filled next
  bool varies_;
  uint32_t lengths_ = 0;  // a byte per stage: the length for which its tables are filled
  int length_ = 0;        // of chunk next_
  TokenFactors first_ = {}, second_ = {};  // of the lane's tokens in chunk next_
};

// scores_rs = scale c_s w_rs q_r k_s for s <= r and 0 otherwise, from q_r k_s in `scores`, for the
// warp's 16 queries. Keys in base blocks after a query's are neither weighed nor stored: their
// places are zero.
HL_DEVICE void StoreScores(bf16* target, float (&scores)[kChunk / 8][4], const PairTables& tables,
                           float scale) {
  const int warp = FreshWarpId() % 4, lane = FreshLaneId();
  const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    if (n > 2 * warp + 1) break;
    const int s = 8 * n + column;
    const float c0 = scale * tables.key_scale[s], c1 = scale * tables.key_scale[s + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half, block = 2 * warp + half;
      float &x = scores[n][2 * half], &y = scores[n][2 * half + 1];
      x *= PairWeight(tables, r, block, s, n) * c0;
      y *= PairWeight(tables, r, block, s + 1, n) * c1;
      if (n < block) continue;
      if (s > r) x = 0;  // also if the product is NaN
      if (s + 1 > r) y = 0;
    }
  }
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    if (n > 2 * warp + 1) break;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(target + TileOffset<kChunk>(row + 8 * half, 8 * n + column)) =
          PackBf16(scores[n][2 * half], scores[n][2 * half + 1]);
  }
}

// The loop of the warpgroup that computes scores. A chunk is loaded into the stage of the chunk
// three before it. After the scores, the warp with the fewest pairs fills the tables of the next
// chunk, and its neighbour starts copies.
template <typename Config>
HL_DEVICE void ScoreChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                           const WarpgroupMaps& maps, const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV, kStages = Config::kStages;
  static_assert(kStages == kScoreStages + 1);
  const DecayAttentionArgs& args = params.args;
  const int warp = FreshWarpId() - Config::kWarps;
  const bool fills = warp == 0, loads = warp == 1 && LaneId() == 0;
  if (loads) {
    for (int index = block_index.begin; index < block_index.end; ++index) {
      if (index - block_index.begin == kStages) break;
      LoadScanChunk(smem, params, maps, block_index, index);
    }
  }
  __syncwarp();
  TableFiller<Config> tables(smem, args, block_index);
  if (fills) tables.FillFirst();
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % kStages;
    const int length = args.chunks[index].length;
    bf16* const k = smem.k + stage * kChunk * kK;
    if (step >= kScoreStages) {  // the stage of the next chunk and this chunk's scores are free
      const int before = step - kScoreStages;
      MbarrierWait(smem.empty + before % kStages, static_cast<uint32_t>(before / kStages & 1));
      if (loads && index + 1 < block_index.end)
        LoadScanChunk(smem, params, maps, block_index, index + 1);
      __syncwarp();
    }
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(step / kStages & 1));
    if (length < kChunk) {
      const int thread = static_cast<int>(threadIdx.x) - 32 * Config::kWarps;
      ClearRows(k, kK, length, thread, 32 * Config::kScoreWarps);
      ClearRows(smem.v + stage * kChunk * kV, kV, length, thread, 32 * Config::kScoreWarps);
      FenceProxyAsync();
      NamedBarrierSync<1>(32 * Config::kScoreWarps);
    }
    float scores[kChunk / 8][4];
    Clear(scores);
    FenceRegisters(TileOf(scores));
    WgmmaFence();
    BeginPairs<kK>(scores, smem.q + stage * kChunk * kK, k);
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(TileOf(scores));
    StoreScores(smem.scores + step % kScoreStages * kChunk * kChunk, scores, smem.tables[stage],
                args.scale);
    FenceProxyAsync();
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.scored + step % kScoreStages);
    if (fills) tables.FillNext();
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

// The loop of the warps that multiply. Work that does not depend on a running product overlaps with
// it: values are loaded during S^T q^T, and outputs are stored during the update of the state.
template <typename Config>
HL_DEVICE void ConsumeChunks(const WarpgroupScanShared<Config>& smem, const ChunkScanParams& params,
                             const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, block_index.key_slice * kK,
                          block_index.slice * kV + WarpId() * 16};
  bf16* const stage_out = smem.out + WarpId() * kOutTokens * 16;
  float state[kK / 8][4];
  LoadFirstState(state, params, block_index, rows);
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    const bf16* const scores = smem.scores + step % kScoreStages * kChunk * kChunk;
    const PairTables& tables = smem.tables[stage];
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
  StoreFinalState(state, params, block_index, rows);
}

#endif  // HL_HAS_WGMMA

// The body is empty for other architectures. If the kernel is launched all the same, for example on
// a GPU of compute capability 9.0 by a build for sm_90 without the "a", it traps, because its
// outputs would not be written.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
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
  smem.tables = carver.Take<PairTables>(Config::kStages);
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
    ScoreChunks<Config>(smem, params, maps, block_index);
  } else {
    TakeRegisters<Config::kOwnRegisters>();
    ConsumeChunks<Config>(smem, params, block_index);
  }
#else
  __trap();
#endif
}

template <int kK, int kV>
void LaunchWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream) {
  static_assert(HasFastWarpgroupScan(kK, kV));
  using Config = WarpgroupScanConfig<kK, kV>;
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
