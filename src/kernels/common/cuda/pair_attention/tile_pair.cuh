// Device functions for a tile of 64 queries and a tile of 64 keys: which keys the queries see,
// which tiles of keys they need, biases by distance, scores and weights.
//
//   const TileSpan span = SpanOf(args, row, tile);          // every warp for itself
//   for (TileWalk walk(span, num_tiles); walk.tile() < num_tiles; walk.Advance()) ...
//
// As in kernels/common/cuda/tiles.cuh, a warp has 16 rows of a tile: of the queries (forward, dq),
// or of the keys (dk, dv), where the columns are the queries.
#pragma once

#include "kernels/common/cuda/pair_attention/launch.h"
#include "kernels/common/cuda/tiles.cuh"

namespace halflife::kernels::pairs {

using namespace tiles;
static_assert(tiles::kTileRows == pairs::kTileRows);

constexpr int kTile = pairs::kTileRows;
// a score below all others; differences of such scores are finite
constexpr float kNever = -3.0e38f;

// The position of a tile of tokens, in the form that RowsOf() takes.
struct TilePlace {
  int row;
  int64_t token;
};
HL_DEVICE TilePlace TokensOf(int row, int tile) { return {row, int64_t{kTile} * tile}; }

// The work of a block: a tile of queries of one head and, if each slice of V has its own block, a
// slice.
struct QueryPlace {
  int slice, head, row, tile;
};
HL_DEVICE QueryPlace QueryPlaceOf(const PairAttentionArgs& args, int num_slices, int num_tiles) {
  QueryPlace place;
  int index = static_cast<int>(blockIdx.x);
  place.slice = index % num_slices;
  index /= num_slices;
  place.head = index % args.num_heads;
  index /= args.num_heads;
  place.row = index % args.batch;
  // In causal rows the last tiles see the most keys.
  place.tile = num_tiles - 1 - index / args.batch;
  return place;
}

HL_DEVICE int WarpMin(int x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = min(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}
HL_DEVICE int WarpMaxInt(int x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

// Called by all lanes of a warp; the result is the same in all of them.
HL_DEVICE TileSpan SpanOf(const PairAttentionArgs& args, int row, int tile) {
  constexpr int kFar = 0x7fffffff;
  TileSpan span = {kFar, 0, kFar, 0, 0, kFar};
#pragma unroll
  for (int r = LaneId(); r < kTile; r += 32) {
    const int query = kTile * tile + r;
    if (query >= args.num_queries) {
      span.all_end = 0;
      continue;
    }
    const int64_t at = int64_t{1} * row * args.num_queries + query;
    const int first = args.first[at], end = args.end[at];
    const int sinks = max(args.sinks[at], 0),
              sinks_end = min(args.sinks[at] + args.num_sinks, first);
    if (first < end) span.first = min(span.first, first), span.end = max(span.end, end);
    if (sinks < sinks_end)
      span.sinks = min(span.sinks, sinks), span.sinks_end = max(span.sinks_end, sinks_end);
    span.all_first = max(span.all_first, first), span.all_end = min(span.all_end, end);
  }
  return {WarpMin(span.first),        WarpMaxInt(span.end),       WarpMin(span.sinks),
          WarpMaxInt(span.sinks_end), WarpMaxInt(span.all_first), WarpMin(span.all_end)};
}

HL_DEVICE bool Meets(const TileSpan& span, int tile) {
  const int begin = kTile * tile, end = begin + kTile;
  return (begin < span.end && end > span.first) || (begin < span.sinks_end && end > span.sinks);
}
// Returns true if both tiles are full and every query sees every key.
HL_DEVICE bool AllSeen(const TileSpan& span, int tile) {
  return kTile * tile >= span.all_first && kTile * tile + kTile <= span.all_end;
}

// Iterates over the tiles of keys that a tile of queries sees, in ascending order.
class TileWalk {
 public:
  HL_DEVICE TileWalk(const TileSpan& span, int num_tiles)
      : span_(span), num_tiles_(num_tiles), tile_(-1) {
    Advance();
  }
  HL_DEVICE int tile() const { return tile_; }  // num_tiles at the end
  HL_DEVICE void Advance() {
    do ++tile_;
    while (tile_ < num_tiles_ && !Meets(span_, tile_));
  }

 private:
  const TileSpan& span_;
  int num_tiles_, tile_;
};

// ---- per-query data of a tile ----

// Starts loading the table of a tile. Rows after the last query see nothing. normaliser and delta
// are loaded if they are given.
HL_DEVICE void LoadTable(QueryTable& table, const PairAttentionArgs& args, const float* deltas,
                         const float* normalisers, int row, int head, int tile) {
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x); r < kTile; r += kThreads) {
    const int query = kTile * tile + r;
    const bool valid = query < args.num_queries;
    const int64_t at = int64_t{1} * row * args.num_queries + (valid ? query : 0);
    const int64_t of_head = at * args.num_heads + head;
    CpAsync4(table.first + r, args.first + at, valid);
    CpAsync4(table.end + r, args.end + at, valid);
    CpAsync4(table.sinks + r, args.sinks + at, valid);
    if (normalisers != nullptr) CpAsync4(table.normaliser + r, normalisers + of_head, valid);
    if (deltas != nullptr) CpAsync4(table.delta + r, deltas + of_head, valid);
    if (args.bias_scale != nullptr) CpAsync4(table.bias_scale + r, args.bias_scale + at, valid);
  }
}
// Starts loading the biases of a pair of tiles: that of key c and query r is at index c - r + kTile
// - 1.
HL_DEVICE void LoadBias(float* bias, const PairAttentionArgs& args, int head, int query_tile,
                        int key_tile) {
  if (args.bias == nullptr) return;
  const int64_t first =
      args.bias_zero - args.num_past + int64_t{kTile} * (key_tile - query_tile) - (kTile - 1);
  const float* const table = args.bias + head * args.bias_stride;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kDiagonals; i += kThreads) {
    // Distances outside the table belong to pairs that do not exist.
    const bool valid = first + i >= 0 && first + i < args.bias_stride;
    CpAsync4(bias + i, valid ? table + first + i : table, valid);
  }
}

