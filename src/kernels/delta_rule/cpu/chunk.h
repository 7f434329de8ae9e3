// The operands of one chunk, and the parts of the chunk form that do not depend on the kind of
// decay. With P_r the decay from the chunk's start to row r, Q_s from row s to the chunk's end,
// w_rs between two rows, Gamma through the chunk, and S the state before it:
//
//   A_rs = q_r w_rs k_s (s <= r)      G_rs = k_r w_rs k_s (s < r)
//   e_r = v_r - (k_r P_r) S - sum_{s < r} G_rs u_s      u_r = beta_r e_r
//   o_r = (q_r P_r) S + sum_{s <= r} A_rs u_s
//   S' = Gamma S + sum_s (k_s Q_s)^T u_s
//
// So a key reads the state as a query does, to find what it replaces. Both are a `Reader`. The
// errors e are found row by row (forward substitution), which is accurate also if keys are equal.
// The gradient runs through the same equations in reverse, with R = dL/dS':
//
//   lambda_r = sum_{t >= r} A_tr do_t + (k_r Q_r) R + sum_{t > r} G_tr n_t
//   n_r = -beta_r lambda_r      dv_r = -n_r      dbeta_r = lambda_r . e_r
//   R' = Gamma R + (q P)^T do + (k P)^T n
//
// n_r is the gradient of what key r reads, as do_r is of what query r reads.
#pragma once

#include "kernels/common/cpu/chunk_rows.h"
#include "kernels/delta_rule/cpu/kernels.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

using cpu::delta::ReverseItem;
using cpu::delta::ScanItem;

// The tile size in tokens: of substitutions, and of the weights of decays per channel.
constexpr int kTile = 16;

struct Shape {
  int keys, values;                // K, V
  int keys_padded, values_padded;  // rounded up to whole panels; the padding is always zero

  Shape(const DeltaRuleArgs& args, int the_values)
      : keys(args.head_dim_k),
        values(the_values),
        keys_padded(RoundUp(keys, kPanel)),
        values_padded(RoundUp(values, kPanel)) {}
};

enum ReaderIndex { kQuery = 0, kKey = 1 };

// Rows that read the state: the queries, or the keys.
template <typename T>
struct Reader {
  bool strict = false;  // keys: a row does not read what it writes itself
  Panels<T> x;          // [C, K]: q times scale, or k
  Panels<T> prefix;     // [C, K]: x decayed from its tile's start; only with decays per channel
  Panels<T> entry;      // [C, K]: x_r P_r
  Panels<T> scores;     // [C, C]: A or G; undefined above the diagonal tiles
  // Only in a backward:
  Panels<T> dread;    // [C, V]: gradient of what the rows read: do or n
  Panels<T> dscores;  // [C, C]
  Panels<T> dx;       // [C, K]: gradient of x
};

// Rows from `length` to `rows` (rounded up to whole tiles) are zero.
template <typename T>
struct Operands {
  int length = 0, rows = 0;
  Reader<T> readers[2];    // kQuery, kKey
  Panels<T> k;             // [C, K], the same memory as readers[kKey].x
  Panels<T> k_transposed;  // [K, C]
  Panels<T> k_exit;        // [C, K]: k_s Q_s
  Panels<T> errors, u;     // [C, V]; `errors` holds v until it is solved
  Panels<T> u_transposed;  // [V, C]; only in a backward
  T* beta = nullptr;       // [C]
  // Tiles require it. It prefetches nothing: fetching the next chunk's rows gained no time.
  mutable RowsAhead ahead;

  Operands(const Shape& shape, bool per_channel, ScratchSpace& space) {
    constexpr int kRows = kDeltaChunkSize;
    for (Reader<T>& reader : readers) {
      reader.x = space.Matrix<T>(kRows, shape.keys_padded);
      if (per_channel) reader.prefix = space.Matrix<T>(kRows, shape.keys_padded);
      reader.entry = space.Matrix<T>(kRows, shape.keys_padded);
      reader.scores = space.Matrix<T>(kRows, kRows);
    }
    readers[kKey].strict = true;
    k = readers[kKey].x;
    k_transposed = space.Matrix<T>(shape.keys_padded, kRows);
    k_exit = space.Matrix<T>(kRows, shape.keys_padded);
    errors = space.Matrix<T>(kRows, shape.values_padded);
    u = space.Matrix<T>(kRows, shape.values_padded);
    beta = space.Array<T>(kRows);
  }
  void AllocateGradients(const Shape& shape, ScratchSpace& space) {
    constexpr int kRows = kDeltaChunkSize;
    for (Reader<T>& reader : readers) {
      reader.dread = space.Matrix<T>(kRows, shape.values_padded);
      reader.dscores = space.Matrix<T>(kRows, kRows);
      reader.dx = space.Matrix<T>(kRows, shape.keys_padded);
    }
    u_transposed = space.Matrix<T>(shape.values_padded, kRows);
  }
};

