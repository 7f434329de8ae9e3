// Device steps that the scans over chunks share, in addition to those for tiles and states
// (kernels/common/cuda/tiles.cuh): a block's part of the problem, the decay tables of a chunk, and
// partial sums that several blocks complete.
#pragma once

#include "kernels/common/cuda/tiles.cuh"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::decay {

using namespace tiles;
static_assert(kChunk == kTileRows);

constexpr int kBaseBlock = 8;  // sums of decays restart at these blocks, so chains are short

// ---- which part of the problem a block owns ----

struct BlockIndex {
  int sequence, segment, head;
  int key_slice, slice;  // of K, of V
  int begin, end;        // chunks of the segment
  int first, last;       // chunks of the sequence: [first, last)
  int64_t piece;         // (sequence of the batch tile, head, segment): index of a segment's states
  int64_t state;         // (sequence, head)
  bool starts, stops;    // the segment is the first, or last, of its sequence
};
static_assert(sizeof(BlockIndex) == kBlockIndexBytes);
HL_DEVICE BlockIndex MakeBlockIndex(const DecayAttentionArgs& args, const SegmentShape& shape,
                                    int every, unsigned block) {
  BlockIndex block_index;
  int64_t index = block;
  block_index.slice = static_cast<int>(index % shape.num_slices);
  index /= shape.num_slices;
  block_index.key_slice = static_cast<int>(index % shape.num_key_slices);
  index /= shape.num_key_slices;
  block_index.head = static_cast<int>(index % args.num_heads);
  index /= args.num_heads;
  block_index.segment = static_cast<int>(index % shape.num_segments);
  const int sequence_in_batch_tile = static_cast<int>(index / shape.num_segments);
  block_index.sequence = shape.first_sequence + sequence_in_batch_tile;
  block_index.first = args.sequence_begin[block_index.sequence];
  block_index.last = args.sequence_begin[block_index.sequence + 1];
  const SegmentChunks chunks = ChunksOfSegment(block_index.first, block_index.last,
                                               block_index.segment, shape.num_segments, every);
  block_index.begin = chunks.begin;
  block_index.end = chunks.end;
  block_index.starts = block_index.segment == 0;
  block_index.stops = block_index.segment == shape.num_segments - 1;
  block_index.state = int64_t{1} * block_index.sequence * args.num_heads + block_index.head;
  block_index.piece = (int64_t{1} * sequence_in_batch_tile * args.num_heads + block_index.head) *
                          shape.num_segments +
                      block_index.segment;
  return block_index;
}

HL_DEVICE BlockIndex MakeBlockIndex(const DecayAttentionArgs& args, const SegmentShape& shape,
                                    int every) {
  return MakeBlockIndex(args, shape, every, blockIdx.x);
}

// ---- tiles ----

// Returns one slice of partial results, fp32 [slices, B, T, H, width], where B counts the rows of
// the batch tile. A complete result has one slice, which is the whole tensor.
HL_DEVICE TensorView SliceOf(TensorView view, const DecayAttentionArgs& args, int slice,
                             int width) {
  if (slice > 0)
    view.data = static_cast<float*>(view.data) +
                int64_t{1} * slice * args.batch * args.seq_len * args.num_heads * width;
  return view;
}

// ---- fragments ----