// These functions start loading a tile of one head: q and dout by queries, k and v by keys; of v
// and dout, the columns of one slice.
template <int kV>
HL_DEVICE void LoadOutputGradient(bf16* to, const PairAttentionGradArgs& grads, int row, int head,
                                  int tile, int slice) {
  const PairAttentionArgs& args = grads.forward;
  LoadTile<kV, kThreads>(to,
                         RowsOf(grads.dout, TokensOf(row, tile), head, kV * slice, args.head_dim_v),
                         args.num_queries - kTile * tile);
}
template <int kV>
HL_DEVICE void LoadValues(bf16* to, const PairAttentionArgs& args, int row, int head, int tile,
                          int slice) {
  LoadTile<kV, kThreads>(
      to,
      RowsOf(args.v, TokensOf(row, tile), SharedHead(head, args.num_kv_heads, args.num_heads),
             kV * slice, args.head_dim_v),
      args.num_keys - kTile * tile);
}
template <int kD>
HL_DEVICE void LoadQueries(bf16* to, const PairAttentionArgs& args, int row, int head, int tile) {
  LoadTile<kD, kThreads>(to, RowsOf(args.q, TokensOf(row, tile), head, 0, args.head_dim),
                         args.num_queries - kTile * tile);
}
template <int kD>
HL_DEVICE void LoadKeys(bf16* to, const PairAttentionArgs& args, int row, int head, int tile) {
  LoadTile<kD, kThreads>(
      to,
      RowsOf(args.k, TokensOf(row, tile), SharedHead(head, args.num_kv_heads, args.num_heads), 0,
             args.head_dim),
      args.num_keys - kTile * tile);
}

// A query's row of the table, in registers.
struct Query {
  int first, end, sinks;
  float normaliser, delta, bias_scale;
};
// For a polynomial, the normaliser becomes the inverse of the divisor.
HL_DEVICE Query QueryOf(const QueryTable& table, int r, const PairAttentionArgs& args) {
  const float normaliser = table.normaliser[r];
  return {table.first[r], table.end[r],
          table.sinks[r], args.weight == Weight::kPolynomial ? 1 / normaliser : normaliser,
          table.delta[r], args.bias_scale != nullptr ? table.bias_scale[r] : 1.0f};
}
HL_DEVICE bool Sees(const Query& query, int key, int num_sinks) {
  return key < query.end &&
         (key >= query.first || (key >= query.sinks && key < query.sinks + num_sinks));
}
HL_DEVICE float NumSeen(const Query& query, int num_sinks) {
  const int behind = min(query.sinks + num_sinks, query.first) - max(query.sinks, 0);
  return static_cast<float>(max(0, query.end - query.first) + max(0, behind));
}

// The inputs of scores and weights other than the product q . k.
struct PairOfTiles {
  float scale;
  Weight kind;
  float a0, a1, a2;
  int num_sinks;
  bool divides, all_seen;
  int first_key;      // index of the first key of the tile
  const float* bias;  // null: none

