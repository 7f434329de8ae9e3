// Decays with one factor per token. They scale finished tiles of scores. Every weight is the
// exponential of a sum over exactly its own range, or the product of two such weights with adjacent
// ranges. So -inf (a weight of 0) needs no special case:
//
//   w_rs = exp(sum of log_decay over s+1 .. r)
//        = exp(tile of r begins .. r) exp(s+1 .. tile of r begins - 1)     s in an earlier tile
#pragma once

#include "kernels/decay_attention/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// The operands of one chunk. Rows from `length` to `rows` (rounded up to whole tiles) are zero.
template <typename T>
struct Operands {
  int length = 0, rows = 0;
  Panels<T> q, k, v, dout;    // q times scale, k times key_scale
  Panels<T> k_transposed;     // [K, C]
  Panels<T> v_transposed;     // [V, C]
  Panels<T> q_entry, k_exit;  // q_r P_r and k_s Q_s: decayed from the chunk's start, and to its end
  Panels<T> scores, dscores;  // [C, C]; undefined above the diagonal tiles
  mutable RowsAhead ahead;    // prefetches for the next chunks; does not affect values
};

// Where gradients of log_decay go: rows of the caller's tensor (decay per token) or sums over
// tokens (constant decay).
struct DecaySink {
  RowsOf rows;
  bool per_token = false;
  double* dlambda = nullptr;
  bool wanted() const { return per_token || dlambda != nullptr; }
};

template <typename T>
class ScalarDecay {
 public:
  ScalarDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : args_(*item.args),
        head_(item.head),
        keys_(shape.keys),
        keys_padded_(shape.keys_padded),
        columns_(shape.columns),
        capacity_(shape.chunk_rows),
        log_decay_(space.Array<T>(capacity_)),
        entry_(space.Array<T>(capacity_)),
        exit_(space.Array<T>(capacity_)),
        row_factor_(space.Array<T>(capacity_)),
        column_factor_(space.Array<T>(capacity_ / kTile * capacity_)),
        diagonal_(space.Array<T>(capacity_ * kTile)),
        through_(space.Array<T>(keys_padded_)),
        row_sums_(space.Array<T>(backward ? 4 * capacity_ * kLanes<T> : 0)) {}

  // exp(sum of log_decay over the chunk), repeated for every key; and the sum itself.
  const T* through() const { return through_; }
  T log_through(int /*key*/) const { return log_through_; }
  // Returns true if a token's decay is 0. The sum does not show it if another decay is NaN.
  bool cuts(int /*key*/) const {
    for (int r = 0; r < length_; ++r)
      if (log_decay_[r] == -static_cast<T>(__builtin_inff())) return true;
    return false;
  }

  void DecayTables(const ChunkEntry& chunk) {
    if (!IsPerToken(args_.decay_kind) && chunk.length == length_) return;
    length_ = chunk.length;
    rows_ = RoundUp(length_, kTile);
    LoadLogDecay(chunk);
    T prefix[kMaxChunkSize], suffix[kMaxChunkSize], total[kMaxChunkSize / kTile];
    SumWithinTiles(prefix, suffix, total);
    const int tiles = rows_ / kTile;
    T before = 0, after = 0;
    for (int i = 0; i < tiles; ++i) {
      for (int r = i * kTile; r < (i + 1) * kTile; ++r) entry_[r] = before + prefix[r];
      before += total[i];
    }
    log_through_ = before;
    for (int i = tiles - 1; i >= 0; --i) {
      for (int s = i * kTile; s < (i + 1) * kTile; ++s) exit_[s] = suffix[s] + after;
      after += total[i];
    }
    for (int r = 0; r < rows_; ++r) row_factor_[r] = prefix[r];
    for (int i = 1; i < tiles; ++i) {
      T between = 0;
      for (int j = i - 1; j >= 0; --j) {
        T* factors = column_factor_ + i * capacity_ + j * kTile;
        for (int s = 0; s < kTile; ++s) factors[s] = suffix[j * kTile + s] + between;
        between += total[j];
      }
      ExpAll(column_factor_ + i * capacity_, i * kTile);
    }
    ExpAll(entry_, rows_);
    ExpAll(exit_, rows_);
    ExpAll(row_factor_, rows_);
    DiagonalWeights();
    const Vec<T> one = {};
    const Vec<T> decay = Exp(one + log_through_);
    for (int i = 0; i < keys_padded_; i += kLanes<T>) At(through_ + i) = decay;
  }

  void ScaleQueries(const Operands<T>& x) const { Scale(x, x.q, x.q_entry, entry_); }
  void ScaleKeys(const Operands<T>& x) const { Scale(x, x.k, x.k_exit, exit_); }

