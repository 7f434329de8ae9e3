// The decays of one chunk with one factor per token and key channel, multiplied into the operands
// in tiles of 16 tokens. Shared by decay attention and the delta rule. Every factor lies between 1
// and the weight that it is part of, so factors never overflow, and none is an inverse or a
// difference of running sums. With w_rs the decay from token s to a later token r:
//
//   tiles i > j:  w_rs = prefix_r through_{j+1} .. through_{i-1} suffix_s
//     prefix_r = exp(sum over tile i's start .. r), suffix_s = exp(sum over s+1 .. tile j's end),
//         through_i = exp(tile's sum)
//   tile i = j:   k_s (or x_r) times the decays of the tokens in between, one at a time, at most 15
//
// For row tile i, the keys of all earlier tiles carry their suffix and the tiles in between: each
// step of i multiplies one more factor into the keys, in place (`Cascade`). Between tiles and
// between chunks, sums are exponentiated; factors are not chained.
//
// A `reader` is a row that reads the state: a query, or a key of the delta rule. Rows from the
// chunk's length to rows() are zero. Compiled per instruction set
// (kernels/common/cpu/isa_target.h).
#pragma once

#include "kernels/common/cpu/chunk_rows.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// The tile size in tokens at which weights are formed and triangular products are skipped.
constexpr int kDecayTile = 16;

template <typename T>
HL_INLINE void MultiplyBy(Tile<T>& tile, const T* factors) {
  tile.ForEach([&](Vec<T>& x, int r, int j)
                   HL_INLINE_LAMBDA { x *= At(factors + r * kPanel + j); });
}
// Returns x where column <= row (column < row if `strict`), and 0 elsewhere. `column` is the first
// lane's.
template <typename T>
HL_INLINE Vec<T> CausalLanes(const Vec<T>& x, int row, int column, bool strict) {
  const Vec<T> lanes = LaneNumbers<T>() + T(column), last = Vec<T>{} + T(row);
  const Vec<T> below = lanes < last ? x : Vec<T>{};
  return strict ? below : (lanes <= last ? x : Vec<T>{});
}

template <typename T>
class ChannelTiles {
 public:
  // For chunks of at most `capacity` tokens, a multiple of kDecayTile, and `keys` channels. The
  // panels have keys_padded columns.
  ChannelTiles(int capacity, int keys, int keys_padded, ScratchSpace& space)
      : keys_(keys), keys_padded_(keys_padded) {
    const int tiles = capacity / kDecayTile;
    log_decay_ = space.Matrix<T>(capacity, keys_padded);
    decay_ = space.Matrix<T>(capacity, keys_padded);
    prefix_ = space.Matrix<T>(capacity, keys_padded);
    suffix_ = space.Matrix<T>(capacity, keys_padded);
    through_tile_ = space.Matrix<T>(tiles, keys_padded);
    before_tile_ = space.Matrix<T>(tiles, keys_padded);
    after_tile_ = space.Matrix<T>(tiles, keys_padded);
    through_ = space.Array<T>(keys_padded);
    log_through_ = space.Array<T>(keys_padded);
    k_suffix_ = space.Matrix<T>(capacity, keys_padded);
    k_suffix_transposed_ = space.Matrix<T>(keys_padded, capacity);
  }

  // Computes all tables from the first `length` rows of log decays [C, K].
  void Load(const RowsOf& log_decay, int length) {
    rows_ = RoundUp(length, kDecayTile);
    LoadRows(log_decay, length, rows_, keys_, T(1), log_decay_);
    for (int column = 0; column < keys_padded_; column += kLanes<T>) {
      TilesOfLanes(column);
      for (int i = 0; i < rows_; i += kDecayTile) RowsOfTile(i, column);
    }
  }
  int rows() const { return rows_; }
  const Panels<T>& log_decay() const { return log_decay_; }  // [C, K]
  const T* through() const { return through_; }              // [K], the decay through the chunk
  T log_through(int key) const { return log_through_[key]; }
  // Factors of a row and the ones after it in its tile, from `column` on: to the row from its
  // tile's start, and from the row to its tile's end.
  const T* prefix(int row, int column) const { return prefix_.Row(row, column); }
  const T* suffix(int row, int column) const { return suffix_.Row(row, column); }
  // Factors of the row's tile: from the chunk's start to the tile, and from the tile to the chunk's
  // end.
  const T* before(int row, int column) const { return before_tile_.Row(row / kDecayTile, column); }
  const T* after(int row, int column) const { return after_tile_.Row(row / kDecayTile, column); }