  // Returns true if PlainPolynomial can compute the weights of these tiles.
  HL_DEVICE bool is_plain_polynomial() const {
    return kind == Weight::kPolynomial && all_seen && bias == nullptr;
  }
};
HL_DEVICE PairOfTiles PairOf(const PairAttentionArgs& args, const TileSpan& span, int key_tile,
                             const float* bias) {
  PairOfTiles pair;
  pair.scale = args.scale, pair.kind = args.weight;
  pair.a0 = args.a0, pair.a1 = args.a1, pair.a2 = args.a2;
  pair.num_sinks = args.num_sinks, pair.divides = args.divides();
  pair.all_seen = AllSeen(span, key_tile), pair.first_key = kTile * key_tile;
  pair.bias = args.bias == nullptr ? nullptr : bias;
  return pair;
}
HL_DEVICE float Score(const PairOfTiles& pair, const Query& query, float product, int r, int c) {
  const float score = pair.scale * product;
  if (pair.bias == nullptr) return score;
  return fmaf(pair.bias[c - r + kTile - 1], query.bias_scale, score);
}
HL_DEVICE bool IsSeen(const PairOfTiles& pair, const Query& query, int c) {
  return pair.all_seen || Sees(query, pair.first_key + c, pair.num_sinks);
}

// w(s) and its slope dw / ds. For a squared ReLU both are divided by the number of keys. For a
// softmax both are divided by the sum of weights, which the caller provides.
struct WeightAndSlope {
  float weight, slope;
};
HL_DEVICE WeightAndSlope WeightOf(const PairOfTiles& pair, const Query& query, float score) {
  if (pair.kind == Weight::kPolynomial)
    return {fmaf(score, fmaf(pair.a2, score, pair.a1), pair.a0), fmaf(2 * pair.a2, score, pair.a1)};
  if (pair.kind == Weight::kSquaredRelu) {
    const float positive = fmaxf(score, 0.0f) / NumSeen(query, pair.num_sinks);
    return {positive * fmaxf(score, 0.0f), 2 * positive};
  }
  const float weight = Exp2Approx((score - query.normaliser) * kLog2E);
  return {weight, weight};
}

// P of a pair, the factor of v in the output, and dS computed from dP: the slope times (dP - dO .
// O) if the sum of weights is the divisor, else the slope times dP.
struct Weights {
  float weight, dscore;
};
HL_DEVICE Weights WeightsOf(const PairOfTiles& pair, const Query& query, float product,
                            float dweight, int r, int c) {
  if (!IsSeen(pair, query, c)) return {0.0f, 0.0f};
  WeightAndSlope of = WeightOf(pair, query, Score(pair, query, product, r, c));
  if (!pair.divides) return {of.weight, of.slope * dweight};
  if (pair.kind == Weight::kPolynomial) of.weight *= query.normaliser, of.slope *= query.normaliser;
  return {of.weight, of.slope * (dweight - query.delta)};
}

// The weight of a polynomial and its slope dw / ds, as functions of the product q . k, for tiles in
// which every query sees every key and no pair has a bias. This is most of the tiles of a causal
// row. They need no test per pair, and the scale is a part of the coefficients.
struct PlainPolynomial {
  HL_DEVICE explicit PlainPolynomial(const PairOfTiles& pair)
      : a0(pair.a0),
        a1(pair.a1 * pair.scale),
        a2(pair.a2 * pair.scale * pair.scale),
        slope0(pair.a1),
        slope1(2 * pair.a2 * pair.scale) {}
  HL_DEVICE float WeightOf(float product) const { return fmaf(product, fmaf(a2, product, a1), a0); }
  HL_DEVICE float SlopeOf(float product) const { return fmaf(slope1, product, slope0); }

  float a0, a1, a2, slope0, slope1;
};
// The factors of a query: 1 and 0 if the output is not divided.
struct PlainQuery {
  float inverse, delta;
};
HL_DEVICE PlainQuery PlainQueryOf(const PairOfTiles& pair, float inverse, float delta) {
  return {pair.divides ? inverse : 1.0f, pair.divides ? delta : 0.0f};
}

// ---- dropout ----

