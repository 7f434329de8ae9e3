// Device steps shared by the kernels for per-channel decays. Such a decay cannot scale a finished
// tile of scores: it is multiplied into the operands. Chunks are therefore processed in tiles of 16
// tokens and in three passes, of which only the scans are sequential:
//
//   operands   (channel_operands.cuh)      all tiles in parallel: the operands of the scans
//   scans      (channel_scan.cuh, segment.cuh, channel_reverse_scan.cuh): products only
//   gradients  (channel_gradients.cuh)     all tiles in parallel: what pairs in a tile contribute
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

constexpr int kTilesPerChunk = kChunk / kTile;

// Returns 16 tokens of a chunk as a chunk of their own.
HL_DEVICE ChunkEntry TileOf(const ChunkEntry& chunk, int row) {
  ChunkEntry tile = chunk;
  tile.token += row;
  tile.length = min(kTile, chunk.length - row);
  if (row > 0) tile.flags = 0;
  return tile;
}
HL_DEVICE int LastTile(const ChunkEntry& chunk) { return (chunk.length - 1) / kTile * kTile; }

// ---- one tile per block: kernels that process tiles independently ----

// Blocks are indexed by (chunk of the batch tile, head, slice of K, tile of the chunk), the last
// fastest, and so are operands and products. A scan computes the index for its head and slice of K.
struct TilesOfHead {
  int first_chunk;  // of the batch tile
  int first, step;  // its first tile; distance between the tiles of adjacent chunks

  HL_DEVICE int64_t Index(int chunk, int row) const {
    return int64_t{1} * (chunk - first_chunk) * step + (first + row / kTile);
  }
};
HL_DEVICE TilesOfHead TilesOfHeadOf(const DecayAttentionArgs& args, const SegmentShape& shape,
                                    const BlockIndex& block_index) {
  return {args.sequence_begin[shape.first_sequence],
          (block_index.head * shape.num_key_slices + block_index.key_slice) * kTilesPerChunk,
          args.num_heads * shape.num_key_slices * kTilesPerChunk};
}
struct OneTile {
  ChunkEntry tile;
  BlockIndex block_index;  // only head and slices are set
  int chunk, row;
  bool in_batch_tile, exists;  // whether its chunk belongs to the batch tile, and contains the tile
};
HL_DEVICE OneTile OneTileOf(const DecayAttentionArgs& args, const SegmentShape& shape) {
  OneTile one = {};
  unsigned index = blockIdx.x;  // 32 bits: 64-bit divisions would take as long as the tile's scores
  one.row = static_cast<int>(index % kTilesPerChunk) * kTile;
  index /= kTilesPerChunk;
  const auto key_slices = static_cast<unsigned>(shape.num_key_slices);
  one.block_index.key_slice = static_cast<int>(index % key_slices);
  index /= key_slices;
  const auto heads = static_cast<unsigned>(args.num_heads);
  one.block_index.head = static_cast<int>(index % heads);
  one.chunk = args.sequence_begin[shape.first_sequence] + static_cast<int>(index / heads);
  one.in_batch_tile = one.chunk < args.sequence_begin[shape.first_sequence + shape.num_sequences];
  if (!one.in_batch_tile) return one;
  const ChunkEntry chunk = args.chunks[one.chunk];
  one.exists = one.row < chunk.length;
  one.tile = TileOf(chunk, one.row);
  return one;
}

