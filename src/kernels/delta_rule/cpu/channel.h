// One decay per token and key channel. Decays are multiplied into the operands, in tiles of 16
// tokens. Every factor lies between 1 and the weight that it is part of, so factors never overflow,
// and none is an inverse or a difference of running sums:
//
//   tiles i > j:  w_rs = prefix_r through_{j+1} .. through_{i-1} suffix_s
//     prefix_r = exp(sum over tile i's start .. r), suffix_s = exp(sum over s+1 .. tile j's end),
//         through_i = exp(tile's sum)
//   tile i = j:   k_s (or x_r) times the decays of the tokens in between, one at a time, at most 15
//
// For row tile i, the keys of all earlier tiles carry their suffix and the tiles in between: each
// step of i multiplies one more factor into the keys, in place (`Cascade`): at most two for the
// four tiles of a chunk. The decays from and to the state are exponentials of whole sums.
#pragma once

#include "kernels/delta_rule/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

template <typename T>
class ChannelDecay {
 public:
  static constexpr bool kPerChannel = true;

  ChannelDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : item_(item), shape_(shape) {
    constexpr int kRows = kDeltaChunkSize, kTiles = kDeltaChunkSize / kTile;
    const int keys = shape.keys_padded;
    log_decay_ = space.Matrix<T>(kRows, keys);
    decay_ = space.Matrix<T>(kRows, keys);
    prefix_ = space.Matrix<T>(kRows, keys);
    suffix_ = space.Matrix<T>(kRows, keys);
    through_tile_ = space.Matrix<T>(kTiles, keys);
    before_tile_ = space.Matrix<T>(kTiles, keys);
    after_tile_ = space.Matrix<T>(kTiles, keys);
    through_ = space.Array<T>(keys);
    k_suffix_ = space.Matrix<T>(kRows, keys);
    k_suffix_transposed_ = space.Matrix<T>(keys, kRows);
    if (!backward) return;
    intra_ = space.Matrix<T>(kRows, keys);
    late_ = space.Matrix<T>(kRows, keys);
    early_ = space.Matrix<T>(kRows, keys);
  }

  const T* through() const { return through_; }  // Gamma

  void DecayTables(const ChunkEntry& chunk) {
    length_ = chunk.length;
    rows_ = RoundUp(length_, kTile);
    LoadRows(ValueRows(item_, item_.args->log_decay, chunk), length_, rows_, shape_.keys, T(1),
             log_decay_);
    for (int column = 0; column < shape_.keys_padded; column += kLanes<T>) {
      TilesOfLanes(column);
      for (int i = 0; i < rows_; i += kTile) RowsOfTile(i, column);
    }
  }

