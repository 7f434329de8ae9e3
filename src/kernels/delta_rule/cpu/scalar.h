// One decay per token, or none. The weights w [C, C] scale finished tiles of scores. Every weight
// is the exponential of a sum over exactly its own range, or the product of two such weights with
// adjacent ranges, so -inf (a weight of 0) needs no special case:
//
//   w_rs = exp(sum of log_decay over s+1 .. r)
//        = exp(tile of r begins .. r) exp(s+1 .. tile of r begins - 1)     s in an earlier tile
#pragma once

#include "kernels/delta_rule/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

template <typename T>
class ScalarDecay {
 public:
  static constexpr bool kPerChannel = false;

  ScalarDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : item_(item),
        shape_(shape),
        log_decay_(space.Array<T>(kDeltaChunkSize)),
        entry_(space.Array<T>(kDeltaChunkSize)),
        exit_(space.Array<T>(kDeltaChunkSize)),
        weights_(space.Matrix<T>(kDeltaChunkSize, kDeltaChunkSize)),
        through_(space.Array<T>(shape.keys_padded)),
        over_rows_(space.Array<T>(backward ? kDeltaChunkSize : 0)),
        over_columns_(space.Array<T>(backward ? kDeltaChunkSize * kLanes<T> : 0)),
        late_(space.Array<T>(backward ? kDeltaChunkSize * kLanes<T> : 0)),
        early_(space.Array<T>(backward ? kDeltaChunkSize * kLanes<T> : 0)) {}

  const T* through() const { return through_; }  // Gamma, repeated for every key

  void DecayTables(const ChunkEntry& chunk) {
    const bool constant = item_.args->decay == DeltaDecay::kNone;
    if (constant && chunk.length == length_) return;
    length_ = chunk.length;
    rows_ = RoundUp(length_, kTile);
    for (int r = 0; r < rows_; ++r) log_decay_[r] = 0;
    if (!constant) {
      const RowsOf rows = ValueRows(item_, item_.args->log_decay, chunk);
      for (int r = 0; r < length_; ++r) log_decay_[r] = *rows.template Row<const T>(r);
    }
    T prefix[kDeltaChunkSize], suffix[kDeltaChunkSize], total[kDeltaChunkSize / kTile];
    SumWithinTiles(prefix, suffix, total);
    EntriesAndExits(prefix, suffix, total);
    WeightsBetweenTiles(prefix, suffix, total);
    WeightsWithinTiles();
  }

  void ScaleReader(const Operands<T>& x, const Reader<T>& reader) const {
    Scale(x, reader.x, reader.entry, entry_);
  }
  void ScaleKeys(const Operands<T>& x) const { Scale(x, x.k, x.k_exit, exit_); }

