// dk and dv. A block has one tile of keys of one head, a warp 16 of these keys. The block processes
// the tiles of queries that see the keys, for each head that shares them:
//
//   dv = P^T dO,  dk = scale dS^T Q
//
// Scores are computed transposed, 32 queries at a time. If V has one slice, one kernel computes
// both gradients. If it has several, one kernel computes dk and streams the slices (kSliced), and
// another computes dv, with one block per slice.
#pragma once

#include "kernels/common/cuda/pair_attention/query_gradient.cuh"

namespace halflife::kernels::pairs {

struct KeysAndValues {
  static constexpr bool kKeys = true, kValues = true, kSliced = false;
};
struct KeysOfSlices {
  static constexpr bool kKeys = true, kValues = false, kSliced = true;
};
struct ValuesOfSlice {
  static constexpr bool kKeys = false, kValues = true, kSliced = false;
};

template <int kD, int kV, typename Pass>
struct KeyGradientSmem {
  bf16 *k, *v, *q, *dout;  // [64, kD], [64, kV] or 2 of them, 2 [64, kD], 2 [64, kV]
  QueryTable* tables;      // 2
  float* bias;             // 2 [kBiasTile]
  uint32_t* kept;          // 2 [kKeptWords], with dropout

  HL_DEVICE KeyGradientSmem(unsigned char* smem, bool drops) {
    SmemCarver carver(smem);
    k = carver.Take<bf16>(kTile * kD);
    v = carver.Take<bf16>((Pass::kSliced ? 2 : 1) * kTile * kV);
    q = carver.Take<bf16>(2 * kTile * kD);
    dout = carver.Take<bf16>(2 * kTile * kV);
    tables = carver.Take<QueryTable>(2);
    bias = carver.Take<float>(2 * kBiasTile);
    kept = carver.Take<uint32_t>(drops ? 2 * kKeptWords : 0);
  }
};

// A tile of keys of one of their heads, and a slice of V.
struct KeyPlace {
  int slice, kv_head, row, tile;
};
HL_DEVICE KeyPlace KeyPlaceOf(const PairAttentionArgs& args, int num_slices) {
  KeyPlace place;
  int index = static_cast<int>(blockIdx.x);
  place.slice = index % num_slices;
  index /= num_slices;
  place.kv_head = index % args.num_kv_heads;
  index /= args.num_kv_heads;
  place.row = index % args.batch;
  place.tile = index / args.batch;  // in causal rows the first tiles are seen by the most queries
  return place;
}

// The steps of a block: heads that share its keys, tiles of queries that see them, slices of V.
class QueryWalk {
 public:
  HL_DEVICE QueryWalk(const BackwardParams& params, const KeyPlace& place, int num_tiles,
                      int num_slices)
      : spans_(params.spans + place.row * num_tiles),
        key_tile_(place.tile),
        num_tiles_(num_tiles),
        num_slices_(num_slices),
        group_(params.grads.forward.num_heads / params.grads.forward.num_kv_heads),
        head_(place.kv_head * group_) {
    end_head_ = head_ + group_;
    Seek();
  }
  HL_DEVICE bool done() const { return head_ == end_head_; }
  HL_DEVICE int head() const { return head_; }
  HL_DEVICE int tile() const { return tile_; }
  HL_DEVICE int slice() const { return slice_; }
  HL_DEVICE int tile_stage() const { return stage_; }
  HL_DEVICE const TileSpan& span() const { return spans_[tile_]; }
  HL_DEVICE void Advance() {
    if (++slice_ < num_slices_) return;
    slice_ = 0, stage_ = 1 - stage_, ++tile_;
    Seek();
  }