HL_DEVICE uint32_t ScalePair(uint32_t pair, float lo, float hi) {
  return PackBf16(UnpackLo(pair) * lo, UnpackHi(pair) * hi);
}
// Multiplies columns k .. k+15 of an A fragment by factor[k ..].
HL_DEVICE void ScaleColumns(uint32_t (&a)[4], const float* factor, int k) {
  const int lane = FreshLaneId();
  const int column = k + lane % 4 * 2;
  const float f0 = factor[column], f1 = factor[column + 1];
  const float f8 = factor[column + 8], f9 = factor[column + 9];
  a[0] = ScalePair(a[0], f0, f1);
  a[1] = ScalePair(a[1], f0, f1);
  a[2] = ScalePair(a[2], f8, f9);
  a[3] = ScalePair(a[3], f8, f9);
}
template <int kTerms>
HL_DEVICE void ScaleColumns(Fragment<kTerms>& a, const float* factor, int k) {
  if constexpr (kTerms == 1) {
    ScaleColumns(a.terms[0], factor, k);
  } else {
    const int column = k + FreshLaneId() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = FragmentPair(a, i);
      const int first = column + i / 2 * 8;
      SplitPair(a.terms[0][i], a.terms[1][i], pair.x * factor[first], pair.y * factor[first + 1]);
    }
  }
}

// ---- decay tables of a chunk, for one decay factor per token ----

// Every weight is exp of a sum over exactly its range, never a difference of sums or a quotient.
// Therefore -inf needs no special case, and a decay near 1 keeps its bits. In units of log2.
struct DecayTables {
  float log2_decay[kChunk];
  float prefix[kChunk];           // sum over tokens [start of r's base block, r]
  float suffix[kChunk];           // sum over tokens (s, end of s's base block]
  float between[kChunk];          // [i, j], j < i: sum over the base blocks between j and i
  float query_scale[kChunk];      // scale, times the row's own factor if there is one
  float incoming[kChunk];         // query_scale exp(sum over [0, r])
  float outgoing[kChunk];         // exp(sum over (s, C))
  float key_scale[kChunk];        // c
  float outgoing_scaled[kChunk];  // c exp(sum over (s, C))
  float totals[kChunk / kBaseBlock];
  float log2_transition;  // sum over the chunk
  float transition;       // exp of it
  float padding[6];
};
static_assert(sizeof(DecayTables) == kDecayTablesBytes);

HL_DEVICE float LogDecayAt(const DecayAttentionArgs& args, const ChunkEntry& chunk, int token,
                           int head, int channel) {
  const TensorView& view = args.log_decay;
  const float* const data = static_cast<const float*>(view.data);
  switch (args.decay_kind) {
    case DecayKind::kNone:
      return 0;
    case DecayKind::kPerHead:
      return data[head];
    case DecayKind::kPerHeadChannel:
      return data[int64_t{1} * head * args.head_dim_k + channel];
    default:
      return data[chunk.row * view.stride_b + (chunk.token + token) * view.stride_t +
                  head * view.stride_h + channel];
  }
}
HL_DEVICE float KeyScaleAt(const DecayAttentionArgs& args, const ChunkEntry& chunk, int token,
                           int head) {
  const TensorView& view = args.key_scale;
  if (view.data == nullptr) return 1;
  return static_cast<const float*>(
      view.data)[chunk.row * view.stride_b + (chunk.token + token) * view.stride_t +
                 head * view.stride_h];
}

// scale, with the row's own factor and divisor, if there are any.
HL_DEVICE float QueryScaleAt(const DecayAttentionArgs& args, const RowScales& row_scales,
                             const ChunkEntry& chunk, int token, int head) {
  float scale = static_cast<float>(args.scale);
  if (row_scales.factors == nullptr && row_scales.divisors == nullptr) return scale;
  const int64_t row = FlatRow(args, chunk, token, head);
  if (row_scales.factors != nullptr) scale *= row_scales.factors[row];
  if (row_scales.divisors != nullptr) scale /= row_scales.divisors[row];
  return scale;
}

// The numbers of a token from which the tables are computed. All are zero past the chunk's end.
// They are as in memory, so that loads which run ahead are not waited for.
struct TokenFactors {
  float log_decay, key_scale, query_scale;
};
// A forward has no row scales.
HL_DEVICE TokenFactors LoadTokenFactors(const DecayAttentionArgs& args, const RowScales& row_scales,
                                        const ChunkEntry& chunk, int token, int head,
                                        int decay_head) {
  if (token >= chunk.length) return {0, 0, 0};
  return {LogDecayAt(args, chunk, token, decay_head, 0), KeyScaleAt(args, chunk, token, head),
          QueryScaleAt(args, row_scales, chunk, token, head)};
}

