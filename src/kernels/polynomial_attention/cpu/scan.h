// The scan over a sequence's chunks. All passes are computed with one trilinear form,
//
//   L = sum over s <= r of kappa(q_r . k_s) (dn_r . v_s + dz_r),
//
// which is unchanged if the sides (q; dn, dz) and (k; v, 1) are exchanged and time is reversed.
// With x the side whose tokens get results, and y the other side:
//
//   forward         x = q             y = (k; v, 1)     ascending    out = n, z
//   query gradient  x = (q; dn, dz)   y = (k; v, 1)     ascending    dx = dq
//   key gradient    x = (k; v, 1)     y = (q; dn, dz)   descending   dx = dk, out = dv
//
// The state S [F, V], u [F] is the sum of psi(y) W and psi(y) w over the y of previous chunks:
//
//   out_x = psi(x) S + sum_y kappa W_y,     z_x = psi(x) u + sum_y kappa w_y
//   dpsi_x = S E_x + u e_x,   dx = J(x)^T dpsi_x + sum_y kappa' (W_y . E_x + w_y e_x) y
//
// So a backward needs no state of the forward: its two scans, in opposite directions, build their
// own. In the quadratic form, y is all of the document so far, and there is no state. Tokens of x,
// and the features of both sides, are along the lanes, so no product needs packing or transposing.
#pragma once

#include "kernels/polynomial_attention/cpu/feature_map.h"
#include "kernels/polynomial_attention/cpu/kernels.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial {

using cpu::polynomial::Pass;
using cpu::polynomial::ScanItem;

constexpr int kRowStep = 16;  // rows of products are multiples of this, for every tile shape

// A tile one vector wide, for columns of V that would not fill a wide tile.
template <typename T>
using NarrowTile = TileOf<T, 2 * Tile<T>::kRows, 1>;

// Calls body.operator()<Tile>(column) until `columns` columns are covered.
template <typename T, typename Body>
HL_INLINE void ForColumns(int columns, Body body) {
  int column = 0;
  for (; columns - column > kLanes<T>; column += Tile<T>::kColumns)
    body.template operator()<Tile<T>>(column);
  if (column < columns) body.template operator()<NarrowTile<T>>(column);
}

template <typename T>
Panels<T> FromRow(const Panels<T>& matrix, int row) {
  return {matrix.Row(row, 0), matrix.panel};
}
template <typename T>
Panels<T> FromColumn(const Panels<T>& matrix, int column) {
  return {matrix.Row(0, column), matrix.panel};
}

struct Sizes {
  int dim, values, features;  // d, V, F
  int dim_rows, value_rows, feature_rows;
  int chunk;  // tokens of a chunk, rounded up to whole panels
  int slots;  // number of chunks of y in memory

  Sizes(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan, int num_chunks)
      : dim(args.head_dim),
        values(args.head_dim_v),
        features(FeatureLayout(args.head_dim, args.weights).count),
        dim_rows(RoundUp(dim, kRowStep)),
        value_rows(RoundUp(values, kRowStep)),
        feature_rows(RoundUp(features, kRowStep)),
        chunk(RoundUp(plan.chunk_size, kPanel)),
        slots(plan.quadratic ? (num_chunks > 0 ? num_chunks : 1) : 1) {}
};

template <typename T, Pass kPass>
class Scan {
 public:
  static constexpr bool kOutputs = kPass != Pass::kQueryGradient;
  static constexpr bool kGradients = kPass != Pass::kForward;
  static constexpr bool kDescending = kPass == Pass::kKeyGradient;