// Calls visit(r, s, sum over channels of q_r k_s decay_{s+1} .. decay_r) once per pair of the tile;
// the sum is 0 if s > r. q, k: tiles [16, kK], decays [16, kK]. A thread handles one key and its
// group's part of the channels, in pairs. It decays the key step by step from s to r.
template <int kK, int kThreads, typename T, typename Visit>
HL_DEVICE void PairScores(const T* q, const T* k, const float* decays, const Visit& visit) {
  constexpr int kGroups = kThreads / kTile;  // threads per key
  static_assert(kGroups == 8 || kGroups == 16, "sums go over lanes of one warp");
  constexpr int kParts = kTile / kGroups;
  const int s = static_cast<int>(threadIdx.x) / kGroups;
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  const int first =
      FreshWarpId() * 32 / kGroups;  // the warp's first key: earlier queries see none of its keys
  float sums[kParts][kGroups];
#pragma unroll
  for (int r = 0; r < kTile; ++r) sums[r / kGroups][r % kGroups] = 0;
#pragma unroll 1
  for (int c = 2 * group; c < kK; c += 2 * kGroups) {
    const float2 keys = LoadPair(k + TileOffset<kK>(s, c));
    float key0 = keys.x, key1 = keys.y;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      if (r < first) continue;
      if (r > s) {
        const float2 decay = *reinterpret_cast<const float2*>(decays + r * kK + c);
        key0 *= decay.x;
        key1 *= decay.y;
      }
      if (r >= s) {
        const float2 query = LoadPair(q + TileOffset<kK>(r, c));
        float& sum = sums[r / kGroups][r % kGroups];
        sum = fmaf(query.y, key1, fmaf(query.x, key0, sum));
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float sum = SumOverLanes(sums[part]);
    visit(part * kGroups + group, s, sum);
  }
}

// Prevents the compiler from moving loads from shared memory up past this point. Loading all rows
// at once would need more registers than there are.
HL_DEVICE void KeepLoadsApart() { __syncwarp(); }
// Loads a row of 16 numbers from shared memory.
HL_DEVICE void LoadRow(float (&row)[kTile], const float* source) {
#pragma unroll
  for (int i = 0; i < kTile; i += 4) {
    const float4 part = *reinterpret_cast<const float4*>(source + i);
    row[i] = part.x;
    row[i + 1] = part.y;
    row[i + 2] = part.z;
    row[i + 3] = part.w;
  }
}

// Issues the async copies of the log decays for the block's channels; 0 past the tile's end and
// past the last channel.
template <int kK, int kThreads, int kRows = kTile>
HL_DEVICE void LoadLogDecays(float* target, const DecayAttentionArgs& args, const ChunkEntry& tile,
                             const BlockIndex& block_index) {
  TensorView view = args.log_decay;
  if (args.decay_kind == DecayKind::kPerHeadChannel) {
    view.stride_b = view.stride_t = 0;
    view.stride_h = args.head_dim_k;
  }
  const int decay_head = SharedHead(block_index.head, args.num_decay_heads, args.num_heads);
  const Rows rows = RowsOf(view, tile, decay_head, block_index.key_slice * kK, args.head_dim_k);
  const float* const data = reinterpret_cast<const float*>(rows.data);
  if (rows.aligned) {
    constexpr int kUnits = kK / 4, kStep = kThreads / kUnits;
    const int thread = static_cast<int>(threadIdx.x);
    const int first = thread / kUnits, column = thread % kUnits * 4;
    const int end = column < rows.dim ? tile.length : 0;
    const float* source = data + first * rows.stride_t + column;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      const bool valid = first + i < end;
      CpAsync16(target + (first + i) * kK + column, valid ? source : data, valid);
      source += kStep * rows.stride_t;
    }
  } else {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kK; i += kThreads) {
      const int row = i / kK, column = i % kK;
      const bool valid = row < tile.length && column < rows.dim;
      CpAsync4(target + i, valid ? data + row * rows.stride_t + column : data, valid);
    }
  }
}

// Loads q, k and the log decays of the block's channels.
template <int kK, int kThreads, typename T>
HL_DEVICE void LoadKeysAndQueries(T* q, T* k, float* log_decay, const DecayAttentionArgs& args,
                                  const OneTile& one) {
  const int first = one.block_index.key_slice * kK;
  const int q_head = SharedHead(one.block_index.head, args.num_q_heads, args.num_heads);
  const int k_head = SharedHead(one.block_index.head, args.num_k_heads, args.num_heads);
  LoadTile<kK, kThreads, kTile>(q, RowsOf(args.q, one.tile, q_head, first, args.head_dim_k),
                                one.tile.length);
  LoadTile<kK, kThreads, kTile>(k, RowsOf(args.k, one.tile, k_head, first, args.head_dim_k),
                                one.tile.length);
  LoadLogDecays<kK, kThreads>(log_decay, args, one.tile, one.block_index);
}
// Stores scale and c of the tile's tokens, one thread each; 0 past its end.
HL_DEVICE void FillTokenScales(float* query_scale, float* key_scale, const DecayAttentionArgs& args,
                               const OneTile& one, const RowScales& row_scales) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kTile) return;
  const bool live = t < one.tile.length;
  query_scale[t] = live ? QueryScaleAt(args, row_scales, one.tile, t, one.block_index.head) : 0.0f;
  key_scale[t] = live ? KeyScaleAt(args, one.tile, t, one.block_index.head) : 0.0f;
}

// ---- a tile's operands in global memory ----

