// Decays with one factor per channel. They are multiplied into the operands, in tiles of 16 tokens.
// Every factor lies between 1 and the weight that it is part of, so factors never overflow, and
// none is an inverse:
//
//   tiles i > j:  w_rs = prefix_r through_{j+1} .. through_{i-1} suffix_s
//     prefix_r = exp(sum over tile i's start .. r), suffix_s = exp(sum over s+1 .. tile j's end),
//         through_i = exp(tile's sum)
//   tile i = j:   k_s (or q_r) times the decays of the tokens in between, one at a time, at most 15
//
// For row tile i, the keys of all earlier tiles carry their suffix and the tiles in between: each
// step of i multiplies one more factor into the keys, in place (`Cascade`). Between tiles and
// between chunks, sums are exponentiated; factors are not chained.
#pragma once

#include "kernels/decay_attention/cpu/scalar.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

template <typename T>
class ChannelDecay {
 public:
  ChannelDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : args_(*item.args),
        head_(item.head),
        keys_(shape.keys),
        keys_padded_(shape.keys_padded),
        columns_(shape.columns) {
    const int rows = shape.chunk_rows, tiles = rows / kTile;
    log_decay_ = space.Matrix<T>(rows, keys_padded_);
    decay_ = space.Matrix<T>(rows, keys_padded_);
    prefix_ = space.Matrix<T>(rows, keys_padded_);
    suffix_ = space.Matrix<T>(rows, keys_padded_);
    through_tile_ = space.Matrix<T>(tiles, keys_padded_);
    before_tile_ = space.Matrix<T>(tiles, keys_padded_);
    after_tile_ = space.Matrix<T>(tiles, keys_padded_);
    through_ = space.Array<T>(keys_padded_);
    log_through_ = space.Array<T>(keys_padded_);
    k_suffix_ = space.Matrix<T>(rows, keys_padded_);
    k_suffix_transposed_ = space.Matrix<T>(keys_padded_, rows);
    q_prefix_ = space.Matrix<T>(rows, keys_padded_);
    if (!backward) return;
    intra_ = space.Matrix<T>(rows, keys_padded_);
    late_ = space.Matrix<T>(rows, keys_padded_);
    early_ = space.Matrix<T>(rows, keys_padded_);
  }

  const T* through() const { return through_; }
  T log_through(int key) const { return log_through_[key]; }
  bool cuts(int key) const {
    for (int r = 0; r < length_; ++r)
      if (*log_decay_.Row(r, key) == -static_cast<T>(__builtin_inff())) return true;
    return false;
  }

  void DecayTables(const ChunkEntry& chunk) {
    if (!IsPerToken(args_.decay_kind) && chunk.length == length_) return;
    length_ = chunk.length;
    rows_ = RoundUp(length_, kTile);
    LoadLogDecay(chunk);
    for (int column = 0; column < keys_padded_; column += kLanes<T>) TablesOfLanes(column);
  }