// ---- loading and storing ----

// Calls function(address, row, column, bytes) for the part of each row of [K, V] in each panel.
template <typename T, typename Function>
void ForPieces(T* state, const Shape& shape, Function function) {
  for (int c = 0; c < shape.values; c += kPanel) {
    const size_t bytes = sizeof(T) * (shape.values - c < kPanel ? shape.values - c : kPanel);
    for (int i = 0; i < shape.keys; ++i)
      function(state + int64_t{1} * i * shape.values + c, i, c, bytes);
  }
}
template <typename T>
void LoadState(const Shape& shape, const void* state, const Panels<T>& to) {
  Clear(to, shape.keys_padded, shape.values_padded);
  if (state == nullptr) return;
  ForPieces(static_cast<const T*>(state), shape, [&](const T* piece, int i, int c, size_t bytes) {
    __builtin_memcpy(to.Row(i, c), piece, bytes);
  });
}
template <typename T>
void StoreState(const Shape& shape, const Panels<T>& from, void* state) {
  if (state == nullptr) return;
  ForPieces(static_cast<T*>(state), shape, [&](T* piece, int i, int c, size_t bytes) {
    __builtin_memcpy(piece, from.Row(i, c), bytes);
  });
}
// Returns the address of the state saved before `chunk`.
template <typename T>
T* Checkpoint(const ScanItem& item, int chunk) {
  const DeltaRuleArgs& args = *item.args;
  const int64_t slot = DeltaCheckpointSlot(item.sequence, item.first_chunk, chunk);
  return static_cast<T*>(args.checkpoints) +
         (slot * args.num_value_heads + item.head) * args.head_dim_k * args.head_dim_v;
}

inline RowsOf KeyRows(const ScanItem& item, const TensorView& view, const ChunkEntry& chunk) {
  return {view, chunk, item.head, item.args->num_value_heads, item.args->num_heads};
}
inline RowsOf ValueRows(const ScanItem& item, const TensorView& view, const ChunkEntry& chunk) {
  return {view, chunk, item.head, item.args->num_value_heads, item.args->num_value_heads};
}

template <typename T>
void LoadQueries(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                 Operands<T>& x) {
  LoadRows(KeyRows(item, item.args->q, chunk), x.length, x.rows, shape.keys,
           static_cast<T>(item.args->scale), x.readers[kQuery].x);
}
// Starts a chunk with its keys and beta.
template <typename T>
void BeginChunk(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk, Operands<T>& x) {
  x.length = chunk.length;
  x.rows = RoundUp(chunk.length, kTile);
  LoadRows(KeyRows(item, item.args->k, chunk), x.length, x.rows, shape.keys, T(1), x.k);
  const RowsOf beta = ValueRows(item, item.args->beta, chunk);
  for (int r = 0; r < x.length; ++r) x.beta[r] = *beta.Row<const T>(r);
  for (int r = x.length; r < x.rows; ++r) x.beta[r] = 0;
  Transpose(x.k, x.k_transposed, x.rows, shape.keys_padded);
}
template <typename T>
void LoadValues(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                const Operands<T>& x) {
  if (item.v.data == nullptr) {
    Clear(x.errors, x.rows, shape.values_padded);
  } else {
    LoadRows(ValueRows(item, item.v, chunk), x.length, x.rows, shape.values, T(1), x.errors);
  }
}
// Stores factor times the first `length` rows.
template <typename T>
void StoreScaledRows(const Panels<T>& from, const RowsOf& rows, int length, int width, T factor) {
  WithStorage<T>(rows.dtype, [&](auto sample) {
    using S = decltype(sample);
    for (int column = 0; column < width; column += kPanel) {
      const int count = width - column < kPanel ? width - column : kPanel;
      for (int r = 0; r < length; ++r) {
        const T* source = from.Row(r, column);
        S* target = rows.Row<S>(r) + column;
        for (int j = 0; j < count; ++j) target[j] = Narrow<S>(factor * source[j]);
      }
    }
  });
}

// ---- the equations of a chunk ----