// Rows of scores are 48 bytes apart, so that the eight rows of an ldmatrix are in different banks.
constexpr int kScorePitch = kTile + 8;

// Byte offsets of the operands, as channel_operands.cuh stores them, and in a stage of shared
// memory.
template <int kK, int kTerms = 1>
struct OperandOffsets {
  static constexpr int kRows = kTerms * kTile * kK * static_cast<int>(sizeof(bf16));
  static constexpr int kQ = 0;               // scale q P [kTerms][16, kK] bf16, as a tile
  static constexpr int kKeys = kRows;        // c k Q, in the same form
  static constexpr int kScores = 2 * kRows;  // [kTerms][16, kScorePitch] bf16
  static constexpr int kTransition = kScores + kTerms * kTile * kScorePitch * 2;  // G [kK] fp32
  static constexpr int kLog2Transition = kTransition + kK * 4;  // log2 of G [kK]; only for states
  static constexpr int kStage = kLog2Transition;                // bytes that a stage holds
  static constexpr int kBytes = kLog2Transition + kK * 4;
  static_assert(kBytes == ChannelOperandBytes(kK, kTerms) &&
                kStage == ChannelStageBytes(kK, kTerms));
};
struct StagedOperands {
  bf16 *q, *k, *scores;
  float* transition;
};
template <int kK, int kTerms>
HL_DEVICE StagedOperands OperandsOf(unsigned char* stages, int stage) {
  using Offsets = OperandOffsets<kK, kTerms>;
  unsigned char* const bytes = stages + stage * Offsets::kStage;
  return {reinterpret_cast<bf16*>(bytes + Offsets::kQ),
          reinterpret_cast<bf16*>(bytes + Offsets::kKeys),
          reinterpret_cast<bf16*>(bytes + Offsets::kScores),
          reinterpret_cast<float*>(bytes + Offsets::kTransition)};
}

// Element offsets of the fp32 products that a reverse scan stores for a tile and a slice of V: S
// dout, R v, and sums of S R over V.
template <int kK>
struct ProductOffsets {
  static constexpr int kX = 0, kY = kTile * kK;    // [16, kK]
  static constexpr int kThrough = 2 * kTile * kK;  // [kK]
  static constexpr int kElements = ChannelProductElements(kK);
  static_assert(kElements == kThrough + kK);
};

// Issues async copies of kBytes, starting at kFirst, without changing the layout.
template <int kThreads, int kFirst, int kBytes>
HL_DEVICE void CopyUnits(unsigned char* target, const char* source) {
  static_assert(kFirst % 16 == 0 && kBytes % 16 == 0);
  const int thread = static_cast<int>(threadIdx.x) * 16;
  target += thread;
  source += thread;
#pragma unroll
  for (int i = 0; i < kBytes; i += kThreads * 16) {
    if (i + kThreads * 16 <= kBytes || thread + i < kBytes)
      CpAsync16(target + kFirst + i, source + kFirst + i, true);
  }
}

// Loads scores as a B fragment of [n, k], or (kTrans) as an A fragment of scores^T.
template <bool kTrans, int kTerms>
HL_DEVICE void ScoresFragment(Fragment<kTerms>& x, const bf16* scores) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int i = 0; i < kTerms; ++i)
    LdMatrixX4<kTrans>(x.terms[i], scores + i * kTile * kScorePitch +
                                       (lane % 8 + (lane >> 4 & 1) * 8) * kScorePitch +
                                       (lane >> 3 & 1) * 8);
}

// ---- tiles in sequence ----

// HeadRows describes the rows of a head from the batch's first token on, and RowsAt those of one
// tile. The constant part is thus computed once.
HL_DEVICE Rows HeadRows(const TensorView& view, int head, int column, int dim) {
  Rows rows = RowsOf(view, ChunkEntry{}, head, column, dim);
  rows.aligned = rows.aligned && view.stride_b * (rows.is_wide ? 4 : 2) % 16 == 0;
  return rows;
}
HL_DEVICE Rows RowsAt(const Rows& of_head, const TensorView& view, const ChunkEntry& tile) {
  Rows rows = of_head;
  rows.data += (tile.row * view.stride_b + tile.token * view.stride_t) * (rows.is_wide ? 4 : 2);
  return rows;
}

// Describes the contents of one stage of shared memory to the threads that use it.
struct StagedTile {
  ChunkEntry tile;
  int chunk, row;
  int valid;  // 0: the scan is complete
  // Only for a reverse scan, which visits every tile except the last of a group twice. sweeps: it
  // is visited in reverse. starts_group, ends_group: it is the first, or last, tile of its group.
  // slot: where the state before it is stored.
  int sweeps, starts_group, ends_group, slot;
};