 private:
  HL_DEVICE void Seek() {
    for (; head_ < end_head_; ++head_, tile_ = 0)
      for (; tile_ < num_tiles_; ++tile_)
        if (Meets(spans_[tile_], key_tile_)) return;
  }
  const TileSpan* spans_;
  int key_tile_, num_tiles_, num_slices_, group_, head_, end_head_, tile_ = 0, slice_ = 0,
                                                                    stage_ = 0;
};

template <int kD, int kV, typename Pass>
HL_DEVICE void LoadStep(const KeyGradientSmem<kD, kV, Pass>& smem, const BackwardParams& params,
                        const KeyPlace& place, const QueryWalk& at, int stage) {
  const PairAttentionGradArgs& grads = params.grads;
  const PairAttentionArgs& args = grads.forward;
  if (at.slice() == 0) {
    LoadQueries<kD>(smem.q + at.tile_stage() * kTile * kD, args, place.row, at.head(), at.tile());
    LoadTable(smem.tables[at.tile_stage()], args, params.deltas, args.normaliser, place.row,
              at.head(), at.tile());
    LoadBias(smem.bias + at.tile_stage() * kBiasTile, args, at.head(), at.tile(), place.tile);
    DrawKept(smem.kept + at.tile_stage() * kKeptWords, args, place.row, at.head(), at.tile(),
             place.tile);
  }
  const int slice = Pass::kSliced ? at.slice() : place.slice;
  LoadOutputGradient<kV>(smem.dout + stage * kTile * kV, grads, place.row, at.head(), at.tile(),
                         slice);
  if (Pass::kSliced)
    LoadValues<kV>(smem.v + stage * kTile * kV, args, place.row, at.head(), place.tile, slice);
}

constexpr int kQueriesAtOnce = 32;

// WeighTransposed() of a plain polynomial.
template <bool kGradients>
HL_DEVICE void WeighPlainTransposed(float (&products)[kQueriesAtOnce / 8][4],
                                    float (&dweights)[kQueriesAtOnce / 8][4],
                                    const PairOfTiles& pair, const QueryTable& table, int first) {
  const PlainPolynomial polynomial(pair);
  const int lane = FreshLaneId();
#pragma unroll
  for (int n = 0; n < kQueriesAtOnce / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int r = first + 8 * n + lane % 4 * 2 + j;
      const PlainQuery query = PlainQueryOf(pair, 1 / table.normaliser[r], table.delta[r]);
#pragma unroll
      for (int i = j; i < 4; i += 2) {
        const float product = products[n][i];
        products[n][i] = polynomial.WeightOf(product) * query.inverse;
        if (kGradients)
          dweights[n][i] =
              polynomial.SlopeOf(product) * query.inverse * (dweights[n][i] - query.delta);
      }
    }
  }
}

// Replaces the products by P, and dP by dS, for a warp's 16 keys and 32 queries from `first` on.
template <bool kGradients>
HL_DEVICE void WeighTransposed(float (&products)[kQueriesAtOnce / 8][4],
                               float (&dweights)[kQueriesAtOnce / 8][4], const PairOfTiles& pair,
                               const QueryTable& table, int first, const PairAttentionArgs& args) {
  if (pair.is_plain_polynomial())
    return WeighPlainTransposed<kGradients>(products, dweights, pair, table, first);
  const int lane = FreshLaneId(), key = 16 * FreshWarpId() + lane / 4;
#pragma unroll
  for (int n = 0; n < kQueriesAtOnce / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int r = first + 8 * n + lane % 4 * 2 + j;
      const Query query = QueryOf(table, r, args);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * half + j;
        const Weights of = WeightsOf(pair, query, products[n][i],
                                     kGradients ? dweights[n][i] : 0.0f, r, key + 8 * half);
        products[n][i] = of.weight;
        if (kGradients) dweights[n][i] = of.dscore;
      }
    }
  }
}

template <int kD, int kV>
struct KeySums {
  float dk[kD / 8][4], dv[kV / 8][4];
};

// Adds the contribution of a pair of tiles to the gradients. With kSliced, dweights already hold
// dP.
template <int kD, int kV, typename Pass>
HL_DEVICE void AddPair(const KeyGradientSmem<kD, kV, Pass>& smem, const KeyPlace& place,
                       const PairOfTiles& pair, int tile_stage, int stage,
                       const PairAttentionArgs& args,
                       float (&dweights)[kTile / kQueriesAtOnce][kQueriesAtOnce / 8][4],
                       KeySums<kD, kV>& sums) {
  const int columns = ColumnsOf<kD>(args.head_dim);
  const int columns_v = ColumnsOf<kV>(args.head_dim_v - kV * place.slice);
  const bf16 *const q = smem.q + tile_stage * kTile * kD, *const dout =
                                                              smem.dout + stage * kTile * kV;
#pragma unroll
  for (int part = 0; part < kTile / kQueriesAtOnce; ++part) {
    const int first = part * kQueriesAtOnce;
    float products[kQueriesAtOnce / 8][4];
    Clear(products);
    MultiplyRows<kD>(products, smem.k, 16 * WarpId(), q, first, columns);
    if constexpr (Pass::kKeys && !Pass::kSliced) {
      Clear(dweights[part]);
      MultiplyRows<kV>(dweights[part], smem.v, 16 * WarpId(), dout, first, columns_v);
    }
    const uint32_t* const kept = smem.kept + tile_stage * kKeptWords;
    if (Pass::kKeys && args.dropout.drops())
      DropTransposed(dweights[part], args.dropout, kept, first);
    WeighTransposed<Pass::kKeys>(products, dweights[part], pair, smem.tables[tile_stage], first,
                                 args);
    if (Pass::kValues && args.dropout.drops()) DropTransposed(products, args.dropout, kept, first);
    if constexpr (Pass::kValues) MultiplyWeights<kV>(sums.dv, products, dout, first, columns_v);
    if constexpr (Pass::kKeys) MultiplyWeights<kD>(sums.dk, dweights[part], q, first, columns);
  }
}