  // A_rs = q_r . k_s w_rs
  void IntraTile(const Operands<T>& x) const {
    ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
      SquareTile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.q, row, x.k_transposed, column, 0, keys_);
      tile.ForEach([&](Vec<T>& score, int r, int j)
                       HL_INLINE_LAMBDA { score = Weigh(score, row + r, column + j); });
      tile.Store(x.scores, row, column);
    });
  }

  // D_rs = do_r . v_s w_rs. Also sums M = A (do v^T) below the diagonal, over rows and over
  // columns.
  void IntraTileBackward(const Operands<T>& x) {
    T* over_columns = row_sums_;
    T* over_rows = row_sums_ + capacity_ * kLanes<T>;
    for (int i = 0; i < x.rows * kLanes<T>; i += kLanes<T>) At(over_columns + i) = Vec<T>{};
    for (int i = 0; i < x.rows; i += kLanes<T>) At(over_rows + i) = Vec<T>{};
    ForLowerTiles<SquareTile<T>>(x.rows, [&](int row, int column) HL_INLINE_LAMBDA {
      SquareTile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.dout, row, x.v_transposed, column, 0, columns_);
      const T* scores = x.scores.Row(row, column);
      const bool diagonal = row / kTile == column / kTile;
      tile.ForEach([&](Vec<T>& dscore, int r, int j) HL_INLINE_LAMBDA {
        Vec<T> product = At(scores + r * kPanel + j) * dscore;
        if (diagonal)
          product = LaneNumbers<T>() + T(column + j) < Vec<T>{} + T(row + r) ? product : Vec<T>{};
        At(over_columns + (row + r) * kLanes<T>) += product;
        At(over_rows + column + j) += product;
        dscore = Weigh(dscore, row + r, column + j);
      });
      tile.Store(x.dscores, row, column);
    });
  }

  // dq_r = P_r (S do_r) + sum_{s <= r} D_rs k_s. store(tile, row, column) completes each tile.
  template <typename Store>
  void QueryGradient(const Operands<T>& x, const Panels<T>& state_transposed, Store store) {
    T* dots = row_sums_ + 2 * capacity_ * kLanes<T>;
    ForTiles<Tile<T>>(x.rows, keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.dout, row, state_transposed, column, 0, columns_);
      tile.ScaleRows(entry_ + row);
      AddDots(tile, x.q, row, column, dots);
      tile.MultiplyAdd(x.dscores, row, x.k, column, 0, row + Tile<T>::kRows);
      store(tile, row, column);
    });
  }
  // dk_s = Q_s (R v_s) + sum_{r >= s} D_rs q_r
  template <typename Store>
  void KeyGradient(const Operands<T>& x, const Panels<T>& adjoint_transposed, Store store) {
    T* dots = row_sums_ + 3 * capacity_ * kLanes<T>;
    ForTiles<Tile<T>>(x.rows, keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.v, row, adjoint_transposed, column, 0, columns_);
      tile.ScaleRows(exit_ + row);
      AddDots(tile, x.k, row, column, dots);
      tile.MultiplyAddTransposed(x.dscores, row, x.q, column, row, x.rows);
      store(tile, row, column);
    });
  }

  // dg_t = sum_{r >= t} (h_r + x_r) + sum_{s < t} y_s + E, where h is the difference of the sums
  // that IntraTileBackward left, x = q . dq and y = k . dk for the parts that go through the
  // states, and E = G sum(S R). No term is a difference of sums over the sequence.
  void DecayGradient(const Operands<T>& x, const Panels<T>& state_transposed,
                     const Panels<T>& adjoint_transposed, const DecaySink& sink) {
    Vec<T> products = {};
    for (int column = 0; column < keys_padded_; column += kPanel)
      for (int i = 0; i < columns_; ++i)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          products +=
              At(state_transposed.Row(i, column) + j) * At(adjoint_transposed.Row(i, column) + j);
    const T whole = through_[0] * Sum<T>(products);
    const T* over_rows = row_sums_ + capacity_ * kLanes<T>;
    T late[kMaxChunkSize], early[kMaxChunkSize], h[kMaxChunkSize];
    for (int r = 0; r < x.length; ++r) {
      h[r] = Sum<T>(At(row_sums_ + r * kLanes<T>)) - over_rows[r];
      late[r] = Sum<T>(At(row_sums_ + (2 * capacity_ + r) * kLanes<T>));
      early[r] = Sum<T>(At(row_sums_ + (3 * capacity_ + r) * kLanes<T>));
    }
    if (sink.dlambda != nullptr) {
      double sum = x.length * static_cast<double>(whole);
      for (int r = 0; r < x.length; ++r)
        sum +=
            static_cast<double>(r) * h[r] + (r + 1.0) * late[r] + (x.length - 1.0 - r) * early[r];
      if (log_decay_[0] > -__builtin_inff()) *sink.dlambda += sum;
    }
    if (!sink.per_token) return;
    T from_late = whole;
    for (int t = x.length - 1; t >= 0; --t) {
      from_late += h[t] + late[t];
      late[t] = from_late;
    }
    T from_early = 0;
    for (int t = 0; t < x.length; ++t) {
      // A decay of 0 has a gradient of exactly 0. In h, the terms that cross t cancel only up to
      // rounding.
      *sink.rows.template Row<T>(t) =
          log_decay_[t] > -__builtin_inff() ? late[t] + from_early : T(0);
      from_early += early[t];
    }
  }

 private:
  void LoadLogDecay(const ChunkEntry& chunk) {
    for (int r = 0; r < rows_; ++r) log_decay_[r] = 0;
    if (args_.decay_kind == DecayKind::kNone) return;
    if (IsPerToken(args_.decay_kind)) {
      const RowsOf rows(args_.log_decay, chunk, head_, args_.num_heads, args_.num_decay_heads);
      for (int r = 0; r < length_; ++r) log_decay_[r] = *rows.template Row<const T>(r);
    } else {
      const int64_t shared = int64_t{1} * head_ * args_.num_decay_heads / args_.num_heads;
      const T value =
          static_cast<const T*>(args_.log_decay.data)[shared * args_.log_decay.stride_h];
      for (int r = 0; r < length_; ++r) log_decay_[r] = value;
    }
  }

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
  static void ExpAll(T* values, int count) {
    for (int i = 0; i < count; i += kLanes<T>) At(values + i) = Exp(At(values + i));
  }
  // w_rs within each diagonal tile; 0 above the diagonal.
  void DiagonalWeights() {
    for (int row = 0; row < rows_; row += kTile) {
      for (int j = 0; j < kTile; j += kLanes<T>) {
        const Vec<T> column = LaneNumbers<T>() + T(j);
        Vec<T> sums = {};
        for (int r = 0; r < kTile; ++r) {
          const Vec<T> at = Vec<T>{} + T(r);
          sums = column < at ? sums + log_decay_[row + r] : Vec<T>{};
          At(diagonal_ + (row + r) * kTile + j) = column <= at ? Exp(sums) : Vec<T>{};
        }
      }
    }
  }
  // Selects instead of multiplying by 0: a score with a weight of 0 may have overflowed to
  // infinity.
  HL_INLINE Vec<T> Weigh(const Vec<T>& score, int row, int column) const {
    const int tile = row / kTile;
    const Vec<T> weight = tile == column / kTile
                              ? At(diagonal_ + row * kTile + column % kTile)
                              : At(column_factor_ + tile * capacity_ + column) * row_factor_[row];
    return weight > Vec<T>{} ? score * weight : Vec<T>{};
  }
  void Scale(const Operands<T>& x, const Panels<T>& from, const Panels<T>& to,
             const T* factors) const {
    for (int column = 0; column < keys_padded_; column += kPanel)
      for (int r = 0; r < x.rows; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(to.Row(r, column) + j) = At(from.Row(r, column) + j) * factors[r];
  }
  // dots[r] += x_r . tile_r, as a vector of partial sums per row.
  HL_INLINE void AddDots(Tile<T>& tile, const Panels<T>& x, int row, int column, T* dots) const {
    const T* values = x.Row(row, column);
    if (column == 0)
      for (int r = 0; r < Tile<T>::kRows; ++r) At(dots + (row + r) * kLanes<T>) = Vec<T>{};
    tile.ForEach([&](Vec<T>& y, int r, int j) HL_INLINE_LAMBDA {
      At(dots + (row + r) * kLanes<T>) += At(values + r * kPanel + j) * y;
    });
  }

  const DecayAttentionArgs& args_;
  const int head_, keys_, keys_padded_, columns_, capacity_;
  int length_ = -1, rows_ = 0;
  T log_through_ = 0;
  T* log_decay_;                    // [C]
  T *entry_, *exit_;                // [C]: P and Q
  T *row_factor_, *column_factor_;  // [C], [tiles, C]
  T* diagonal_;                     // [C, kTile]
  T* through_;                      // [K]: G
  T* row_sums_;                     // 4 x [C, lanes]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