  Scan(const PolynomialAttentionArgs& args, const Sizes& sizes, ScratchSpace& space)
      : args_(args),
        sizes_(sizes),
        layout_(args.head_dim, args.weights),
        x_map_(layout_, kDescending ? FeatureWeights() : QueryWeights(args.weights, args.scale)),
        y_map_(layout_, kDescending ? QueryWeights(args.weights, args.scale) : FeatureWeights()) {
    const int chunk = sizes.chunk, tokens = sizes.slots * chunk;
    rows_ = space.Matrix<T>(chunk, std::max(sizes.dim, sizes.values));
    x_ = space.Matrix<T>(sizes.dim_rows, chunk);
    y_ = space.Matrix<T>(sizes.dim_rows, tokens);
    y_values_ = space.Matrix<T>(tokens, sizes.values);
    y_weights_ = space.Array<T>(tokens);
    y_features_ = space.Matrix<T>(sizes.feature_rows, chunk);
    state_ = space.Matrix<T>(sizes.feature_rows, sizes.values);
    norm_ = space.Array<T>(sizes.feature_rows);
    z_ = space.Array<T>(chunk);
    if (kOutputs) {
      scores_ = space.Matrix<T>(tokens, chunk);
      x_features_ = space.Matrix<T>(sizes.feature_rows, chunk);
    }
    if (kGradients) {
      x_values_ = space.Matrix<T>(sizes.value_rows, chunk);
      x_weights_ = space.Array<T>(chunk);
      dscores_ = space.Matrix<T>(tokens, chunk);
      dfeatures_ = space.Matrix<T>(sizes.feature_rows, chunk);
      dx_ = space.Matrix<T>(sizes.dim_rows, chunk);
    }
  }

  // Returns true if the final state is not empty.
  bool Run(const ScanItem& item) {
    item_ = &item;
    live_ = false;
    if (!item.plan->quadratic) LoadState();
    int window = 0;  // index, in the scan's order, of the first chunk of y in the document
    const int count = item.end - item.begin;
    for (int i = 0; i < count; ++i) {
      const ChunkEntry& chunk = ChunkAt(i);
      const bool resets = (chunk.flags & kChunkResets) != 0;
      if (!kDescending && resets) {
        window = i;
        DropState();
      }
      const int slot = item.plan->quadratic ? i : 0;
      FetchRowsOf(i + 1 < count ? &ChunkAt(i + 1) : nullptr);
      LoadMet(chunk, slot);
      if (!item.state_only) ComputeFor(chunk, item.plan->quadratic ? window : 0, slot, i);
      if (kDescending && resets) {
        window = i + 1;
        DropState();
      } else if (!item.plan->quadratic && IsRead(i)) {
        UpdateState(chunk);
      }
    }
    StoreState();
    return live_;
  }

 private:
  const ChunkEntry& ChunkAt(int i) const {
    return args_.chunks[kDescending ? item_->end - 1 - i : item_->begin + i];
  }
  // Returns true if the state after chunk i of the scan is used.
  bool IsRead(int i) const {
    if (i + 1 == item_->end - item_->begin)
      return item_->exit_state != nullptr || item_->exit_norm != nullptr;
    return kDescending || (ChunkAt(i + 1).flags & kChunkResets) == 0;
  }
  RowsOf Rows(const TensorView& view, const ChunkEntry& chunk) const {
    return RowsOf(view, chunk, item_->head, args_.num_heads, args_.num_heads);
  }
  int64_t Token(const ChunkEntry& chunk, int token) const {
    return (int64_t{1} * chunk.row * args_.seq_len + chunk.token + token) * args_.num_heads +
           item_->head;
  }

  // ---- prefetches for the next chunk ----

  void FetchRowsOf(const ChunkEntry* chunk) {
    const int64_t area = Tile<T>::kRows * Tile<T>::kColumns;
    const int64_t products = int64_t{1} * sizes_.feature_rows * sizes_.value_rows * sizes_.chunk;
    ahead_.Begin(products / area + 1);
    if (chunk == nullptr) return;
    const PolynomialAttentionGradArgs& grads = *item_->grads;
    const auto fetch = [&](const TensorView& view, int width) {
      Rows(view, *chunk).FetchAhead(ahead_, chunk->length, width);
    };
    fetch(kDescending ? args_.q : args_.k, sizes_.dim);
    if (!kDescending) fetch(args_.v, sizes_.values);
    if (item_->state_only) return;
    fetch(kDescending ? args_.k : args_.q, sizes_.dim);
    if (kDescending) fetch(args_.v, sizes_.values);
    if (kPass == Pass::kForward || args_.normalise) fetch(args_.out, sizes_.values);
    if (kGradients) fetch(grads.dout, sizes_.values);
    if (kPass == Pass::kQueryGradient) fetch(grads.dq, sizes_.dim);
    if (kPass == Pass::kKeyGradient) fetch(grads.dk, sizes_.dim);
    if (kPass == Pass::kKeyGradient) fetch(grads.dv, sizes_.values);
  }

