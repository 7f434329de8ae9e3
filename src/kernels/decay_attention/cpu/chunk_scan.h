// The forward scan over chunks, for both families of decay. The state stays in cache from chunk to
// chunk.
//
//   A_rs = (q_r . k_s) w_rs,   o_r = (q_r P_r) S + sum_{s <= r} A_rs v_s,
//   S' = G S + sum_s (k_s Q_s)^T v_s
#pragma once

#include "kernels/decay_attention/cpu/channel.h"
#include "kernels/decay_attention/cpu/scalar.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// Loads q times scale.
template <typename T>
void LoadQueries(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                 Operands<T>& x) {
  const DecayAttentionArgs& args = *item.args;
  LoadRows(RowsOf(args.q, chunk, item.head, args.num_heads, args.num_q_heads), x.length, x.rows,
           shape.keys, static_cast<T>(args.scale), x.q);
}
// Loads k times key_scale.
template <typename T>
void LoadKeys(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk, Operands<T>& x) {
  const DecayAttentionArgs& args = *item.args;
  LoadRows(RowsOf(args.k, chunk, item.head, args.num_heads, args.num_k_heads), x.length, x.rows,
           shape.keys, T(1), x.k);
  if (args.key_scale.data == nullptr) return;
  const RowsOf scales(args.key_scale, chunk, item.head, args.num_heads, args.num_heads);
  for (int column = 0; column < shape.keys_padded; column += kPanel)
    for (int r = 0; r < x.length; ++r) {
      const T factor = *scales.Row<const T>(r);
      for (int j = 0; j < kPanel; ++j) x.k.Row(r, column)[j] *= factor;
    }
}
// Loads v, and the normaliser's column of ones.
template <typename T>
void LoadValues(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk, Operands<T>& x) {
  const DecayAttentionArgs& args = *item.args;
  LoadRows(RowsOf(args.v, chunk, item.head, args.num_heads, args.num_v_heads), x.length, x.rows,
           shape.values, T(1), x.v);
  if (shape.normalised) SetColumn(x.v, shape.values, x.length, x.rows, [](int) { return T(1); });
}
template <typename T>
void BeginChunk(const ChunkEntry& chunk, Operands<T>& x) {
  x.length = chunk.length;
  x.rows = RoundUp(chunk.length, kTile);
}

// Returns the number of tile steps in the products of a chunk: its multiply-adds divided by those
// of one step.
template <typename T, bool kOutputs>
int64_t ForwardSteps(const Shape& shape) {
  const int64_t C = shape.chunk_rows, K = shape.keys_padded, V = shape.columns_padded;
  const int64_t update = C * K * V, outputs = C * C / 2 * (K + V) + C * K * V;
  return (update + (kOutputs ? outputs : 0)) / (Tile<T>::kRows * Tile<T>::kColumns);
}

// Prefetches the rows of a chunk that a state update reads, and (below) the other rows of a
// forward.
inline void FetchStateRows(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                           RowsAhead& ahead) {
  const DecayAttentionArgs& args = *item.args;
  const auto fetch = [&](const TensorView& view, int heads, int width) {
    RowsOf(view, chunk, item.head, args.num_heads, heads).FetchAhead(ahead, chunk.length, width);
  };
  fetch(args.k, args.num_k_heads, shape.keys);
  fetch(args.v, args.num_v_heads, shape.values);
  if (args.decay_kind == DecayKind::kPerTokenChannel)
    fetch(args.log_decay, args.num_decay_heads, shape.keys);
}
inline void FetchOutputRows(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                            RowsAhead& ahead) {
  const DecayAttentionArgs& args = *item.args;
  RowsOf(args.q, chunk, item.head, args.num_heads, args.num_q_heads)
      .FetchAhead(ahead, chunk.length, shape.keys);
  RowsOf(args.out, chunk, item.head, args.num_heads, args.num_heads)
      .FetchAhead(ahead, chunk.length, shape.values);
}

// state = G state + left^T right, [K, V]: for S with k_exit and v, for R with q_entry and dout.
template <typename T, typename Decay>
void UpdateState(const Shape& shape, const Decay& decay, const Operands<T>& x,
                 const Panels<T>& left, const Panels<T>& right, const Panels<T>& state) {
  ForTiles<Tile<T>>(shape.keys_padded, shape.columns_padded,
                    [&](int row, int column) HL_INLINE_LAMBDA {
                      Tile<T> tile(x.ahead);
                      const T* before = state.Row(row, column);
                      tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
                        sum = At(before + r * kPanel + j) * decay.through()[row + r];
                      });
                      tile.MultiplyAddTransposed(left, row, right, column, 0, x.length);
                      tile.Store(state, row, column);
                    });
}
// Computes the transposed update: to = from G + right^T left, [V, K].
template <typename T, typename Decay>
void UpdateTransposed(const Shape& shape, const Decay& decay, const Operands<T>& x,
                      const Panels<T>& left, const Panels<T>& right, const Panels<T>& from,
                      const Panels<T>& to) {
  ForTiles<Tile<T>>(shape.columns_padded, shape.keys_padded,
                    [&](int row, int column) HL_INLINE_LAMBDA {
                      Tile<T> tile(x.ahead);
                      const T* before = from.Row(row, column);
                      tile.ForEach([&](Vec<T>& sum, int r, int j) HL_INLINE_LAMBDA {
                        sum = At(before + r * kPanel + j) * At(decay.through() + column + j);
                      });
                      tile.MultiplyAddTransposed(right, row, left, column, 0, x.length);
                      tile.Store(to, row, column);
                    });
}