// Draws which pairs of two tiles are kept: for query r and key c, bit c % 32 of word 2 r + c / 32.
// All threads must take part.
HL_DEVICE void DrawKept(uint32_t* kept, const PairAttentionArgs& args, int row, int head,
                        int query_tile, int key_tile) {
  if (!args.dropout.drops()) return;
  const uint64_t sample = SampleOfHead(args.dropout.samples[row], head);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kKeptWords; i += kThreads) {
    const int query = args.num_past + kTile * query_tile + i / 2;
    const int first_key = kTile * key_tile + i % 2 * 32;
    uint32_t word = 0;
#pragma unroll 1
    for (int c = 0; c < 32; c += 4)
      word |= KeptPairs(args.dropout, sample, query, first_key + c) << c;
    kept[i] = word;
  }
}
HL_DEVICE float Keep(float x, uint32_t bits, int bit, float scale) {
  return (bits >> bit & 1) != 0 ? x * scale : 0.0f;
}
// Applies dropout to x of a warp's 16 queries and 64 keys.
HL_DEVICE void Drop(float (&x)[kTile / 8][4], const PairDropout& dropout, const uint32_t* kept) {
  const int lane = FreshLaneId(), first_row = 16 * FreshWarpId() + lane / 4;
  const auto scale = static_cast<float>(dropout.scale);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int half = word / 2;
    const uint32_t bits = kept[2 * (first_row + 8 * half) + word % 2] >> (lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& element = x[4 * (word % 2) + n][2 * half + j];
        element = Keep(element, bits, 8 * n + j, scale);
      }
    }
  }
}
// Applies dropout to x of a warp's 16 keys and the 8 kTiles queries from `first` on.
template <int kTiles>
HL_DEVICE void DropTransposed(float (&x)[kTiles][4], const PairDropout& dropout,
                              const uint32_t* kept, int first) {
  const int lane = FreshLaneId(), key = 16 * FreshWarpId() + lane / 4;
  const auto scale = static_cast<float>(dropout.scale);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t bits = kept[2 * (first + 8 * n + lane % 4 * 2 + j) + key / 32] >> (key % 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& element = x[n][2 * half + j];
        element = Keep(element, bits, 8 * half, scale);
      }
    }
  }
}

// ---- products ----

// Returns the columns of a tile that are not padding, rounded up to whole steps of a product.
template <int kDim>
HL_DEVICE int ColumnsOf(int width) {
  return min(kDim, (width + 15) / 16 * 16);
}

// d [16, 8 kTiles] += the 16 rows of a from a_row on, times the rows of b from b_row on, over the
// first `columns`.
template <int kDim, int kTiles>
HL_DEVICE void MultiplyRows(float (&d)[kTiles][4], const bf16* a, int a_row, const bf16* b,
                            int b_row, int columns) {
  const int lane = FreshLaneId();
  const int of_a = RowsFirst<kDim>(lane), of_b = ColumnsFirst<kDim>(lane);
#pragma unroll 1
  for (int k = 0; k < columns; k += 16) {
    uint32_t left[4];
    LoadFragment<kDim, false>(left, a, of_a, a_row, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t right[4];
      LoadFragment<kDim, false>(right, b, of_b, b_row + 16 * n, k);
      MmaPair(d[2 * n], d[2 * n + 1], left, right);
    }
  }
}
// Computes the first `columns` of acc [16, kDim] += x [16, 8 kTiles], rounded to bf16, times the
// rows of b from b_row on.
template <int kDim, int kTiles>
HL_DEVICE void MultiplyWeights(float (&acc)[kDim / 8][4], const float (&x)[kTiles][4],
                               const bf16* b, int b_row, int columns) {
  const int rows = RowsFirst<kDim>(FreshLaneId());
#pragma unroll
  for (int s = 0; s < kTiles / 2; ++s) {
    uint32_t left[4];
    PackFragment(left, x[2 * s], x[2 * s + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      if (16 * n >= columns) break;
      uint32_t right[4];
      LoadFragment<kDim, true>(right, b, rows, b_row + 16 * s, 16 * n);
      MmaPair(acc[2 * n], acc[2 * n + 1], left, right);
    }
  }
}

// ---- stores ----

// Stores the 16 rows of a warp, [16, kDim] times factor, to a tensor. They are staged in the warp's
// own rows of a tile that no other thread reads.
template <int kDim>
HL_DEVICE void StoreRows(const float (&d)[kDim / 8][4], float factor, bf16* tile, const Rows& rows,
                         int length) {
  const int lane = FreshLaneId(), first = 16 * FreshWarpId();
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(
          tile + TileOffset<kDim>(first + lane / 4 + 8 * half, 8 * n + lane % 4 * 2)) =
          PackBf16(d[n][2 * half] * factor, d[n][2 * half + 1] * factor);
  }
  __syncwarp();
  bf16* const data = reinterpret_cast<bf16*>(rows.data);
  constexpr int kUnits = kDim / 8;
  if (rows.aligned) {
#pragma unroll 1
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int row = first + i / kUnits, column = i % kUnits * 8;
      if (row < length && column < rows.dim)
        *reinterpret_cast<uint4*>(data + row * rows.stride_t + column) =
            *reinterpret_cast<const uint4*>(tile + TileOffset<kDim>(row, column));
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < 16 * kDim; i += 32) {
      const int row = first + i / kDim, column = i % kDim;
      if (row < length && column < rows.dim)
        data[row * rows.stride_t + column] = tile[TileOffset<kDim>(row, column)];
    }
  }
}

}  // namespace halflife::kernels::pairs