// Called by one warp. factors_of(r) returns the TokenFactors of token r, which is the lane's number
// plus 0 or 32.
template <typename FactorsOf>
HL_DEVICE void FillDecayTables(DecayTables& tables, const FactorsOf& factors_of) {
  const int lane = LaneId(), in_block = lane % kBaseBlock;
#pragma unroll 1
  for (int r = lane; r < kChunk; r += 32) {
    const TokenFactors token = factors_of(r);
    const float decay = token.log_decay * kLog2E;
    float prefix = decay;
    float suffix = __shfl_down_sync(kFullWarp, decay, 1);
    if (in_block == kBaseBlock - 1) suffix = 0;
#pragma unroll
    for (int offset = 1; offset < kBaseBlock; offset *= 2) {
      const float before = __shfl_up_sync(kFullWarp, prefix, offset);
      if (in_block >= offset) prefix += before;
      const float after = __shfl_down_sync(kFullWarp, suffix, offset);
      if (in_block + offset < kBaseBlock) suffix += after;
    }
    tables.log2_decay[r] = decay;
    tables.prefix[r] = prefix;
    tables.suffix[r] = suffix;
    tables.key_scale[r] = token.key_scale;
    tables.query_scale[r] = token.query_scale;
    if (in_block == kBaseBlock - 1) tables.totals[r / kBaseBlock] = prefix;
  }
  __syncwarp();
  constexpr int kBlocks = kChunk / kBaseBlock;
#pragma unroll 1
  for (int r = lane; r < kChunk; r += 32) {
    const int i = r / kBlocks, j = r % kBlocks;
    float before = 0, after = 0, between = 0;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const float total = tables.totals[m];
      if (m < i) before += total;
      if (m > i) after += total;
      if (j < m && m < i) between += total;
    }
    tables.between[r] = between;
    tables.incoming[r] = tables.query_scale[r] * Exp2Approx(before + tables.prefix[r]);
    const float outgoing = Exp2Approx(tables.suffix[r] + after);
    tables.outgoing[r] = outgoing;
    tables.outgoing_scaled[r] = outgoing * tables.key_scale[r];
    if (r == kChunk - 1) {
      tables.log2_transition = before + tables.totals[kBlocks - 1];
      tables.transition = Exp2Approx(tables.log2_transition);
    }
  }
}
HL_DEVICE void FillDecayTables(DecayTables& tables, const DecayAttentionArgs& args,
                               const ChunkEntry& chunk, int head,
                               const RowScales& row_scales = {}) {
  const int decay_head = SharedHead(head, args.num_decay_heads, args.num_heads);
  FillDecayTables(tables, [&](int r) {
    return LoadTokenFactors(args, row_scales, chunk, r, head, decay_head);
  });
}

// Returns the warp with the least work while tiles of scores up to the diagonal are computed: 16
// rows per warp, from row 16 (warp % 4) on. This warp has one tile of up to four, or none if two
// warps share rows. It fills the tables of the next chunk.
template <typename Config>
HL_DEVICE constexpr int IdleWarp() {
  return Config::kWarps - 4;
}

// exp(sum over (s, r]) for s and s + 1, s even; 0 for a key after r.
HL_DEVICE float2 PairWeights(const DecayTables& tables, int r, int s) {
  const int i = r / kBaseBlock, j = s / kBaseBlock;
  float2 weights = make_float2(0, 0);
  if (j < i) {
    const float base = tables.prefix[r] + tables.between[i * (kChunk / kBaseBlock) + j];
    weights.x = Exp2Approx(tables.suffix[s] + base);
    weights.y = Exp2Approx(tables.suffix[s + 1] + base);
  } else if (j == i) {
    float sum = 0;
#pragma unroll 1
    for (int m = s + 2; m <= r; ++m) sum += tables.log2_decay[m];
    if (s + 1 <= r) {
      weights.y = Exp2Approx(sum);
      sum += tables.log2_decay[s + 1];
    }
    if (s <= r) weights.x = Exp2Approx(sum);
  }
  return weights;
}