  // Computes the scores x_r w_rs k_s of readers `first` to `last`.
  void Scores(const Operands<T>& x, ReaderIndex first, ReaderIndex last) const {
    for (int i = first; i <= last; ++i) {
      const Reader<T>& reader = x.readers[i];
      ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
        SquareTile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(reader.x, row, x.k_transposed, column, 0, shape_.keys);
        tile.ForEach([&](Vec<T>& score, int r, int j) HL_INLINE_LAMBDA {
          score = Weigh(score, row + r, column + j, reader.strict);
        });
        tile.Store(reader.scores, row, column);
      });
    }
  }

  // dscores_rs = dread_r . u_s w_rs. Also sums scores_rs (dread_r . u_s) below the diagonal, over
  // rows and over columns, and clears the other sums of the decay's gradient.
  void PairGradients(const Operands<T>& x) {
    for (int i = 0; i < x.rows * kLanes<T>; i += kLanes<T>)
      At(over_columns_ + i) = At(late_ + i) = At(early_ + i) = Vec<T>{};
    for (int i = 0; i < x.rows; i += kLanes<T>) At(over_rows_ + i) = Vec<T>{};
    for (const Reader<T>& reader : x.readers) {
      ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
        SquareTile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(reader.dread, row, x.u_transposed, column, 0, shape_.values);
        const T* scores = reader.scores.Row(row, column);
        tile.ForEach([&](Vec<T>& dscore, int r, int j) HL_INLINE_LAMBDA {
          const Vec<T> below = LaneNumbers<T>() + T(column + j);
          const Vec<T> product = At(scores + r * kPanel + j) * dscore;
          const Vec<T> counted = below < Vec<T>{} + T(row + r) ? product : Vec<T>{};
          At(over_columns_ + (row + r) * kLanes<T>) += counted;
          At(over_rows_ + column + j) += counted;
          dscore = Weigh(dscore, row + r, column + j, reader.strict);
        });
        tile.Store(reader.dscores, row, column);
      });
    }
  }

  // dx_r = P_r (S dread_r) + sum_s dscores_rs k_s, for both readers.
  void ReaderGradients(const Operands<T>& x, const Panels<T>& state_transposed) {
    for (const Reader<T>& reader : x.readers)
      ForTiles<Tile<T>>(x.rows, shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
        Tile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(reader.dread, row, state_transposed, column, 0, shape_.values);
        tile.ScaleRows(entry_ + row);
        AddDots(tile, reader.x, row, column, late_);
        tile.MultiplyAdd(reader.dscores, row, x.k, column, 0, row + Tile<T>::kRows);
        tile.Store(reader.dx, row, column);
      });
  }
  // Adds to dx of the keys: dk_s += Q_s (R u_s) + sum over both readers and r of dscores_rs x_r.
  void KeyGradient(const Operands<T>& x, const Panels<T>& adjoint_transposed) {
    const Panels<T>& dk = x.readers[kKey].dx;
    ForTiles<Tile<T>>(x.rows, shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.u, row, adjoint_transposed, column, 0, shape_.values);
      tile.ScaleRows(exit_ + row);
      AddDots(tile, x.k, row, column, early_);
      for (const Reader<T>& reader : x.readers)
        tile.MultiplyAddTransposed(reader.dscores, row, reader.x, column, row, x.rows);
      T* sums = dk.Row(row, column);
      tile.ForEach([&](Vec<T>& sum, int r, int j)
                       HL_INLINE_LAMBDA { At(sums + r * kPanel + j) += sum; });
    });
  }

  // dg_t = sum_{r >= t} (h_r + late_r) + sum_{s < t} early_s + Gamma sum(S R), where h is the
  // difference of the sums of PairGradients, and late and early are the dots of the gradients that
  // go through the states. No term is a difference of sums over the sequence.
  void DecayGradient(const Operands<T>& x, const Panels<T>& state_transposed,
                     const Panels<T>& adjoint_transposed, const ChunkEntry& chunk,
                     const RowsOf& dlog_decay) {
    Vec<T> products = {};
    for (int column = 0; column < shape_.keys_padded; column += kPanel)
      for (int i = 0; i < shape_.values; ++i)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          products +=
              At(state_transposed.Row(i, column) + j) * At(adjoint_transposed.Row(i, column) + j);
    T from_late = through_[0] * Sum<T>(products);
    T late[kDeltaChunkSize];
    for (int t = x.length - 1; t >= 0; --t) {
      from_late += Sum<T>(At(over_columns_ + t * kLanes<T>)) - over_rows_[t] +
                   Sum<T>(At(late_ + t * kLanes<T>));
      late[t] = from_late;
    }
    T from_early = 0;
    for (int t = 0; t < x.length; ++t) {
      // Where no earlier state is left, the terms that cross t cancel only up to rounding.
      const bool cut = log_decay_[t] == -static_cast<T>(__builtin_inff()) ||
                       (t == 0 && (chunk.flags & kChunkResets) != 0);
      *dlog_decay.template Row<T>(t) = cut ? T(0) : late[t] + from_early;
      from_early += Sum<T>(At(early_ + t * kLanes<T>));
    }
  }

 private:
  // prefix[r] sums tile's start .. r, suffix[s] sums s+1 .. tile's end, total is the tile's sum.
  void SumWithinTiles(T* prefix, T* suffix, T* total) const {
    for (int i = 0; i < rows_; i += kTile) {
      T sum = 0;
      for (int r = i; r < i + kTile; ++r) prefix[r] = sum += log_decay_[r];
      total[i / kTile] = sum;
      sum = 0;
      for (int s = i + kTile - 1; s >= i; --s) {
        suffix[s] = sum;
        sum += log_decay_[s];
      }
    }
  }
  void EntriesAndExits(const T* prefix, const T* suffix, const T* total) {
    T before = 0, after = 0;
    for (int i = 0; i < rows_; i += kTile) {
      for (int r = i; r < i + kTile; ++r) entry_[r] = before + prefix[r];
      before += total[i / kTile];
    }
    for (int i = rows_ - kTile; i >= 0; i -= kTile) {
      for (int s = i; s < i + kTile; ++s) exit_[s] = suffix[s] + after;
      after += total[i / kTile];
    }
    ExpAll(entry_, rows_);
    ExpAll(exit_, rows_);
    const Vec<T> decay = Exp(Vec<T>{} + before);
    for (int i = 0; i < shape_.keys_padded; i += kLanes<T>) At(through_ + i) = decay;
  }
  void WeightsBetweenTiles(const T* prefix, const T* suffix, const T* total) const {
    alignas(64) T columns[kDeltaChunkSize], factors[kTile];
    for (int i = kTile; i < rows_; i += kTile) {
      T between = 0;
      for (int j = i - kTile; j >= 0; j -= kTile) {
        for (int s = j; s < j + kTile; ++s) columns[s] = suffix[s] + between;
        between += total[j / kTile];
      }
      for (int r = 0; r < kTile; ++r) factors[r] = prefix[i + r];
      ExpAll(columns, i);
      ExpAll(factors, kTile);
      for (int r = 0; r < kTile; ++r)
        for (int s = 0; s < i; s += kLanes<T>)
          At(weights_.Row(i + r, s)) = At(columns + s) * factors[r];
    }
  }
  void WeightsWithinTiles() const {
    for (int i = 0; i < rows_; i += kTile)
      for (int j = 0; j < kTile; j += kLanes<T>) {
        const Vec<T> column = LaneNumbers<T>() + T(j);
        Vec<T> sums = {};
        for (int r = 0; r < kTile; ++r) {
          const Vec<T> row = Vec<T>{} + T(r);
          sums = column < row ? sums + log_decay_[i + r] : Vec<T>{};
          At(weights_.Row(i + r, i + j)) = column <= row ? Exp(sums) : Vec<T>{};
        }
      }
  }
  static void ExpAll(T* values, int count) {
    for (int i = 0; i < count; i += kLanes<T>) At(values + i) = Exp(At(values + i));
  }

  // Selects instead of multiplying by 0: a score with a weight of 0 may have overflowed to
  // infinity.
  HL_INLINE Vec<T> Weigh(const Vec<T>& score, int row, int column, bool strict) const {
    const Vec<T> weight = At(weights_.Row(row, column));
    const Vec<T> weighted = weight > Vec<T>{} ? score * weight : Vec<T>{};
    if (!strict) return weighted;
    return LaneNumbers<T>() + T(column) < Vec<T>{} + T(row) ? weighted : Vec<T>{};
  }
  void Scale(const Operands<T>& x, const Panels<T>& from, const Panels<T>& to,
             const T* factors) const {
    for (int column = 0; column < shape_.keys_padded; column += kPanel)
      for (int r = 0; r < x.rows; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(to.Row(r, column) + j) = At(from.Row(r, column) + j) * factors[r];
  }
  // dots[r] += x_r . tile_r, as a vector of partial sums per row.
  HL_INLINE void AddDots(Tile<T>& tile, const Panels<T>& x, int row, int column, T* dots) const {
    const T* values = x.Row(row, column);
    tile.ForEach([&](Vec<T>& y, int r, int j) HL_INLINE_LAMBDA {
      At(dots + (row + r) * kLanes<T>) += At(values + r * kPanel + j) * y;
    });
  }

  const ScanItem& item_;
  const Shape& shape_;
  int length_ = -1, rows_ = 0;
  T* log_decay_;                      // [C]
  T *entry_, *exit_;                  // [C]: P and Q
  Panels<T> weights_;                 // [C, C]: w, and 0 above the diagonal
  T* through_;                        // [K]
  T* over_rows_;                      // [C]
  T *over_columns_, *late_, *early_;  // [C, lanes]: partial sums
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