  // ---- operands ----

  void LoadColumns(const TensorView& view, const ChunkEntry& chunk, const Panels<T>& to) {
    LoadRows(Rows(view, chunk), chunk.length, sizes_.chunk, sizes_.dim, T(1), rows_);
    Transpose(rows_, to, RoundUp(chunk.length, kPanel), sizes_.dim_rows);
  }
  void SetWeights(const ChunkEntry& chunk, T value, T* weights) const {
    for (int r = 0; r < sizes_.chunk; ++r) weights[r] = r < chunk.length ? value : T(0);
  }
  // Loads v [C, V], and ones.
  void LoadValues(const ChunkEntry& chunk, const Panels<T>& to, T* weights) const {
    LoadRows(Rows(args_.v, chunk), chunk.length, sizes_.chunk, sizes_.values, T(1), to);
    SetWeights(chunk, T(1), weights);
  }
  // Loads dn = do / (z + eps) [C, V] and dz = -(do . o) / (z + eps). Without the normaliser: do and
  // 0.
  void LoadOutputGradient(const ChunkEntry& chunk, const Panels<T>& to, T* weights) const {
    const RowsOf dout = Rows(item_->grads->dout, chunk);
    LoadRows(dout, chunk.length, sizes_.chunk, sizes_.values, T(1), to);
    SetWeights(chunk, T(0), weights);
    if (!args_.normalise) return;
    T inverse[cpu::polynomial::kMaxChunkSize];
    const RowsOf out = Rows(args_.out, chunk);
    WithStorage<T>(out.dtype, [&](auto sample) {
      using S = decltype(sample);
      for (int r = 0; r < chunk.length; ++r) {
        const S *o = out.Row<const S>(r), *gradient = dout.Row<const S>(r);
        inverse[r] = 1 / static_cast<const T*>(args_.norm_denom)[Token(chunk, r)];
        T delta = 0;
        for (int j = 0; j < sizes_.values; ++j) delta += Widen<T>(gradient[j]) * Widen<T>(o[j]);
        weights[r] = -delta * inverse[r];
      }
    });
    ScaleRows(to, chunk.length, sizes_.values, inverse);
  }

  // Loads side y into its slot.
  void LoadMet(const ChunkEntry& chunk, int slot) {
    const int token = slot * sizes_.chunk;
    LoadColumns(kDescending ? args_.q : args_.k, chunk, FromColumn(y_, token));
    if (kDescending) {
      LoadOutputGradient(chunk, FromRow(y_values_, token), y_weights_ + token);
    } else {
      LoadValues(chunk, FromRow(y_values_, token), y_weights_ + token);
    }
  }
  // Loads side x.
  void LoadOwn(const ChunkEntry& chunk) {
    LoadColumns(kDescending ? args_.k : args_.q, chunk, x_);
    if (!kGradients) return;
    if (kDescending) {
      LoadValues(chunk, rows_, x_weights_);
    } else {
      LoadOutputGradient(chunk, rows_, x_weights_);
    }
    Transpose(rows_, x_values_, RoundUp(chunk.length, kPanel), sizes_.value_rows);
  }

  // ---- the state ----