template <int kD, int kV, typename Pass>
HL_DEVICE void StoreSums(const KeyGradientSmem<kD, kV, Pass>& smem,
                         const PairAttentionGradArgs& grads, const KeyPlace& place,
                         const KeySums<kD, kV>& sums) {
  const PairAttentionArgs& args = grads.forward;
  const TilePlace tokens = TokensOf(place.row, place.tile);
  const int length = args.num_keys - kTile * place.tile;
  // Rows are staged in the memory of k and v, which other threads may have loaded.
  __syncthreads();
  if constexpr (Pass::kKeys)
    StoreRows<kD>(sums.dk, args.scale, smem.k,
                  RowsOf(grads.dk, tokens, place.kv_head, 0, args.head_dim), length);
  if constexpr (Pass::kValues)
    StoreRows<kV>(sums.dv, 1.0f, smem.v,
                  RowsOf(grads.dv, tokens, place.kv_head, kV * place.slice, args.head_dim_v),
                  length);
}

template <int kD, int kV, typename Pass>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    KeyGradientKernel(const HL_GRID_CONSTANT BackwardParams params, int grid_slices,
                      int step_slices, int num_tiles) {
  const PairAttentionArgs& args = params.grads.forward;
  HL_DYNAMIC_SMEM(raw);
  const KeyGradientSmem<kD, kV, Pass> smem(raw, args.dropout.drops());
  const KeyPlace place = KeyPlaceOf(args, grid_slices);
  const int head = place.kv_head * (args.num_heads / args.num_kv_heads);
  LoadTile<kD, kThreads>(
      smem.k, RowsOf(args.k, TokensOf(place.row, place.tile), place.kv_head, 0, args.head_dim),
      args.num_keys - kTile * place.tile);
  if (Pass::kKeys && !Pass::kSliced)
    LoadValues<kV>(smem.v, args, place.row, head, place.tile, place.slice);
  QueryWalk walk(params, place, num_tiles, step_slices);
  if (!walk.done()) LoadStep(smem, params, place, walk, 0);
  CpAsyncCommit();

  KeySums<kD, kV> sums;
  Clear(sums.dk), Clear(sums.dv);
  float dweights[kTile / kQueriesAtOnce][kQueriesAtOnce / 8][4];
  for (int step = 0; !walk.done(); ++step) {
    const int stage = step % 2, slice = walk.slice(), tile_stage = walk.tile_stage();
    PairOfTiles pair = PairOf(args, walk.span(), place.tile, smem.bias + tile_stage * kBiasTile);
    walk.Advance();
    CpAsyncWait<0>();
    __syncthreads();  // the loads have arrived, and all threads have read the other stage
    if (!walk.done()) LoadStep(smem, params, place, walk, 1 - stage);
    CpAsyncCommit();
    if constexpr (Pass::kSliced) {
#pragma unroll
      for (int part = 0; part < kTile / kQueriesAtOnce; ++part) {
        if (slice == 0) Clear(dweights[part]);
        MultiplyRows<kV>(dweights[part], smem.v + stage * kTile * kV, 16 * WarpId(),
                         smem.dout + stage * kTile * kV, part * kQueriesAtOnce,
                         ColumnsOf<kV>(args.head_dim_v - kV * slice));
      }
      if (slice + 1 < step_slices) continue;
    }
    AddPair(smem, place, pair, tile_stage, stage, args, dweights, sums);
  }
  CpAsyncWait<0>();
  StoreSums(smem, params.grads, place, sums);
}

}  // namespace halflife::kernels::pairs