// ---- stores ----

// StoreTransposed in fp32, for partial sums. The stage holds half as many rows at a time.
template <int kRows, int kTiles>
HL_DEVICE void StoreTransposedWide(const float (&d)[kTiles][4], bf16* stage, const Rows& rows,
                                   int length, int column) {
  constexpr int kAtOnce = kTiles < kRows / 16 ? kTiles : kRows / 16;
  const int lane = FreshLaneId();
  float* const wide = reinterpret_cast<float*>(stage);
  float* const data = reinterpret_cast<float*>(rows.data) + column;
  const int columns = rows.dim - column;
#pragma unroll
  for (int part = 0; part < kTiles / kAtOnce; ++part) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        wide[(8 * n + lane % 4 * 2 + i % 2) * 16 + lane / 4 + i / 2 * 8] = d[kAtOnce * part + n][i];
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 8 * kAtOnce * 16; i += 32) {
      const int row = 8 * kAtOnce * part + i / 16, c = i % 16;
      if (row < length && c < columns) data[row * rows.stride_t + c] = wide[i];
    }
    __syncwarp();
  }
}

// Selects the store for the tensor's dtype.
template <int kRows>
HL_DEVICE void StoreTokens(const float (&d)[kChunk / 8][4], bf16* stage, const Rows& rows,
                           int length, int column) {
  if (rows.is_wide) {
    StoreTransposedWide<kRows>(d, stage, rows, length, column);
  } else {
    StoreTransposed<kRows>(d, stage, rows, length, column);
  }
}

// ---- states, 16 rows per warp ----

// acc += x^T diag(factor) y over the chunk's tokens: x [64, kX], y [64, kY], acc [kX rows of the
// warp, kY]. With two terms, the chunk's sum starts from zero: tensor cores truncate what they add
// to, and a state is a sum over all chunks.
template <int kTerms, int kX, int kY>
HL_DEVICE void AccumulateOuter(float (&acc)[kY / 8][4], const bf16* x, const bf16* y,
                               const float* factor) {
  const int lane = FreshLaneId();
  const int columns_x = ColumnsFirst<kX>(lane);
  const int rows_y = RowsFirst<kY>(lane);
  const auto add_chunk = [&](float(&sum)[kY / 8][4]) {
#pragma unroll 1
    for (int s = 0; s < kChunk; s += 16) {
      Fragment<kTerms> a;
      LoadFragment<kX, true>(a, x, kChunk * kX, columns_x, s, WarpId() * 16);
      ScaleColumns(a, factor, s);
#pragma unroll
      for (int n = 0; n < kY / 16; ++n) {
        Fragment<kTerms> b;
        LoadFragment<kY, true>(b, y, kChunk * kY, rows_y, s, 16 * n);
        MmaPair(sum[2 * n], sum[2 * n + 1], a, b);
      }
    }
  };
  if constexpr (kTerms == 1) {
    add_chunk(acc);
  } else {
    float sum[kY / 8][4];
    Clear(sum);
    add_chunk(sum);
    Add(acc, sum);
  }
}

// Extends the log2 of a segment's transition by one chunk or tile, whose log2 is `sum`. If a
// document starts there, the result is -inf, because no earlier state passes. In reverse, a NaN in
// the decays after the document start is dropped, too.
template <bool kReverse>
HL_DEVICE float ExtendTransition(float log2_transition, float sum, bool resets) {
  const float cut = __uint_as_float(0xff800000u);  // -inf
  if (!resets) return log2_transition + sum;
  return kReverse ? cut : cut + sum;
}

}  // namespace halflife::kernels::decay