  void DropState() {
    if (live_) ClearState();
    live_ = false;
  }
  void ClearState() {
    Clear(state_, sizes_.feature_rows, sizes_.values);
    for (int f = 0; f < sizes_.feature_rows; ++f) norm_[f] = 0;
  }
  // Calls function(address, row, column, count) for the part of each row of [F, V] that is in each
  // panel.
  template <typename Function>
  void ForPieces(T* state, Function function) const {
    for (int f = 0; f < sizes_.features; ++f)
      for (int c = 0; c < sizes_.values; c += kPanel)
        function(state + int64_t{1} * f * sizes_.values + c, f, c,
                 sizeof(T) * std::min(kPanel, sizes_.values - c));
  }
  void LoadState() {
    // Clears the rows beyond F, which are never written.
    Clear(y_features_, sizes_.feature_rows, sizes_.chunk);
    ClearState();
    live_ = item_->entry_state != nullptr || item_->entry_norm != nullptr;
    if (item_->entry_state != nullptr)
      ForPieces(static_cast<T*>(const_cast<void*>(item_->entry_state)),
                [&](const T* piece, int f, int c, size_t bytes) {
                  __builtin_memcpy(state_.Row(f, c), piece, bytes);
                });
    const auto* norm = static_cast<const T*>(item_->entry_norm);
    for (int f = 0; norm != nullptr && f < sizes_.features; ++f) norm_[f] = norm[f];
  }
  void StoreState() const {
    if (item_->exit_state != nullptr)
      ForPieces(static_cast<T*>(item_->exit_state), [&](T* piece, int f, int c, size_t bytes) {
        __builtin_memcpy(piece, state_.Row(f, c), bytes);
      });
    auto* norm = static_cast<T*>(item_->exit_norm);
    for (int f = 0; norm != nullptr && f < sizes_.features; ++f) norm[f] = norm_[f];
  }
  // Updates S += psi(y) W and u += psi(y) w with the chunk in the first slot.
  void UpdateState(const ChunkEntry& chunk) {
    const int lanes = RoundUp(chunk.length, kPanel);
    y_map_.Build(y_, lanes, y_features_);
    ForColumns<T>(sizes_.values, [&]<typename Tile>(int column) HL_INLINE_LAMBDA {
      for (int row = 0; row < sizes_.feature_rows; row += Tile::kRows) {
        Tile tile(ahead_);
        const T* before = state_.Row(row, column);
        tile.ForEach([&](Vec<T>& sum, int r, int j)
                         HL_INLINE_LAMBDA { sum = At(before + r * kPanel + j); });
        tile.MultiplyAdd(y_features_, row, y_values_, column, 0, chunk.length);
        tile.Store(state_, row, column);
      }
    });
    for (int f = 0; f < sizes_.features && args_.normalise; ++f) {
      Vec<T> sum = {};
      for (int column = 0; column < lanes; column += kLanes<T>)
        sum += At(y_features_.Row(f, column)) * At(y_weights_ + column);
      norm_[f] += Sum<T>(sum);
    }
    live_ = true;
  }

  // ---- a chunk ----

  // Computes the results of chunk i of the scan from those in slots [first, slot], the last of
  // which is the chunk itself.
  void ComputeFor(const ChunkEntry& chunk, int first, int slot, int i) {
    LoadOwn(chunk);
    lanes_ = RoundUp(chunk.length, kPanel);
    for (int r = 0; r < sizes_.chunk; ++r) z_[r] = 0;
    if (kOutputs && live_) ReadFeatures();
    for (int met = first; met < slot; ++met) Scores<false>(met, ChunkAt(i - slot + met).length);
    Scores<true>(slot, chunk.length);
    if (kOutputs) Outputs(chunk, first, slot, i);
    if (kGradients) Gradients(chunk, first, slot, i);
  }

  // Computes psi(x), and the state's contribution to z.
  void ReadFeatures() {
    x_map_.Build(x_, lanes_, x_features_);
    if (kPass != Pass::kForward || !args_.normalise) return;
    for (int column = 0; column < lanes_; column += kPanel)
      for (int f = 0; f < sizes_.features; ++f)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(z_ + column + j) += At(x_features_.Row(f, column) + j) * norm_[f];
  }