  // prefixed_r = x_r decayed from its tile's start; entry_r = x_r decayed from the chunk's start.
  void ScaleReaders(const Panels<T>& x, const Panels<T>& prefixed, const Panels<T>& entry) const {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> scaled = At(x.Row(r, c)) * At(prefix(r, c));
      At(prefixed.Row(r, c)) = scaled;
      At(entry.Row(r, c)) = scaled * At(before(r, c));
    });
  }
  // exit_s = k_s decayed to the chunk's end. Keeps the keys decayed to their tile's end.
  void ScaleKeys(const Panels<T>& k, const Panels<T>& exit) const {
    ForVectors([&](int r, int c) HL_INLINE_LAMBDA {
      const Vec<T> scaled = At(k.Row(r, c)) * At(suffix(r, c));
      At(k_suffix_.Row(r, c)) = scaled;
      At(exit.Row(r, c)) = scaled * At(after(r, c));
    });
  }

  // ---- scores_rs = sum over channels of x_r w_rs k_s, for tiles i = 0, 16, .. of readers ----

  void BeginScores() const { Transpose(k_suffix_, k_suffix_transposed_, rows_, keys_padded_); }
  // Call once per tile, in order, before ScoresOfTile.
  void AdvanceScores(int i) const {
    if (i < 2 * kDecayTile) return;
    for (int key = 0; key < keys_; ++key) {
      const T factor = *through_tile_.Row(i / kDecayTile - 1, key);
      for (int s = 0; s < i - kDecayTile; s += kLanes<T>)
        At(k_suffix_transposed_.Row(key, s)) *= factor;
    }
  }
  // Leaves out s = r if `strict`. `prefixed` is from ScaleReaders.
  void ScoresOfTile(int i, const Panels<T>& x, const Panels<T>& prefixed,
                    const Panels<T>& k_transposed, bool strict, RowsAhead& ahead,
                    const Panels<T>& scores) const {
    for (int column = 0; column < i; column += SquareTile<T>::kColumns)
      for (int row = i; row < i + kDecayTile; row += SquareTile<T>::kRows) {
        SquareTile<T> tile(ahead);
        tile.Clear();
        tile.MultiplyAdd(prefixed, row, k_suffix_transposed_, column, 0, keys_);
        tile.Store(scores, row, column);
      }
    for (int j = 0; j < kDecayTile; j += kLanes<T>)
      DiagonalScores(i, j, x, k_transposed, strict, scores);
  }

  // ---- dx_r = sum_{s < r} dscores_rs w_rs k_s, for tiles i = 0, 16, .. of readers ----

  // Call once per tile, in order, before ReaderGradientsOfTile.
  void AdvanceKeys(int i) const {
    if (i >= 2 * kDecayTile) Cascade(k_suffix_, 0, i - kDecayTile, i / kDecayTile - 1);
  }
  void ReaderGradientsOfTile(int i, const Panels<T>& dscores, const Panels<T>& k, RowsAhead& ahead,
                             const Panels<T>& dx) const {
    for (int column = 0; column < keys_padded_; column += Tile<T>::kColumns)
      for (int row = i; row < i + kDecayTile; row += Tile<T>::kRows) {
        Tile<T> tile(ahead);
        tile.Clear();
        tile.MultiplyAdd(dscores, row, k_suffix_, column, 0, i);
        MultiplyBy<T>(tile, prefix(row, column));
        tile.Store(dx, row, column);
      }
    for (int column = 0; column < keys_padded_; column += kLanes<T>)
      DiagonalReaders(i, column, dscores, k, dx);
  }

  // ---- dk_s = sum over readers and r > s of dscores_rs w_rs x_r, for tiles from the last on ----

  struct PairGradient {
    const Panels<T>& dscores;
    const Panels<T>& prefixed;  // AdvanceReaders modifies it.
    const Panels<T>& x;
  };
  // Call once per tile j and kind of reader, before KeyGradientsOfTile.
  void AdvanceReaders(int j, const Panels<T>& prefixed) const {
    if (j + 2 * kDecayTile < rows_)
      Cascade(prefixed, j + 2 * kDecayTile, rows_, j / kDecayTile + 1);
  }
  template <typename... Readers>
  void KeyGradientsOfTile(int j, RowsAhead& ahead, const Panels<T>& dk,
                          const Readers&... readers) const {
    for (int column = 0; column < keys_padded_; column += Tile<T>::kColumns)
      for (int row = j; row < j + kDecayTile; row += Tile<T>::kRows) {
        Tile<T> tile(ahead);
        tile.Clear();
        (tile.MultiplyAddTransposed(readers.dscores, row, readers.prefixed, column, j + kDecayTile,
                                    rows_),
         ...);
        MultiplyBy<T>(tile, suffix(row, column));
        tile.Store(dk, row, column);
      }
    const auto add_diagonal = [&](const auto& reader) {
      for (int column = 0; column < keys_padded_; column += kLanes<T>)
        DiagonalKeys(j, column, reader.dscores, reader.x, dk);
    };
    (add_diagonal(readers), ...);
  }

  // dg_t = sum_{r >= t} late_r + sum_{s < t} early_s + after, for the lanes from `column` on. It
  // replaces late. A decay of 0, and the first one of a document (`resets`), have a gradient of
  // exactly 0: the terms that cross such a token cancel only up to rounding.
  void DecayGradientOfLanes(int column, int length, bool resets, Vec<T> after,
                            const Panels<T>& early, const Panels<T>& late) const {
    const Vec<T> never = Vec<T>{} - static_cast<T>(__builtin_inff());
    for (int t = length - 1; t >= 0; --t)
      At(late.Row(t, column)) = after += At(late.Row(t, column));
    Vec<T> from_early = {};
    for (int t = 0; t < length; ++t) {
      const Vec<T> sum = At(late.Row(t, column)) + from_early;
      const bool start = t == 0 && resets;
      At(late.Row(t, column)) = !start && At(log_decay_.Row(t, column)) > never ? sum : Vec<T>{};
      from_early += At(early.Row(t, column));
    }
  }

 private:
  template <typename Function>
  HL_INLINE void ForVectors(Function function) const {
    for (int panel = 0; panel < keys_padded_; panel += kPanel)
      for (int r = 0; r < rows_; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>) function(r, panel + j);
  }

  // Returns the sum over half a tile, which starts at row `begin`.
  HL_INLINE Vec<T> SumOfHalf(int begin, int column) const {
    Vec<T> sum = {};
    for (int r = begin; r < begin + kDecayTile / 2; ++r) sum += At(log_decay_.Row(r, column));
    return sum;
  }
  // Computes the decays through each tile, before it and after it, for the lanes from `column` on.
  void TilesOfLanes(int column) {
    const int tiles = rows_ / kDecayTile;
    Vec<T> sum = {};
    for (int i = 0; i < tiles; ++i) {
      const Vec<T> total =
          SumOfHalf(i * kDecayTile, column) + SumOfHalf(i * kDecayTile + kDecayTile / 2, column);
      At(through_tile_.Row(i, column)) = Exp(total);
      At(before_tile_.Row(i, column)) = Exp(sum);
      At(after_tile_.Row(i, column)) = total;
      sum += total;
    }
    At(log_through_ + column) = sum;
    At(through_ + column) = Exp(sum);
    sum = Vec<T>{};
    for (int i = tiles - 1; i >= 0; --i) {
      const Vec<T> total = At(after_tile_.Row(i, column));
      At(after_tile_.Row(i, column)) = Exp(sum);
      sum += total;
    }
  }
  // Computes the decays of the rows of the tile from `begin` on. Factors are chained over at most 8
  // tokens.
  void RowsOfTile(int begin, int column) {
    const int middle = begin + kDecayTile / 2, end = begin + kDecayTile;
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

  void Cascade(const Panels<T>& rows, int begin, int end, int tile) const {
    for (int column = 0; column < keys_padded_; column += kLanes<T>) {
      const Vec<T> factor = At(through_tile_.Row(tile, column));
      for (int r = begin; r < end; ++r) At(rows.Row(r, column)) *= factor;
    }
  }

  // Computes the scores of diagonal tile i for one vector of keys from i + j on. Each key is
  // decayed once per row between it and the reader.
  void DiagonalScores(int i, int j, const Panels<T>& x, const Panels<T>& k_transposed, bool strict,
                      const Panels<T>& scores) const {
    const Vec<T> lanes = LaneNumbers<T>() + T(j);
    Vec<T> sums[kDecayTile] = {};
    for (int key = 0; key < keys_; ++key) {
      Vec<T> k = At(k_transposed.Row(key, i + j));
      const T *values = x.Row(i, key), *decay = decay_.Row(i, key);
#pragma GCC unroll 16
      for (int r = 0; r < kDecayTile; ++r) {
        if (r > 0) {
          const Vec<T> decayed = k * decay[r * kPanel];
          k = lanes < Vec<T>{} + T(r) ? decayed : k;
        }
        sums[r] += values[r * kPanel] * k;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kDecayTile; ++r)
      At(scores.Row(i + r, i + j)) = CausalLanes<T>(sums[r], r, j, strict);
  }
  // dx_r += sum_{s < r} dscores_rs w_rs k_s within tile i.
  void DiagonalReaders(int i, int column, const Panels<T>& dscores, const Panels<T>& k,
                       const Panels<T>& dx) const {
    const T *key = k.Row(i, column), *decay = decay_.Row(i, column), *pairs = dscores.Row(i, i);
    T* const to = dx.Row(i, column);
    Vec<T> sums[kDecayTile];
#pragma GCC unroll 16
    for (int r = 1; r < kDecayTile; ++r) sums[r] = At(to + r * kPanel);
#pragma GCC unroll 16
    for (int s = 0; s < kDecayTile - 1; ++s) {
      Vec<T> decayed = At(key + s * kPanel);
#pragma GCC unroll 16
      for (int r = s + 1; r < kDecayTile; ++r) {
        decayed *= At(decay + r * kPanel);
        sums[r] += pairs[r * kPanel + s] * decayed;
      }
    }
#pragma GCC unroll 16
    for (int r = 1; r < kDecayTile; ++r) At(to + r * kPanel) = sums[r];
  }
  // dk_s += sum_{r > s} dscores_rs w_rs x_r within tile i.
  void DiagonalKeys(int i, int column, const Panels<T>& dscores, const Panels<T>& x,
                    const Panels<T>& dk) const {
    const T *values = x.Row(i, column), *decay = decay_.Row(i, column), *pairs = dscores.Row(i, i);
    T* const to = dk.Row(i, column);
    Vec<T> sums[kDecayTile] = {};
#pragma GCC unroll 16
    for (int r = kDecayTile - 1; r > 0; --r) {
      const Vec<T> row = At(values + r * kPanel), factor = At(decay + r * kPanel);
#pragma GCC unroll 16
      for (int s = 0; s < r; ++s) sums[s] = (sums[s] + pairs[r * kPanel + s] * row) * factor;
    }
#pragma GCC unroll 16
    for (int s = 0; s < kDecayTile - 1; ++s) At(to + s * kPanel) += sums[s];
  }

  const int keys_, keys_padded_;
  int rows_ = 0;
  Panels<T> log_decay_, decay_;                        // [C, K]
  Panels<T> prefix_, suffix_;                          // [C, K]
  Panels<T> through_tile_, before_tile_, after_tile_;  // [tiles, K]
  T *through_, *log_through_;                          // [K]
  Panels<T> k_suffix_;                                 // [C, K]; AdvanceKeys modifies it
  Panels<T> k_suffix_transposed_;                      // [K, C]; AdvanceScores modifies it
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