  void ScaleQueries(const Operands<T>& x) {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> q = At(x.q.Row(r, c)) * At(prefix_.Row(r, c));
      At(q_prefix_.Row(r, c)) = q;
      At(x.q_entry.Row(r, c)) = q * At(before_tile_.Row(r / kTile, c));
    });
  }
  void ScaleKeys(const Operands<T>& x) {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> k = At(x.k.Row(r, c)) * At(suffix_.Row(r, c));
      At(k_suffix_.Row(r, c)) = k;
      At(x.k_exit.Row(r, c)) = k * At(after_tile_.Row(r / kTile, c));
    });
  }

  // A_rs = sum over channels of q_r k_s w_rs
  void IntraTile(const Operands<T>& x) {
    Transpose(k_suffix_, k_suffix_transposed_, rows_, keys_padded_);
    for (int i = 0; i < rows_; i += kTile) {
      if (i >= 2 * kTile) {  // Cascade: multiply tile i-1's factor into the keys before it
        for (int key = 0; key < keys_; ++key) {
          const T factor = *through_tile_.Row(i / kTile - 1, key);
          for (int s = 0; s < i - kTile; s += kLanes<T>)
            At(k_suffix_transposed_.Row(key, s)) *= factor;
        }
      }
      for (int column = 0; column < i; column += SquareTile<T>::kColumns)
        for (int row = i; row < i + kTile; row += SquareTile<T>::kRows) {
          SquareTile<T> tile(x.ahead);
          tile.Clear();
          tile.MultiplyAdd(q_prefix_, row, k_suffix_transposed_, column, 0, keys_);
          tile.Store(x.scores, row, column);
        }
      for (int j = 0; j < kTile; j += kLanes<T>) DiagonalScores(x, i, j);
    }
  }

  // D_rs = do_r . v_s on and below the diagonal
  void IntraTileBackward(const Operands<T>& x) const {
    ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
      SquareTile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.dout, row, x.v_transposed, column, 0, columns_);
      if (row / kTile == column / kTile)
        tile.ForEach([&](Vec<T>& dscore, int r, int j) HL_INLINE_LAMBDA {
          const Vec<T> s = LaneNumbers<T>() + T(column + j);
          dscore = s <= Vec<T>{} + T(row + r) ? dscore : Vec<T>{};
        });
      tile.Store(x.dscores, row, column);
    });
  }

  // dq_r = P_r (S do_r) + sum_{s <= r} D_rs w_rs k_s. Also stores late = q (dq without the pairs s
  // = r), for the decay's gradient.
  template <typename Store>
  void QueryGradient(const Operands<T>& x, const Panels<T>& state_transposed, Store store) {
    for (int i = 0; i < rows_; i += kTile) {
      if (i >= 2 * kTile) Cascade(k_suffix_, 0, i - kTile, i / kTile - 1);
      for (int column = 0; column < keys_padded_; column += Tile<T>::kColumns)
        for (int row = i; row < i + kTile; row += Tile<T>::kRows) {
          Tile<T> tile(x.ahead);
          tile.Clear();
          tile.MultiplyAdd(x.dscores, row, k_suffix_, column, 0, i);
          MultiplyBy(tile, prefix_.Row(row, column));
          tile.Store(intra_, row, column);
        }
      for (int column = 0; column < keys_padded_; column += kLanes<T>)
        DiagonalQueries(x, i, column);
    }
    ForTiles<Tile<T>>(rows_, keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.dout, row, state_transposed, column, 0, columns_);
      MultiplyBy(tile, prefix_.Row(row, column));
      const T* before = before_tile_.Row(row / kTile, column);
      const T *q = x.q.Row(row, column), *k = x.k.Row(row, column);
      const T* intra = intra_.Row(row, column);
      T* late = late_.Row(row, column);
      tile.ForEach([&](Vec<T>& dq, int r, int j) HL_INLINE_LAMBDA {
        const int at = r * kPanel + j;
        dq = dq * At(before + j) + At(intra + at);
        At(late + at) = At(q + at) * dq;
        dq += *x.dscores.Row(row + r, row + r) * At(k + at);
      });
      store(tile, row, column);
    });
  }
  // dk_s = Q_s (R v_s) + sum_{r >= s} D_rs w_rs q_r. Also subtracts k times the sum over r > s from
  // late, and stores early = k Q (R v).
  template <typename Store>
  void KeyGradient(const Operands<T>& x, const Panels<T>& adjoint_transposed, Store store) {
    for (int j = rows_ - kTile; j >= 0; j -= kTile) {
      if (j + 2 * kTile < rows_) Cascade(q_prefix_, j + 2 * kTile, rows_, j / kTile + 1);
      for (int column = 0; column < keys_padded_; column += Tile<T>::kColumns)
        for (int row = j; row < j + kTile; row += Tile<T>::kRows) {
          Tile<T> tile(x.ahead);
          tile.Clear();
          tile.MultiplyAddTransposed(x.dscores, row, q_prefix_, column, j + kTile, rows_);
          MultiplyBy(tile, suffix_.Row(row, column));
          tile.Store(intra_, row, column);
        }
      for (int column = 0; column < keys_padded_; column += kLanes<T>) DiagonalKeys(x, j, column);
    }
    ForTiles<Tile<T>>(rows_, keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.v, row, adjoint_transposed, column, 0, columns_);
      MultiplyBy(tile, suffix_.Row(row, column));
      const T* after = after_tile_.Row(row / kTile, column);
      const T *q = x.q.Row(row, column), *k = x.k.Row(row, column);
      const T* intra = intra_.Row(row, column);
      T *late = late_.Row(row, column), *early = early_.Row(row, column);
      tile.ForEach([&](Vec<T>& dk, int r, int j) HL_INLINE_LAMBDA {
        const int at = r * kPanel + j;
        dk *= At(after + j);
        At(early + at) = At(k + at) * dk;
        At(late + at) -= At(k + at) * At(intra + at);
        dk += At(intra + at) + *x.dscores.Row(row + r, row + r) * At(q + at);
      });
      store(tile, row, column);
    });
  }

  // dg_t = sum_{r >= t} late_r + sum_{s < t} early_s + E per channel, E = G sum over V of S R.
  void DecayGradient(const Operands<T>& x, const Panels<T>& state_transposed,
                     const Panels<T>& adjoint_transposed, const DecaySink& sink) {
    const Vec<T> never = Vec<T>{} - static_cast<T>(__builtin_inff());
    for (int column = 0; column < keys_padded_; column += kLanes<T>) {
      Vec<T> whole = {};
      for (int i = 0; i < columns_; ++i)
        whole += At(state_transposed.Row(i, column)) * At(adjoint_transposed.Row(i, column));
      whole *= At(through_ + column);
      if (sink.dlambda != nullptr) AddConstantGradient(x.length, column, whole, sink.dlambda);
      if (!sink.per_token) continue;
      for (int t = x.length - 1; t >= 0; --t)
        At(late_.Row(t, column)) = whole += At(late_.Row(t, column));
      Vec<T> from_early = {};
      for (int t = 0; t < x.length; ++t) {
        // A decay of 0 has a gradient of exactly 0. The terms that cross t cancel only up to
        // rounding.
        const Vec<T> sum = At(late_.Row(t, column)) + from_early;
        At(late_.Row(t, column)) = At(log_decay_.Row(t, column)) > never ? sum : Vec<T>{};
        from_early += At(early_.Row(t, column));
      }
    }
    if (sink.per_token) StoreRows(late_, sink.rows, 0, x.length, 0, keys_);
  }

 private:
  template <typename Function>
  HL_INLINE void ForVectors(Function function) const {
    for (int panel = 0; panel < keys_padded_; panel += kPanel)
      for (int r = 0; r < rows_; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>) function(r, panel + j);
  }

  void LoadLogDecay(const ChunkEntry& chunk) {
    TensorView view = args_.log_decay;
    if (!IsPerToken(args_.decay_kind)) view.stride_b = view.stride_t = 0;
    const RowsOf rows(view, chunk, head_, args_.num_heads, args_.num_decay_heads);
    LoadRows(rows, length_, rows_, keys_, T(1), log_decay_);
  }

  // Fills every table for the lanes from `column` on. Within a tile, factors are chained over at
  // most 8 tokens.
  void TablesOfLanes(int column) {
    for (int r = 0; r < rows_; ++r) At(decay_.Row(r, column)) = Exp(At(log_decay_.Row(r, column)));
    Vec<T> totals[kMaxChunkSize / kTile];
    const int tiles = rows_ / kTile;
    for (int i = 0; i < tiles; ++i) {
      const int begin = i * kTile, middle = begin + kTile / 2, end = begin + kTile;
      Vec<T> first = {}, second = {};
      for (int r = begin; r < middle; ++r) first += At(log_decay_.Row(r, column));
      for (int r = middle; r < end; ++r) second += At(log_decay_.Row(r, column));
      totals[i] = first + second;
      const Vec<T> one = Vec<T>{} + T(1);
      Vec<T> product = one;
      for (int r = begin; r < middle; ++r)
        At(prefix_.Row(r, column)) = product *= At(decay_.Row(r, column));
      product = Exp(first);
      for (int r = middle; r < end; ++r)
        At(prefix_.Row(r, column)) = product *= At(decay_.Row(r, column));
      product = one;
      for (int s = end - 1; s >= middle; --s) {
        At(suffix_.Row(s, column)) = product;
        product *= At(decay_.Row(s, column));
      }
      product = Exp(second);
      for (int s = middle - 1; s >= begin; --s) {
        At(suffix_.Row(s, column)) = product;
        product *= At(decay_.Row(s, column));
      }
      At(through_tile_.Row(i, column)) = Exp(totals[i]);
    }
    Vec<T> sum = {};
    for (int i = 0; i < tiles; ++i) {
      At(before_tile_.Row(i, column)) = Exp(sum);
      sum += totals[i];
    }
    At(log_through_ + column) = sum;
    At(through_ + column) = Exp(sum);
    sum = Vec<T>{};
    for (int i = tiles - 1; i >= 0; --i) {
      At(after_tile_.Row(i, column)) = Exp(sum);
      sum += totals[i];
    }
  }

  HL_INLINE static void MultiplyBy(Tile<T>& tile, const T* factors) {
    tile.ForEach([&](Vec<T>& x, int r, int j)
                     HL_INLINE_LAMBDA { x *= At(factors + r * kPanel + j); });
  }
  void Cascade(const Panels<T>& rows, int begin, int end, int tile) const {
    for (int column = 0; column < keys_padded_; column += kLanes<T>) {
      const Vec<T> factor = At(through_tile_.Row(tile, column));
      for (int r = begin; r < end; ++r) At(rows.Row(r, column)) *= factor;
    }
  }

  // The scores of diagonal tile i for one vector of keys from i + j on. Each key is decayed once
  // per row between it and the query.
  void DiagonalScores(const Operands<T>& x, int i, int j) const {
    const Vec<T> lanes = LaneNumbers<T>() + T(j);
    Vec<T> sums[kTile] = {};
    for (int key = 0; key < keys_; ++key) {
      Vec<T> k = At(x.k_transposed.Row(key, i + j));
      const T *q = x.q.Row(i, key), *decay = decay_.Row(i, key);
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) {
        if (r > 0) {
          const Vec<T> decayed = k * decay[r * kPanel];
          k = lanes < Vec<T>{} + T(r) ? decayed : k;
        }
        sums[r] += q[r * kPanel] * k;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r)
      At(x.scores.Row(i + r, i + j)) = lanes <= Vec<T>{} + T(r) ? sums[r] : Vec<T>{};
  }
  // intra_r += sum_{s < r} D_rs w_rs k_s within tile i.
  void DiagonalQueries(const Operands<T>& x, int i, int column) const {
    const T *k = x.k.Row(i, column), *decay = decay_.Row(i, column);
    const T* dscores = x.dscores.Row(i, i);
    T* intra = intra_.Row(i, column);
    Vec<T> sums[kTile];
#pragma GCC unroll 16
    for (int r = 1; r < kTile; ++r) sums[r] = At(intra + r * kPanel);
#pragma GCC unroll 16
    for (int s = 0; s < kTile - 1; ++s) {
      Vec<T> decayed = At(k + s * kPanel);
#pragma GCC unroll 16
      for (int r = s + 1; r < kTile; ++r) {
        decayed *= At(decay + r * kPanel);
        sums[r] += dscores[r * kPanel + s] * decayed;
      }
    }
#pragma GCC unroll 16
    for (int r = 1; r < kTile; ++r) At(intra + r * kPanel) = sums[r];
  }
  // intra_s += sum_{r > s} D_rs w_rs q_r within tile i.
  void DiagonalKeys(const Operands<T>& x, int i, int column) const {
    const T *q = x.q.Row(i, column), *decay = decay_.Row(i, column);
    const T* dscores = x.dscores.Row(i, i);
    T* intra = intra_.Row(i, column);
    Vec<T> sums[kTile] = {};
#pragma GCC unroll 16
    for (int r = kTile - 1; r > 0; --r) {
      const Vec<T> query = At(q + r * kPanel), factor = At(decay + r * kPanel);
#pragma GCC unroll 16
      for (int s = 0; s < r; ++s) sums[s] = (sums[s] + dscores[r * kPanel + s] * query) * factor;
    }
#pragma GCC unroll 16
    for (int s = 0; s < kTile - 1; ++s) At(intra + s * kPanel) += sums[s];
  }
  void AddConstantGradient(int length, int column, const Vec<T>& whole, double* dlambda) const {
    for (int lane = 0; lane < kLanes<T> && column + lane < keys_; ++lane) {
      double sum = length * static_cast<double>(whole[lane]);
      for (int r = 0; r < length; ++r)
        sum += (r + 1.0) * late_.Row(r, column)[lane] +
               (length - 1.0 - r) * early_.Row(r, column)[lane];
      if (log_decay_.Row(0, column)[lane] > -__builtin_inff()) dlambda[column + lane] += sum;
    }
  }

  const DecayAttentionArgs& args_;
  const int head_, keys_, keys_padded_, columns_;
  int length_ = -1, rows_ = 0;
  Panels<T> log_decay_, decay_;                        // [C, K]
  Panels<T> prefix_, suffix_;                          // [C, K]
  Panels<T> through_tile_, before_tile_, after_tile_;  // [tiles, K]
  T *through_, *log_through_;                          // [K]
  Panels<T> k_suffix_, q_prefix_;                      // [C, K]; the cascades modify them in place
  Panels<T> k_suffix_transposed_;                      // [K, C]
  Panels<T> intra_, late_, early_;                     // [C, K]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