  // Computes kappa [y, x] for outputs, or d(kappa) (W . E + w e) for gradients; 0 if y is after x
  // in the scan.
  template <bool kDiagonal>
  void Scores(int slot, int length) {
    const int token = slot * sizes_.chunk;
    const Panels<T> y = FromColumn(y_, token);
    const T scale = static_cast<T>(args_.scale), a0 = static_cast<T>(args_.weights.a0),
            a1 = static_cast<T>(args_.weights.a1), a2 = static_cast<T>(args_.weights.a2);
    ForTiles<Tile<T>>(RoundUp(length, kRowStep), lanes_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(ahead_);
      tile.Clear();
      tile.MultiplyAddTransposed(y, row, x_, column, 0, sizes_.dim);
      T* const scores = kOutputs ? scores_.Row(token + row, column) : nullptr;
      T* const slopes = kGradients ? dscores_.Row(token + row, column) : nullptr;
      tile.ForEach([&](Vec<T>& dot, int r, int j) HL_INLINE_LAMBDA {
        const Vec<T> s = dot * scale;
        if constexpr (kOutputs) {
          const Vec<T> kappa = Causal<kDiagonal>(s * (s * a2 + a1) + a0, row + r, column + j);
          At(scores + r * kPanel + j) = kappa;
          if constexpr (kPass == Pass::kForward)
            At(z_ + column + j) += kappa * y_weights_[token + row + r];
        }
        if constexpr (kGradients)
          At(slopes + r * kPanel + j) =
              Causal<kDiagonal>((s * (2 * a2) + a1) * scale, row + r, column + j);
      });
    });
    if constexpr (kGradients) ScoreGradients(token, length);
  }
  // Returns `value` for lanes from `column` on of row `row`, with zeros for tokens that must not
  // depend on it.
  template <bool kDiagonal>
  HL_INLINE static Vec<T> Causal(const Vec<T>& value, int row, int column) {
    if constexpr (!kDiagonal) return value;
    const Vec<T> x = LaneNumbers<T>() + T(column), y = Vec<T>{} + T(row);
    if constexpr (kDescending) return x <= y ? value : Vec<T>{};
    return x >= y ? value : Vec<T>{};
  }
  void ScoreGradients(int token, int length) {
    const Panels<T> values = FromRow(y_values_, token);
    ForTiles<Tile<T>>(RoundUp(length, kRowStep), lanes_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(ahead_);
      const T *of_y = y_weights_ + token + row, *of_x = x_weights_ + column;
      tile.ForEach([&](Vec<T>& sum, int r, int j)
                       HL_INLINE_LAMBDA { sum = At(of_x + j) * of_y[r]; });
      tile.MultiplyAdd(values, row, x_values_, column, 0, sizes_.values);
      T* const slopes = dscores_.Row(token + row, column);
      tile.ForEach([&](Vec<T>& gradient, int r, int j)
                       HL_INLINE_LAMBDA { At(slopes + r * kPanel + j) *= gradient; });
    });
  }

  // Computes out_x = psi(x) S + sum_y kappa W_y.
  void Outputs(const ChunkEntry& chunk, int first, int slot, int i) {
    const bool divide = kPass == Pass::kForward && args_.normalise;
    if (divide) StoreDenominators(chunk);
    const RowsOf out = Rows(kDescending ? item_->grads->dv : args_.out, chunk);
    const int own = slot * sizes_.chunk;
    const Panels<T> scores = FromRow(scores_, own), values = FromRow(y_values_, own);
    ForColumns<T>(sizes_.values, [&]<typename Tile>(int column) HL_INLINE_LAMBDA {
      for (int row = 0; row < chunk.length; row += Tile::kRows) {
        Tile tile(ahead_);
        tile.Clear();
        if (live_) tile.MultiplyAddTransposed(x_features_, row, state_, column, 0, sizes_.features);
        for (int met = first; met < slot; ++met)
          tile.MultiplyAddTransposed(FromRow(scores_, met * sizes_.chunk), row,
                                     FromRow(y_values_, met * sizes_.chunk), column, 0,
                                     ChunkAt(i - slot + met).length);
        if (kDescending) {
          tile.MultiplyAddUpperTransposed(scores, row, values, column);
          if (row + Tile::kRows < chunk.length)
            tile.MultiplyAddTransposed(scores, row, values, column, row + Tile::kRows,
                                       chunk.length);
        } else {
          tile.MultiplyAddTransposed(scores, row, values, column, 0, row);
          tile.MultiplyAddLowerTransposed(scores, row, values, column);
        }
        if (divide) tile.ForEach([&](Vec<T>& n, int r, int) HL_INLINE_LAMBDA { n /= z_[row + r]; });
        StoreTile<T>(tile, out, row, chunk.length, column, sizes_.values);
      }
    });
  }
  // Computes z + eps, also for padding, to avoid a division by zero there.
  void StoreDenominators(const ChunkEntry& chunk) {
    auto* const denominators = static_cast<T*>(args_.norm_denom);
    for (int r = 0; r < sizes_.chunk; ++r) z_[r] += static_cast<T>(args_.norm_eps);
    for (int r = 0; r < chunk.length && denominators != nullptr; ++r)
      denominators[Token(chunk, r)] = z_[r];
  }

  // Computes dx = J(x)^T (S E_x + u e_x) + sum_y kappa' (W_y . E_x + w_y e_x) y.
  void Gradients(const ChunkEntry& chunk, int first, int slot, int i) {
    if (live_) {
      FeatureGradients();
      x_map_.Backward(x_, dfeatures_, lanes_, dx_);
    } else {
      Clear(dx_, sizes_.dim_rows, lanes_);
    }
    ForTiles<Tile<T>>(sizes_.dim_rows, lanes_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(ahead_);
      const T* before = dx_.Row(row, column);
      tile.ForEach([&](Vec<T>& sum, int r, int j)
                       HL_INLINE_LAMBDA { sum = At(before + r * kPanel + j); });
      for (int met = first; met <= slot; ++met)
        tile.MultiplyAdd(FromColumn(y_, met * sizes_.chunk), row,
                         FromRow(dscores_, met * sizes_.chunk), column, 0,
                         ChunkAt(i - slot + met).length);
      tile.Store(dx_, row, column);
    });
    Transpose(dx_, rows_, sizes_.dim_rows, lanes_);
    StoreRows(rows_, Rows(kDescending ? item_->grads->dk : item_->grads->dq, chunk), 0,
              chunk.length, 0, sizes_.dim);
  }
  void FeatureGradients() {
    ForTiles<Tile<T>>(sizes_.feature_rows, lanes_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(ahead_);
      const T *norm = norm_ + row, *weights = x_weights_ + column;
      tile.ForEach([&](Vec<T>& sum, int r, int j)
                       HL_INLINE_LAMBDA { sum = At(weights + j) * norm[r]; });
      tile.MultiplyAdd(state_, row, x_values_, column, 0, sizes_.values);
      tile.Store(dfeatures_, row, column);
    });
  }

  const PolynomialAttentionArgs& args_;
  const Sizes sizes_;
  const FeatureLayout layout_;
  const FeatureMap<T> x_map_, y_map_;
  const ScanItem* item_ = nullptr;
  bool live_ = false;  // true: the state is not empty
  int lanes_ = 0;      // tokens of x, rounded up to whole panels
  RowsAhead ahead_;    // prefetches the next chunk; does not affect results

  Panels<T> rows_;                    // [C, d or V] in the caller's layout
  Panels<T> x_, x_features_;          // [d, C], [F, C]
  Panels<T> x_values_;                // [V, C]  E
  T* x_weights_ = nullptr;            // [C]     e
  Panels<T> y_, y_features_;          // [d, slots C], [F, C]
  Panels<T> y_values_;                // [slots C, V]  W
  T* y_weights_ = nullptr;            // [slots C]     w
  Panels<T> scores_, dscores_;        // [slots C, C]
  Panels<T> state_, dfeatures_, dx_;  // [F, V], [F, C], [d, C]
  T *norm_ = nullptr, *z_ = nullptr;  // [F], [C]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::polynomial
