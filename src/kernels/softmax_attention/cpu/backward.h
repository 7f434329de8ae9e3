// Computes the gradients from the scores, which are recomputed, and the sums of the forward. With P
// the weights,
//
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - dO . O),  dQ = scale dS K,  dK = scale dS^T Q,
//
// Dropout removes from dP what it removes from P in dV. The gradient of a distance's bias is the
// sum of dS over its diagonal. For a squared ReLU over n keys, dS = 2 / n max(0, S) dP. A thread
// processes all queries that use one head of keys, one after another, so that each sum has one
// order for any number of threads.
#pragma once

#include "kernels/softmax_attention/cpu/tile_pair.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention {

template <typename T>
class Backward {
 public:
  Backward(const SoftmaxAttentionGradArgs& grads, ScratchSpace& space)
      : grads_(grads),
        args_(grads.forward),
        pair_(args_, space),
        dim_(args_.head_dim),
        values_(args_.head_dim_v),
        value_rows_(RoundUp(values_, kRowStep)) {
    const int tokens = pair_.num_tiles() * kTile;
    keys_ = space.Matrix<T>(tokens, dim_);
    dkeys_ = space.Matrix<T>(tokens, dim_);
    values_t_ = space.Matrix<T>(pair_.num_tiles() * value_rows_, kTile);
    dvalues_ = space.Matrix<T>(tokens, values_);
    dout_ = space.Matrix<T>(kTile, values_);
    dq_ = space.Matrix<T>(kTile, dim_);
    dscores_ = space.Matrix<T>(kTile, kTile);
    if (args_.has_far()) {
      far_keys_ = !args_.own_far_keys ? keys_ : space.Matrix<T>(tokens, dim_);
      dfar_keys_ = !args_.own_far_keys ? dkeys_ : space.Matrix<T>(tokens, dim_);
      dfar_q_ = space.Matrix<T>(kTile, dim_);
      dfar_scores_ = space.Matrix<T>(kTile, kTile);
    }
  }

  void Run(const Item& item) {
    pair_.FillDecays();
    for (int tile = 0; tile < pair_.num_tiles(); ++tile) Load(item, tile);
    const int group = args_.num_heads / args_.num_kv_heads;
    for (int head = item.head * group; head < (item.head + 1) * group; ++head)
      for (int tile = item.first_tile; tile < item.end_tile; ++tile)
        Differentiate(item.row, head, tile);
    for (int tile = 0; tile < pair_.num_tiles(); ++tile) StoreKeys(item, tile);
  }

 private:
  // Returns one tile of a sequence of tiles [tile, width].
  static Panels<T> TileOf(const Panels<T>& tiles, int tile, int width) {
    const int64_t size = int64_t{1} * kTile * RoundUp(width, kPanel);
    return {tiles.data + tile * size, kTile * kPanel};
  }
  Panels<T> ValuesOf(int tile) const {
    return {values_t_.data + int64_t{1} * tile * value_rows_ * kTile, value_rows_ * kPanel};
  }