// out = q_entry S + A v. With the normaliser, the result goes through `buffer` [C, V + 1], whose
// last column is the denominator.
template <typename T>
void OutputRows(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                const Operands<T>& x, const Panels<T>& state, const Panels<T>& buffer) {
  const DecayAttentionArgs& args = *item.args;
  const RowsOf out(args.out, chunk, item.head, args.num_heads, args.num_heads);
  ForTiles<Tile<T>>(x.rows, shape.columns_padded, [&](int row, int column) HL_INLINE_LAMBDA {
    Tile<T> tile(x.ahead);
    tile.Clear();
    tile.MultiplyAdd(x.q_entry, row, state, column, 0, shape.keys);  // InterOutput
    tile.MultiplyAdd(x.scores, row, x.v, column, 0, row);            // IntraOutput
    tile.MultiplyAddLower(x.scores, row, x.v, column);
    if (shape.normalised) {
      tile.Store(buffer, row, column);
    } else {
      StoreTile<T>(tile, out, row, x.length, column, shape.values);
    }
  });
  if (!shape.normalised) return;
  T inverse[kMaxChunkSize];
  for (int r = 0; r < x.length; ++r) {
    const T denominator = *buffer.Row(r, shape.values) + static_cast<T>(args.norm_eps);
    inverse[r] = 1 / denominator;
    if (args.norm_denom != nullptr)
      static_cast<T*>(args.norm_denom)[FlatRow(args, chunk, r, item.head)] = denominator;
  }
  ScaleRows(buffer, x.length, shape.columns_padded, inverse);
  StoreRows(buffer, out, 0, x.length, 0, shape.values);
}

template <typename T>
struct ForwardScratch {
  Operands<T> x;
  Panels<T> state, buffer;

  ForwardScratch(const Shape& shape, ScratchSpace& space) {
    const int rows = shape.chunk_rows;
    x.q = space.Matrix<T>(rows, shape.keys_padded);
    x.k = space.Matrix<T>(rows, shape.keys_padded);
    x.v = space.Matrix<T>(rows, shape.columns_padded);
    x.k_transposed = space.Matrix<T>(shape.keys_padded, rows);
    x.q_entry = space.Matrix<T>(rows, shape.keys_padded);
    x.k_exit = space.Matrix<T>(rows, shape.keys_padded);
    x.scores = space.Matrix<T>(rows, rows);
    state = space.Matrix<T>(shape.keys_padded, shape.columns_padded);
    if (shape.normalised) buffer = space.Matrix<T>(rows, shape.columns_padded);
  }
};

// The sum of log_decay over an item's chunks. It is -inf if a document starts or a token's decay is
// 0, even if another term is NaN: the earlier state is then dropped.
template <typename T>
class Transition {
 public:
  explicit Transition(const ScanItem& item)
      : sums_(static_cast<T*>(item.log_transition)),
        count_(sums_ == nullptr                      ? 0
               : IsPerChannel(item.args->decay_kind) ? item.args->head_dim_k
                                                     : 1) {
    for (int i = 0; i < count_; ++i) sums_[i] = 0;
  }
  template <typename Decay>
  void Add(const Decay& decay, const ChunkEntry& chunk) const {
    constexpr T kNever = -static_cast<T>(__builtin_inff());
    for (int i = 0; i < count_; ++i) {
      const T through = decay.log_through(i);
      const bool cut = (chunk.flags & kChunkResets) != 0 || sums_[i] == kNever ||
                       through == kNever || (through != through && decay.cuts(i));
      sums_[i] = cut ? kNever : sums_[i] + through;
    }
  }

 private:
  T* sums_;
  int count_;
};

// Scans an item with outputs, or (kOutputs = false) only its state, for a segment's summary.
template <typename T, template <typename> class Decay, bool kOutputs>
void ForwardScan(const ScanItem& item) {
  const DecayAttentionArgs& args = *item.args;
  const Shape shape(args, *item.plan);
  ScratchSpace space(item.scratch);
  ForwardScratch<T> scratch(shape, space);
  Decay<T> decay(item, shape, false, space);
  Operands<T>& x = scratch.x;
  const Transition<T> transition(item);
  LoadState<T>(shape, item.entry_state, item.entry_norm, scratch.state);
  const CheckpointLayout layout = MakeCheckpointLayout(args, *item.plan);
  for (int n = item.begin; n < item.end; ++n) {
    const ChunkEntry& chunk = args.chunks[n];
    if (chunk.flags & kChunkResets) Clear(scratch.state, shape.keys_padded, shape.columns_padded);
    if (kOutputs && args.checkpoints != nullptr &&
        (n - item.first_chunk) % item.plan->checkpoint_every == 0) {
      const CheckpointAddress at = FindCheckpoint(item, layout, n);
      StoreState<T>(shape, scratch.state, at.state, at.norm);  // SaveCheckpoint
    }
    BeginChunk(chunk, x);
    x.ahead.Begin(ForwardSteps<T, kOutputs>(shape));
    if (n + 1 < item.end) {
      FetchStateRows(item, shape, args.chunks[n + 1], x.ahead);
      if (kOutputs) FetchOutputRows(item, shape, args.chunks[n + 1], x.ahead);
    }
    LoadKeys(item, shape, chunk, x);
    LoadValues(item, shape, chunk, x);
    decay.DecayTables(chunk);
    decay.ScaleKeys(x);
    if constexpr (kOutputs) {
      LoadQueries(item, shape, chunk, x);
      decay.ScaleQueries(x);
      Transpose(x.k, x.k_transposed, x.rows, shape.keys_padded);
      decay.IntraTile(x);
      OutputRows(item, shape, chunk, x, scratch.state, scratch.buffer);
    }
    UpdateState(shape, decay, x, x.k_exit, x.v, scratch.state);
    transition.Add(decay, chunk);
  }
  StoreState<T>(shape, scratch.state, item.exit_state, item.exit_norm);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