static_assert(sizeof(StagedTile) <= kStagedTileBytes);

// Describes the tile at a row of a chunk; all zeros if valid is false.
HL_DEVICE StagedTile StagedTileOf(bool valid, const ChunkEntry& entry, int chunk, int row) {
  StagedTile tile = {};
  tile.valid = valid;
  if (!valid) return tile;
  tile.tile = TileOf(entry, row);
  tile.chunk = chunk;
  tile.row = row;
  return tile;
}

// Iterates over the tiles of a segment in either direction. The entry of the next tile's successor
// chunk is prefetched.
struct TileScan {
  const ChunkEntry* chunks;
  int begin, end;
  bool reverse;
  int chunk, row;
  ChunkEntry entry, ahead;

  HL_DEVICE bool valid() const { return chunk >= begin && chunk < end; }
  HL_DEVICE StagedTile staged() const { return StagedTileOf(valid(), entry, chunk, row); }
  HL_DEVICE void Start() {
    chunk = reverse ? end - 1 : begin;
    row = 0;
    if (!valid()) return;
    entry = chunks[chunk];
    row = reverse ? LastTile(entry) : 0;
    LookAhead();
  }
  HL_DEVICE void LookAhead() {
    ahead = chunks[reverse ? max(chunk - 1, begin) : min(chunk + 1, end - 1)];
  }
  HL_DEVICE void Advance() {
    row += reverse ? -kTile : kTile;
    if (row >= 0 && row < entry.length) return;
    chunk += reverse ? -1 : 1;
    entry = ahead;
    row = reverse ? LastTile(entry) : 0;
    if (valid()) LookAhead();
  }
};

// Visits tiles through the stages of a pipeline. stage_next(stage) issues the loads of the next
// tile into the stage and describes it in tiles[stage]; visit(tile, stage) processes a tile that
// has arrived. One barrier per tile: it is loaded, and the previous tile's stage is free.
template <typename StageNext, typename Visit>
HL_DEVICE void VisitStaged(const StagedTile* tiles, const StageNext& stage_next,
                           const Visit& visit) {
#pragma unroll 1
  for (int stage = 0; stage < kTileStages - 1; ++stage) {
    stage_next(stage);
    CpAsyncCommit();
  }
#pragma unroll 1
  for (int step = 0;; ++step) {
    const int stage = step % kTileStages;
    CpAsyncWait<kTileStages - 2>();
    __syncthreads();
    const StagedTile at = tiles[stage];
    if (!at.valid) return;
    stage_next((step + kTileStages - 1) % kTileStages);
    CpAsyncCommit();
    visit(at, stage);
  }
}

// Adds the product a b to a state. With two terms, the product starts from zero: tensor cores
// truncate what they add to, and a state is a sum over all tiles.
template <int kTerms>
HL_DEVICE void AddToState(float (&d0)[4], float (&d1)[4], const Fragment<kTerms>& a,
                          const Fragment<kTerms>& b) {
  if constexpr (kTerms == 1) {
    MmaPair(d0, d1, a, b);
  } else {
    float sum[2][4];
    Clear(sum);
    MmaPair(sum[0], sum[1], a, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d0[i] += sum[0][i];
      d1[i] += sum[1][i];
    }
  }
}
// acc = G acc + x^T y over the tile's tokens: x [kTerms][16, kK], y [16, kV], acc [16 channels of
// the warp, kV].
template <int kTerms, int kK, int kV>
HL_DEVICE void AdvanceState(float (&acc)[kV / 8][4], const bf16* x,
                            const typename Unsplit<kTerms>::Type* y, const float* transition) {
  ScaleAccumulatorRows(acc, transition + WarpId() * 16);
  const int lane = FreshLaneId();
  Fragment<kTerms> a;
  LoadFragment<kK, true>(a, x, kTile * kK, ColumnsFirst<kK>(lane), 0, WarpId() * 16);
#pragma unroll
  for (int n = 0; n < kV / 16; ++n) {
    Fragment<kTerms> b;
    LoadFragment<kV, true, /*kColumnsFirst=*/false>(b, y, lane, 0, 16 * n);
    AddToState(acc[2 * n], acc[2 * n + 1], a, b);
  }
}

}  // namespace halflife::kernels::decay