// Computes e and u of the tile of rows from i on, for one vector of columns. `errors` holds what
// earlier tiles and the state leave of v.
template <typename T>
HL_INLINE void SubstituteForward(const Operands<T>& x, int i, int column) {
  const T* scores = x.readers[kKey].scores.Row(i, i);
  Vec<T> errors[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) errors[r] = At(x.errors.Row(i + r, column));
#pragma GCC unroll 16
  for (int s = 0; s < kTile; ++s) {
    const Vec<T> u = errors[s] * x.beta[i + s];
    At(x.errors.Row(i + s, column)) = errors[s];
    At(x.u.Row(i + s, column)) = u;
#pragma GCC unroll 16
    for (int r = s + 1; r < kTile; ++r) errors[r] -= scores[r * kPanel + s] * u;
  }
}
// Replaces v in `errors` by e, and computes u.
template <typename T>
void SolveErrors(const Shape& shape, const Operands<T>& x, const Panels<T>& state) {
  const Reader<T>& key = x.readers[kKey];
  for (int i = 0; i < x.rows; i += kTile) {
    for (int column = 0; column < shape.values_padded; column += Tile<T>::kColumns)
      for (int row = i; row < i + kTile; row += Tile<T>::kRows) {
        Tile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(key.entry, row, state, column, 0, shape.keys);
        tile.MultiplyAdd(key.scores, row, x.u, column, 0, i);
        T* values = x.errors.Row(row, column);
        tile.ForEach([&](Vec<T>& sum, int r, int j)
                         HL_INLINE_LAMBDA { At(values + r * kPanel + j) -= sum; });
      }
    for (int column = 0; column < shape.values_padded; column += kLanes<T>)
      SubstituteForward(x, i, column);
  }
}

// Computes n of the tile of rows from i on, for one vector of columns. n holds the terms of lambda
// that do not come from the tile itself. Adds lambda * e to `dots` [C, lanes], if not null.
template <typename T>
HL_INLINE void SubstituteReverse(const Operands<T>& x, int i, int column, T* dots) {
  const T* scores = x.readers[kKey].scores.Row(i, i);
  T* n = x.readers[kKey].dread.Row(i, column);
  Vec<T> lambda[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) lambda[r] = At(n + r * kPanel);
#pragma GCC unroll 16
  for (int t = kTile - 1; t >= 0; --t) {
    const Vec<T> negative = lambda[t] * -x.beta[i + t];
    At(n + t * kPanel) = negative;
    if (dots != nullptr)
      At(dots + (i + t) * kLanes<T>) += lambda[t] * At(x.errors.Row(i + t, column));
#pragma GCC unroll 16
    for (int s = 0; s < t; ++s) lambda[s] += scores[t * kPanel + s] * negative;
  }
}
// Computes n, the gradient of what the keys read, from do and R [K, V].
template <typename T>
void SolveAdjoint(const Shape& shape, const Operands<T>& x, const Panels<T>& adjoint, T* dots) {
  const Reader<T>&query = x.readers[kQuery], &key = x.readers[kKey];
  for (int i = 0; dots != nullptr && i < x.rows * kLanes<T>; i += kLanes<T>)
    At(dots + i) = Vec<T>{};
  for (int i = x.rows - kTile; i >= 0; i -= kTile) {
    for (int column = 0; column < shape.values_padded; column += Tile<T>::kColumns)
      for (int row = i; row < i + kTile; row += Tile<T>::kRows) {
        Tile<T> tile(x.ahead);
        tile.Clear();
        tile.MultiplyAdd(x.k_exit, row, adjoint, column, 0, shape.keys);
        tile.MultiplyAddTransposed(query.scores, row, query.dread, column, row, x.rows);
        tile.MultiplyAddTransposed(key.scores, row, key.dread, column, i + kTile, x.rows);
        tile.Store(key.dread, row, column);
      }
    for (int column = 0; column < shape.values_padded; column += kLanes<T>)
      SubstituteReverse(x, i, column, dots);
  }
}

// Computes S = Gamma S + (k Q)^T u, [K, V].
template <typename T>
void UpdateState(const Shape& shape, const T* through, const Operands<T>& x,
                 const Panels<T>& state) {
  ForTiles<Tile<T>>(shape.keys_padded, shape.values_padded,
                    [&](int row, int column) HL_INLINE_LAMBDA {
                      Tile<T> tile(x.ahead);
                      const T* before = state.Row(row, column);
                      tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
                        sum = At(before + r * kPanel + j) * through[row + r];
                      });
                      tile.MultiplyAddTransposed(x.k_exit, row, x.u, column, 0, x.length);
                      tile.Store(state, row, column);
                    });
}
// Computes R = Gamma R + (q P)^T do + (k P)^T n, [K, V].
template <typename T>
void UpdateAdjoint(const Shape& shape, const T* through, const Operands<T>& x,
                   const Panels<T>& adjoint) {
  ForTiles<Tile<T>>(
      shape.keys_padded, shape.values_padded, [&](int row, int column) HL_INLINE_LAMBDA {
        Tile<T> tile(x.ahead);
        const T* before = adjoint.Row(row, column);
        tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
          sum = At(before + r * kPanel + j) * through[row + r];
        });
        for (const Reader<T>& reader : x.readers)
          tile.MultiplyAddTransposed(reader.entry, row, reader.dread, column, 0, x.length);
        tile.Store(adjoint, row, column);
      });
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