  void ScaleReader(const Operands<T>&, const Reader<T>& reader) const {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> x = At(reader.x.Row(r, c)) * At(prefix_.Row(r, c));
      At(reader.prefix.Row(r, c)) = x;
      At(reader.entry.Row(r, c)) = x * At(before_tile_.Row(r / kTile, c));
    });
  }
  void ScaleKeys(const Operands<T>& x) const {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> k = At(x.k.Row(r, c)) * At(suffix_.Row(r, c));
      At(k_suffix_.Row(r, c)) = k;
      At(x.k_exit.Row(r, c)) = k * At(after_tile_.Row(r / kTile, c));
    });
  }

  // The scores of readers `first` to `last`: the sum over channels of x_r w_rs k_s.
  void Scores(const Operands<T>& x, ReaderIndex first, ReaderIndex last) const {
    Transpose(k_suffix_, k_suffix_transposed_, rows_, shape_.keys_padded);
    for (int i = 0; i < rows_; i += kTile) {
      if (i >= 2 * kTile) {  // Cascade: multiply tile i-1's factor into the keys before it
        for (int key = 0; key < shape_.keys; ++key) {
          const T factor = *through_tile_.Row(i / kTile - 1, key);
          for (int s = 0; s < i - kTile; s += kLanes<T>)
            At(k_suffix_transposed_.Row(key, s)) *= factor;
        }
      }
      for (int index = first; index <= last; ++index) {
        const Reader<T>& reader = x.readers[index];
        for (int column = 0; column < i; column += SquareTile<T>::kColumns)
          for (int row = i; row < i + kTile; row += SquareTile<T>::kRows) {
            SquareTile<T> tile(x.ahead);
            tile.Clear();
            tile.MultiplyAdd(reader.prefix, row, k_suffix_transposed_, column, 0, shape_.keys);
            tile.Store(reader.scores, row, column);
          }
        for (int j = 0; j < kTile; j += kLanes<T>) DiagonalScores(x, reader, i, j);
      }
    }
  }

  // dscores_rs = dread_r . u_s
  void PairGradients(const Operands<T>& x) const {
    for (const Reader<T>& reader : x.readers)
      ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
        SquareTile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(reader.dread, row, x.u_transposed, column, 0, shape_.values);
        if (row / kTile == column / kTile)
          tile.ForEach([&](Vec<T>& dscore, int r, int j) HL_INLINE_LAMBDA {
            dscore = Masked(dscore, row + r, column + j, reader.strict);
          });
        tile.Store(reader.dscores, row, column);
      });
  }

  // dx_r = P_r (S dread_r) + sum_s dscores_rs w_rs k_s, for both readers. Also stores the sum of
  // both x dx, without the pairs s = r, for the decay's gradient.
  void ReaderGradients(const Operands<T>& x, const Panels<T>& state_transposed) {
    for (int i = 0; i < rows_; i += kTile) {
      if (i >= 2 * kTile) Cascade(k_suffix_, 0, i - kTile, i / kTile - 1);
      for (const Reader<T>& reader : x.readers) {
        for (int column = 0; column < shape_.keys_padded; column += Tile<T>::kColumns)
          for (int row = i; row < i + kTile; row += Tile<T>::kRows) {
            Tile<T> tile(x.ahead);
            tile.Clear();
            tile.MultiplyAdd(reader.dscores, row, k_suffix_, column, 0, i);
            MultiplyBy(tile, prefix_.Row(row, column));
            tile.Store(reader.dx, row, column);
          }
        for (int column = 0; column < shape_.keys_padded; column += kLanes<T>)
          DiagonalReaders(x, reader, i, column);
      }
    }
    Clear(late_, rows_, shape_.keys_padded);
    for (const Reader<T>& reader : x.readers) AddStateReads(x, reader, state_transposed);
  }
  // Adds to dx of the keys: dk_s += Q_s (R u_s) + sum over both readers and r of dscores_rs w_rs
  // x_r. Also subtracts k times the sum over r > s from late, and stores early = k Q (R u).
  void KeyGradient(const Operands<T>& x, const Panels<T>& adjoint_transposed) {
    for (int j = rows_ - kTile; j >= 0; j -= kTile) {
      if (j + 2 * kTile < rows_)
        for (const Reader<T>& reader : x.readers)
          Cascade(reader.prefix, j + 2 * kTile, rows_, j / kTile + 1);
      for (int column = 0; column < shape_.keys_padded; column += Tile<T>::kColumns)
        for (int row = j; row < j + kTile; row += Tile<T>::kRows) {
          Tile<T> tile(x.ahead);
          tile.Clear();
          for (const Reader<T>& reader : x.readers)
            tile.MultiplyAddTransposed(reader.dscores, row, reader.prefix, column, j + kTile,
                                       rows_);
          MultiplyBy(tile, suffix_.Row(row, column));
          tile.Store(intra_, row, column);
        }
      for (const Reader<T>& reader : x.readers)
        for (int column = 0; column < shape_.keys_padded; column += kLanes<T>)
          DiagonalKeys(reader, j, column);
    }
    const Reader<T>& query = x.readers[kQuery];
    ForTiles<Tile<T>>(rows_, shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.u, row, adjoint_transposed, column, 0, shape_.values);
      MultiplyBy(tile, suffix_.Row(row, column));
      const T* after = after_tile_.Row(row / kTile, column);
      const T *q = query.x.Row(row, column), *k = x.k.Row(row, column);
      const T* intra = intra_.Row(row, column);
      T *late = late_.Row(row, column), *early = early_.Row(row, column);
      T* dk = x.readers[kKey].dx.Row(row, column);
      tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
        const int at = r * kPanel + j;
        sum *= At(after + j);
        At(early + at) = At(k + at) * sum;
        At(late + at) -= At(k + at) * At(intra + at);
        const T own = *query.dscores.Row(row + r, row + r);
        At(dk + at) += sum + At(intra + at) + own * At(q + at);
      });
    });
  }

  // dg_t = sum_{r >= t} late_r + sum_{s < t} early_s + Gamma sum over V of S R, per channel.
  void DecayGradient(const Operands<T>& x, const Panels<T>& state_transposed,
                     const Panels<T>& adjoint_transposed, const ChunkEntry& chunk,
                     const RowsOf& dlog_decay) {
    const Vec<T> never = Vec<T>{} - static_cast<T>(__builtin_inff());
    for (int column = 0; column < shape_.keys_padded; column += kLanes<T>) {
      Vec<T> from_late = {};
      for (int i = 0; i < shape_.values; ++i)
        from_late += At(state_transposed.Row(i, column)) * At(adjoint_transposed.Row(i, column));
      from_late *= At(through_ + column);
      for (int t = x.length - 1; t >= 0; --t)
        At(late_.Row(t, column)) = from_late += At(late_.Row(t, column));
      Vec<T> from_early = {};
      for (int t = 0; t < x.length; ++t) {
        // Where no earlier state is left, the terms that cross t cancel only up to rounding.
        const Vec<T> sum = At(late_.Row(t, column)) + from_early;
        const bool start = t == 0 && (chunk.flags & kChunkResets) != 0;
        At(late_.Row(t, column)) = !start && At(log_decay_.Row(t, column)) > never ? sum : Vec<T>{};
        from_early += At(early_.Row(t, column));
      }
    }
    StoreRows(late_, dlog_decay, 0, x.length, 0, shape_.keys);
  }

 private:
  template <typename Function>
  HL_INLINE void ForVectors(Function function) const {
    for (int panel = 0; panel < shape_.keys_padded; panel += kPanel)
      for (int r = 0; r < rows_; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>) function(r, panel + j);
  }

  // The sum over half a tile, which starts at row `begin`.
  HL_INLINE Vec<T> SumOfHalf(int begin, int column) const {
    Vec<T> sum = {};
    for (int r = begin; r < begin + kTile / 2; ++r) sum += At(log_decay_.Row(r, column));
    return sum;
  }
  // The decays through each tile, before it and after it, for the lanes from `column` on.
  void TilesOfLanes(int column) {
    Vec<T> totals[kDeltaChunkSize / kTile];
    const int tiles = rows_ / kTile;
    for (int i = 0; i < tiles; ++i) {
      totals[i] = SumOfHalf(i * kTile, column) + SumOfHalf(i * kTile + kTile / 2, column);
      At(through_tile_.Row(i, column)) = Exp(totals[i]);
    }
    Vec<T> sum = {};
    for (int i = 0; i < tiles; ++i) {
      At(before_tile_.Row(i, column)) = Exp(sum);
      sum += totals[i];
    }
    At(through_ + column) = Exp(sum);
    sum = Vec<T>{};
    for (int i = tiles - 1; i >= 0; --i) {
      At(after_tile_.Row(i, column)) = Exp(sum);
      sum += totals[i];
    }
  }
  // The decays of the rows of the tile from `begin` on. Factors are chained over at most 8 tokens.
  void RowsOfTile(int begin, int column) {
    const int middle = begin + kTile / 2, end = begin + kTile;
    for (int r = begin; r < end; ++r)
      At(decay_.Row(r, column)) = Exp(At(log_decay_.Row(r, column)));
    const Vec<T> one = Vec<T>{} + T(1);
    Vec<T> product = one;
    for (int r = begin; r < end; ++r) {
      if (r == middle) product = Exp(SumOfHalf(begin, column));
      At(prefix_.Row(r, column)) = product *= At(decay_.Row(r, column));
    }
    product = one;
    for (int s = end - 1; s >= begin; --s) {
      if (s == middle - 1) product = Exp(SumOfHalf(middle, column));
      At(suffix_.Row(s, column)) = product;
      product *= At(decay_.Row(s, column));
    }
  }

  HL_INLINE static Vec<T> Masked(const Vec<T>& x, int row, int column, bool strict) {
    const Vec<T> lanes = LaneNumbers<T>() + T(column), last = Vec<T>{} + T(row);
    const Vec<T> below = lanes < last ? x : Vec<T>{};
    return strict ? below : (lanes <= last ? x : Vec<T>{});
  }
  HL_INLINE static void MultiplyBy(Tile<T>& tile, const T* factors) {
    tile.ForEach([&](Vec<T>& x, int r, int j)
                     HL_INLINE_LAMBDA { x *= At(factors + r * kPanel + j); });
  }
  void Cascade(const Panels<T>& rows, int begin, int end, int tile) const {
    for (int column = 0; column < shape_.keys_padded; column += kLanes<T>) {
      const Vec<T> factor = At(through_tile_.Row(tile, column));
      for (int r = begin; r < end; ++r) At(rows.Row(r, column)) *= factor;
    }
  }

  // The scores of diagonal tile i for one vector of keys from i + j on. Each key is decayed once
  // per row between it and the reader.
  void DiagonalScores(const Operands<T>& x, const Reader<T>& reader, int i, int j) const {
    const Vec<T> lanes = LaneNumbers<T>() + T(j);
    Vec<T> sums[kTile] = {};
    for (int key = 0; key < shape_.keys; ++key) {
      Vec<T> k = At(x.k_transposed.Row(key, i + j));
      const T *values = reader.x.Row(i, key), *decay = decay_.Row(i, key);
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) {
        if (r > 0) {
          const Vec<T> decayed = k * decay[r * kPanel];
          k = lanes < Vec<T>{} + T(r) ? decayed : k;
        }
        sums[r] += values[r * kPanel] * k;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r)
      At(reader.scores.Row(i + r, i + j)) = Masked(sums[r], r, j, reader.strict);
  }
  // dx_r += sum_{s < r} dscores_rs w_rs k_s within tile i.
  void DiagonalReaders(const Operands<T>& x, const Reader<T>& reader, int i, int column) const {
    const T *k = x.k.Row(i, column), *decay = decay_.Row(i, column);
    const T* dscores = reader.dscores.Row(i, i);
    T* dx = reader.dx.Row(i, column);
    Vec<T> sums[kTile];
#pragma GCC unroll 16
    for (int r = 1; r < kTile; ++r) sums[r] = At(dx + r * kPanel);
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
    for (int r = 1; r < kTile; ++r) At(dx + r * kPanel) = sums[r];
  }
  // intra_s += sum_{r > s} dscores_rs w_rs x_r within tile i.
  void DiagonalKeys(const Reader<T>& reader, int i, int column) const {
    const T *x = reader.x.Row(i, column), *decay = decay_.Row(i, column);
    const T* dscores = reader.dscores.Row(i, i);
    T* intra = intra_.Row(i, column);
    Vec<T> sums[kTile] = {};
#pragma GCC unroll 16
    for (int r = kTile - 1; r > 0; --r) {
      const Vec<T> row = At(x + r * kPanel), factor = At(decay + r * kPanel);
#pragma GCC unroll 16
      for (int s = 0; s < r; ++s) sums[s] = (sums[s] + dscores[r * kPanel + s] * row) * factor;
    }
#pragma GCC unroll 16
    for (int s = 0; s < kTile - 1; ++s) At(intra + s * kPanel) += sums[s];
  }
  // Completes dx with what the rows read from the state, and with the pairs s = r.
  void AddStateReads(const Operands<T>& x, const Reader<T>& reader,
                     const Panels<T>& state_transposed) const {
    ForTiles<Tile<T>>(rows_, shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(reader.dread, row, state_transposed, column, 0, shape_.values);
      MultiplyBy(tile, prefix_.Row(row, column));
      const T* before = before_tile_.Row(row / kTile, column);
      const T *values = reader.x.Row(row, column), *k = x.k.Row(row, column);
      T *dx = reader.dx.Row(row, column), *late = late_.Row(row, column);
      tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
        const int at = r * kPanel + j;
        sum = sum * At(before + j) + At(dx + at);
        At(late + at) += At(values + at) * sum;
        if (!reader.strict) sum += *reader.dscores.Row(row + r, row + r) * At(k + at);
        At(dx + at) = sum;
      });
    });
  }

  const ScanItem& item_;
  const Shape& shape_;
  int length_ = 0, rows_ = 0;
  Panels<T> log_decay_, decay_;                        // [C, K]
  Panels<T> prefix_, suffix_;                          // [C, K]
  Panels<T> through_tile_, before_tile_, after_tile_;  // [tiles, K]
  T* through_;                                         // [K]
  Panels<T> k_suffix_;                                 // [C, K]; ReaderGradients modifies it
  Panels<T> k_suffix_transposed_;                      // [K, C]; Scores modifies it
  Panels<T> intra_, late_, early_;                     // [C, K]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