  void Load(const Item& item, int tile) {
    const ChunkEntry tokens = TileOfTokens(item.row, tile, args_.num_keys);
    const bool own_far = args_.own_far_keys;
    pair_.LoadKeys(tokens, item.head, tile, TileOf(keys_, tile, dim_),
                   own_far ? TileOf(far_keys_, tile, dim_) : Panels<T>{});
    // Used as scratch, because it is not in use yet.
    const Panels<T> rows = TileOf(dvalues_, tile, values_);
    LoadRows(RowsOfHead(args_.v, tokens, item.head), tokens.length, kTile, values_, T(1), rows);
    Transpose(rows, ValuesOf(tile), kTile, value_rows_);
    Clear(rows, kTile, values_);
    Clear(TileOf(dkeys_, tile, dim_), kTile, dim_);
    if (own_far) Clear(TileOf(dfar_keys_, tile, dim_), kTile, dim_);
  }
  void Differentiate(int row, int head, int tile) {
    const ChunkEntry tokens = TileOfTokens(row, tile, args_.num_queries);
    pair_.LoadQueries(row, head, tile);
    LoadRows(RowsOfHead(grads_.dout, tokens, head), tokens.length, kTile, values_, T(1), dout_);
    LoadSums(tokens, head);
    Clear(dq_, kTile, dim_);
    if (args_.has_far()) Clear(dfar_q_, kTile, dim_);
    for (int met = 0; met < pair_.num_tiles(); ++met) {
      if (!pair_.Meets(met)) continue;
      pair_.ComputeScores(met);
      WeightsAndGradients(met);
      if (grads_.dbias != nullptr) AddToBias(row, head, met);
      AddProducts(met);
    }
    StoreQueries(tokens, head);
  }
  // Loads the logarithms of the sums, the numbers of keys, and dO . O (which a squared ReLU does
  // not need).
  void LoadSums(const ChunkEntry& tokens, int head) {
    const RowsOf out = RowsOfHead(args_.out, tokens, head);
    WithStorage<T>(out.dtype, [&](auto sample) {
      using S = decltype(sample);
      for (int r = 0; r < tokens.length; ++r) {
        const int64_t token = int64_t{1} * tokens.row * args_.num_queries + tokens.token + r;
        log_sums_[r] = static_cast<const T*>(args_.log_sum)[token * args_.num_heads + head];
        num_seen_[r] = static_cast<T>(args_.NumSeen(token));
        deltas_[r] = args_.squared_relu ? T(0) : DotOfDout(r, out.Row<const S>(r));
      }
    });
  }
  // Adds per lane: a single chain of additions would wait for each of them, which costs 4 % of a
  // backward.
  template <typename S>
  HL_INLINE T DotOfDout(int r, const S* out) const {
    Vec<T> sums = {};
    T lanes[kLanes<T>];
    int j = 0;
    for (; j + kLanes<T> <= values_; j += kLanes<T>) {
      for (int i = 0; i < kLanes<T>; ++i) lanes[i] = Widen<T>(out[j + i]);
      sums += At(dout_.Row(r, j)) * LoadUnaligned(lanes);
    }
    T sum = Sum<T>(sums);
    for (; j < values_; ++j) sum += *dout_.Row(r, j) * Widen<T>(out[j]);
    return sum;
  }
  // Replaces the scores by P, and dP by dS.
  void WeightsAndGradients(int met) {
    for (int r = 0; r < pair_.num_rows(); ++r) {
      const bool seen = !pair_.span(r).empty();
      for (int j = 0; j < kTile; j += kLanes<T>) {
        T* const place = pair_.scores().Row(r, j);
        At(place) = !seen                ? Vec<T>{}
                    : args_.squared_relu ? Slope(At(place), r)
                                         : Exp(At(place) - log_sums_[r]);
      }
    }
    const bool drops = args_.dropout.drops();
    if (drops) {
      pair_.DrawKept(met);
      ComputeGradients<true>(met);
    } else {
      ComputeGradients<false>(met);
    }
    if (args_.squared_relu) SquareSlopes();
    if (drops) pair_.DropWeights();
  }
  // Computes dS from the weights.
  template <bool kDrops>
  void ComputeGradients(int met) {
    ForTiles<Tile<T>>(pair_.num_rows(), kTile, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(pair_.ahead());
      tile.Clear();
      if (!pair_.Sees(row, column)) return tile.Store(dscores_, row, column);
      tile.MultiplyAdd(dout_, row, ValuesOf(met), column, 0, values_);
      const T* weights = pair_.scores().Row(row, column);
      const T* kept = kDrops ? pair_.kept().Row(row, column) : nullptr;
      tile.ForEach([&](Vec<T>& x, int r, int j) HL_INLINE_LAMBDA {
        const Vec<T> weight = At(weights + r * kPanel + j);
        if constexpr (kDrops) x = TilePair<T>::Keep(x, At(kept + r * kPanel + j));
        x = weight == T(0) ? Vec<T>{} : weight * (x - deltas_[row + r]);
      });
      tile.Store(dscores_, row, column);
    });
  }
  // Returns dS / dP of a squared ReLU.
  HL_INLINE Vec<T> Slope(Vec<T> score, int r) const {
    return score > T(0) ? score * (2 / num_seen_[r]) : Vec<T>{};
  }
  // Computes the weights from the slopes: (2 x / n)^2 n / 4 = x^2 / n.
  void SquareSlopes() {
    for (int r = 0; r < pair_.num_rows(); ++r)
      for (int j = 0; j < kTile; j += kLanes<T>) {
        T* const place = pair_.scores().Row(r, j);
        At(place) = At(place) * At(place) * (num_seen_[r] / 4);
      }
  }
  void AddToBias(int row, int head, int met) {
    const int64_t of_head = (int64_t{1} * row * args_.num_heads + head) * args_.bias_stride;
    T* const table = static_cast<T*>(grads_.dbias) + of_head + args_.bias_zero;
    for (int r = 0; r < pair_.num_rows(); ++r) {
      if (pair_.span(r).empty()) continue;
      T* const place = table + pair_.BiasOffset(r, met);
      const T scale = pair_.BiasScale(r);
      for (int j = 0; j < kTile; j += kLanes<T>)
        StoreUnaligned(place + j, LoadUnaligned(place + j) + At(dscores_.Row(r, j)) * scale);
    }
  }
  void AddProducts(int met) {
    using Distance = typename TilePair<T>::Distance;
    const Distance distance = pair_.distance();
    AddTransposed(pair_.scores(), dout_, values_, TileOf(dvalues_, met, values_));
    if (distance == Distance::kBoth) SplitByDistance(met);
    if (distance != Distance::kFar) AddNear(met);
    if (distance == Distance::kNear) return;
    const Panels<T>& dscores = distance == Distance::kFar ? dscores_ : dfar_scores_;
    pair_.AddSeen(dscores, TileOf(far_keys_, met, dim_), dim_, dfar_q_);
    AddTransposed(dscores, pair_.far_queries(), dim_, TileOf(dfar_keys_, met, dim_));
  }
  void AddNear(int met) {
    AddTransposed(dscores_, pair_.queries(), dim_, TileOf(dkeys_, met, dim_));
    const Panels<T> keys = TileOf(keys_, met, dim_);
    if (args_.decay_rates == nullptr) return pair_.AddSeen(dscores_, keys, dim_, dq_);
    pair_.AddSeenDecayed(dscores_, keys, dq_);
  }
  // Moves dS of the far pairs to a separate tile.
  void SplitByDistance(int met) {
    for (int r = 0; r < pair_.num_rows(); ++r) {
      const T far_columns = static_cast<T>(pair_.FarColumns(r, met));
      for (int j = 0; j < kTile; j += kLanes<T>) {
        T* const place = dscores_.Row(r, j);
        const Vec<T> x = At(place);
        const auto far = LaneNumbers<T>() + T(j) < far_columns;
        At(place) = far ? Vec<T>{} : x;
        At(dfar_scores_.Row(r, j)) = far ? x : Vec<T>{};
      }
    }
  }
  // Adds weights^T right to out [tile, width] of the keys; `right` belongs to the queries.
  void AddTransposed(const Panels<T>& weights, const Panels<T>& right, int width,
                     const Panels<T>& out) {
    ForTiles<Tile<T>>(kTile, width, [&](int row, int column) HL_INLINE_LAMBDA {
      const RowRange& queries = pair_.RowsThatSee(row);
      if (queries.begin >= queries.end) return;
      Tile<T> tile(pair_.ahead());
      const T* before = out.Row(row, column);
      tile.ForEach([&](Vec<T>& sum, int r, int j)
                       HL_INLINE_LAMBDA { sum = At(before + r * kPanel + j); });
      tile.MultiplyAddTransposed(weights, row, right, column, queries.begin, queries.end);
      tile.Store(out, row, column);
    });
  }

  void StoreQueries(const ChunkEntry& tokens, int head) {
    const T scale = static_cast<T>(args_.scale);
    const auto store = [&](const Panels<T>& x, const TensorView& to) {
      for (int column = 0; column < dim_; column += kPanel)
        for (int r = 0; r < tokens.length; ++r)
          for (int j = 0; j < kPanel; j += kLanes<T>) At(x.Row(r, column) + j) *= scale;
      StoreRows(x, RowsOfHead(to, tokens, head), 0, tokens.length, 0, dim_);
    };
    pair_.DecayRows(tokens.length, dq_);
    store(dq_, grads_.dq);
    if (args_.has_far()) store(dfar_q_, grads_.dfar_q);
  }
  void StoreKeys(const Item& item, int tile) {
    const ChunkEntry tokens = TileOfTokens(item.row, tile, args_.num_keys);
    const auto store = [&](const Panels<T>& tiles, int width, const TensorView& to) {
      StoreRows(TileOf(tiles, tile, width), RowsOfHead(to, tokens, item.head), 0, tokens.length, 0,
                width);
    };
    pair_.DecayKeys(TileOf(dkeys_, tile, dim_));
    store(dkeys_, dim_, grads_.dk);
    store(dvalues_, values_, grads_.dv);
    if (args_.own_far_keys) store(dfar_keys_, dim_, grads_.dfar_k);
  }

  const SoftmaxAttentionGradArgs& grads_;
  const SoftmaxAttentionArgs& args_;
  TilePair<T> pair_;
  const int dim_, values_, value_rows_;
  T log_sums_[kTile], deltas_[kTile], num_seen_[kTile];  // for the tile of queries
  Panels<T> keys_, dkeys_, far_keys_, dfar_keys_;        // [tiles][tile, d]
  Panels<T> values_t_, dvalues_;                         // [tiles][V, tile], [tiles][tile, V]
  Panels<T> dout_, dq_, dfar_q_;                         // [tile, V], [tile, d]
  Panels<T> dscores_, dfar_scores_;                      // [tile, tile]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention
