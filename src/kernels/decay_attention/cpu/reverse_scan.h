// The backward scan over chunks in reverse, for both families of decay. R is the gradient of the
// state after the chunk:
//
//   dv_s = sum_{r >= s} A_rs do_r + (k_s Q_s) R,   R' = G R + sum_r (q_r P_r)^T do_r,
//   dq, dk, dlog_decay: see scalar.h and channel.h
//
// The scan processes one group of plan.checkpoint_every chunks at a time. From the state saved
// before the group, it recomputes the states before the group's other chunks (one product in 14 of
// a training step). All of them are stored transposed, as the gradients read them.
#pragma once

#include "kernels/decay_attention/cpu/chunk_scan.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// Loads dout. With the normaliser, loads the gradients of numerator and denominator: do / (d +
// eps), and -(do . o) / (d + eps) in the additional column.
template <typename T>
void LoadOutputGradient(const ReverseItem& item, const Shape& shape, const ChunkEntry& chunk,
                        Operands<T>& x) {
  const DecayAttentionArgs& args = *item.scan.args;
  const RowsOf dout(item.dout, chunk, item.scan.head, args.num_heads, args.num_heads);
  LoadRows(dout, x.length, x.rows, shape.values, T(1), x.dout);
  if (!shape.normalised) return;
  const RowsOf out(args.out, chunk, item.scan.head, args.num_heads, args.num_heads);
  T inverse[kMaxChunkSize], deltas[kMaxChunkSize];
  WithStorage<T>(out.dtype, [&](auto sample) {
    using S = decltype(sample);
    for (int r = 0; r < x.length; ++r) {
      inverse[r] =
          1 / static_cast<const T*>(args.norm_denom)[FlatRow(args, chunk, r, item.scan.head)];
      T delta = 0;
      for (int j = 0; j < shape.values; ++j)
        delta += Widen<T>(dout.Row<const S>(r)[j]) * Widen<T>(out.Row<const S>(r)[j]);
      deltas[r] = -delta * inverse[r];
    }
  });
  ScaleRows(x.dout, x.length, shape.columns_padded, inverse);
  SetColumn(x.dout, shape.values, x.length, x.rows, [&](int r) { return deltas[r]; });
}

template <typename T>
int64_t ReverseSteps(const Shape& shape) {
  const int64_t C = shape.chunk_rows, K = shape.keys_padded, V = shape.columns_padded;
  return (C * C / 2 * (3 * K + 2 * V) + 4 * C * K * V) / (Tile<T>::kRows * Tile<T>::kColumns);
}

template <typename T>
struct ReverseScratch {
  Operands<T> x;
  Panels<T> adjoint, adjoint_transposed;  // R [K, V] and R^T
  Panels<T> dk;                           // [C, K]; used only with key_scale
  Panels<T> states[kMaxCheckpointEvery];  // S^T [V, K] before each chunk of the group

  ReverseScratch(const DecayAttentionArgs& args, const DecayAttentionPlan& plan, const Shape& shape,
                 ScratchSpace& space) {
    const int rows = shape.chunk_rows;
    x.q = space.Matrix<T>(rows, shape.keys_padded);
    x.k = space.Matrix<T>(rows, shape.keys_padded);
    x.v = space.Matrix<T>(rows, shape.columns_padded);
    x.dout = space.Matrix<T>(rows, shape.columns_padded);
    x.k_transposed = space.Matrix<T>(shape.keys_padded, rows);
    x.v_transposed = space.Matrix<T>(shape.columns_padded, rows);
    x.q_entry = space.Matrix<T>(rows, shape.keys_padded);
    x.k_exit = space.Matrix<T>(rows, shape.keys_padded);
    x.scores = space.Matrix<T>(rows, rows);
    x.dscores = space.Matrix<T>(rows, rows);
    adjoint = space.Matrix<T>(shape.keys_padded, shape.columns_padded);
    adjoint_transposed = space.Matrix<T>(shape.columns_padded, shape.keys_padded);
    if (args.key_scale.data != nullptr) dk = space.Matrix<T>(rows, shape.keys_padded);
    for (int i = 0; i < plan.checkpoint_every; ++i)
      states[i] = space.Matrix<T>(shape.columns_padded, shape.keys_padded);
  }
};

template <typename T, template <typename> class Decay>
class ReverseScan {
 public:
  explicit ReverseScan(const ReverseItem& item)
      : item_(item),
        args_(*item.scan.args),
        shape_(args_, *item.scan.plan),
        space_(item.scan.scratch),
        scratch_(args_, *item.scan.plan, shape_, space_),
        decay_(item.scan, shape_, true, space_),
        every_(item.scan.plan->checkpoint_every) {}

  void Run() {
    const ScanItem& scan = item_.scan;
    LoadState<T>(shape_, scan.entry_state, scan.entry_norm, scratch_.adjoint);
    Transpose(scratch_.adjoint, scratch_.adjoint_transposed, shape_.keys_padded,
              shape_.columns_padded);
    for (int end = scan.end; end > scan.begin;) {
      const int begin = scan.first_chunk + (end - 1 - scan.first_chunk) / every_ * every_;
      RecomputeStates(begin, end);
      for (int n = end - 1; n >= begin; --n) {
        FetchRowsAfter(n, begin);
        Chunk(args_.chunks[n], scratch_.states[n - begin]);
      }
      end = begin;
    }
    if (scan.exit_state == nullptr && scan.exit_norm == nullptr) return;
    Transpose(scratch_.adjoint_transposed, scratch_.adjoint, shape_.columns_padded,
              shape_.keys_padded);
    StoreState<T>(shape_, scratch_.adjoint, scan.exit_state, scan.exit_norm);
  }

 private:
  // Prefetches the rows that the scan reads after chunk n of the group that starts at `begin`:
  // those of the previous chunk that only gradients need. At the end of a group, it also prefetches
  // the first rows that the recomputation of the previous group reads. Its later k and v are not
  // prefetched before the recomputation: with 8 heads, the rows of one head map to an eighth of the
  // L2 cache's sets.
  void FetchRowsAfter(int n, int begin) {
    const ScanItem& scan = item_.scan;
    RowsAhead& ahead = scratch_.x.ahead;
    ahead.Begin(ReverseSteps<T>(shape_));
    if (n == scan.begin) return;
    FetchGradientRows(args_.chunks[n - 1], ahead);
    if (n == begin) FetchStateRows(scan, shape_, args_.chunks[n - every_], ahead);
  }
  void FetchGradientRows(const ChunkEntry& chunk, RowsAhead& ahead) const {
    const auto fetch = [&](const RowsOf& rows, int width) {
      rows.FetchAhead(ahead, chunk.length, width);
    };
    fetch(RowsOf(args_.q, chunk, item_.scan.head, args_.num_heads, args_.num_q_heads), shape_.keys);
    fetch(Gradient(item_.dout, chunk), shape_.values);
    if (shape_.normalised) fetch(Gradient(args_.out, chunk), shape_.values);
    fetch(Gradient(item_.dq, chunk), shape_.keys);
    fetch(Gradient(item_.dk, chunk), shape_.keys);
    fetch(Gradient(item_.dv, chunk), shape_.values);
    if (item_.dlog_decay.data != nullptr && args_.decay_kind == DecayKind::kPerTokenChannel)
      fetch(Gradient(item_.dlog_decay, chunk), shape_.keys);
  }

  void RecomputeStates(int begin, int end) {
    Operands<T>& x = scratch_.x;
    const CheckpointLayout layout = MakeCheckpointLayout(args_, *item_.scan.plan);
    const CheckpointAddress at = FindCheckpoint(item_.scan, layout, begin);
    LoadState<T>(shape_, at.state, at.norm, scratch_.adjoint);
    Transpose(scratch_.adjoint, scratch_.states[0], shape_.keys_padded, shape_.columns_padded);
    for (int n = begin; n < end; ++n) {
      const ChunkEntry& chunk = args_.chunks[n];
      const Panels<T>& before = scratch_.states[n - begin];
      if (chunk.flags & kChunkResets) Clear(before, shape_.columns_padded, shape_.keys_padded);
      if (n + 1 == end) break;
      BeginChunk(chunk, x);
      x.ahead.Begin(ForwardSteps<T, false>(shape_));
      FetchStateRows(item_.scan, shape_, args_.chunks[n + 1], x.ahead);
      LoadKeys(item_.scan, shape_, chunk, x);
      LoadValues(item_.scan, shape_, chunk, x);
      decay_.DecayTables(chunk);
      decay_.ScaleKeys(x);
      UpdateTransposed(shape_, decay_, x, x.k_exit, x.v, before, scratch_.states[n + 1 - begin]);
    }
  }

  void Chunk(const ChunkEntry& chunk, const Panels<T>& state_transposed) {
    Operands<T>& x = scratch_.x;
    BeginChunk(chunk, x);
    LoadQueries(item_.scan, shape_, chunk, x);
    LoadKeys(item_.scan, shape_, chunk, x);
    LoadValues(item_.scan, shape_, chunk, x);
    LoadOutputGradient(item_, shape_, chunk, x);
    decay_.DecayTables(chunk);
    decay_.ScaleQueries(x);
    decay_.ScaleKeys(x);
    Transpose(x.k, x.k_transposed, x.rows, shape_.keys_padded);
    Transpose(x.v, x.v_transposed, x.rows, shape_.columns_padded);
    Transpose(scratch_.adjoint_transposed, scratch_.adjoint, shape_.columns_padded,
              shape_.keys_padded);
    decay_.IntraTile(x);
    decay_.IntraTileBackward(x);
    StoreQueryGradient(chunk, state_transposed);
    StoreKeyGradient(chunk);
    StoreValueGradient(chunk);
    StoreDecayGradient(chunk, state_transposed);
    UpdateTransposed(shape_, decay_, x, x.q_entry, x.dout, scratch_.adjoint_transposed,
                     scratch_.adjoint_transposed);
    if (chunk.flags & kChunkResets)
      Clear(scratch_.adjoint_transposed, shape_.columns_padded, shape_.keys_padded);
  }

  RowsOf Gradient(const TensorView& view, const ChunkEntry& chunk) const {
    return RowsOf(view, chunk, item_.scan.head, args_.num_heads, args_.num_heads);
  }
  void StoreQueryGradient(const ChunkEntry& chunk, const Panels<T>& state_transposed) {
    const RowsOf rows = Gradient(item_.dq, chunk);
    const T scale = static_cast<T>(args_.scale);
    decay_.QueryGradient(
        scratch_.x, state_transposed, [&](Tile<T>& tile, int row, int column) HL_INLINE_LAMBDA {
          tile.ForEach([&](Vec<T>& dq, int, int) HL_INLINE_LAMBDA { dq *= scale; });
          StoreTile<T>(tile, rows, row, chunk.length, column, shape_.keys);
        });
  }
  void StoreKeyGradient(const ChunkEntry& chunk) {
    const RowsOf rows = Gradient(item_.dk, chunk);
    const bool scaled = args_.key_scale.data != nullptr;
    decay_.KeyGradient(scratch_.x, scratch_.adjoint_transposed,
                       [&](Tile<T>& tile, int row, int column) HL_INLINE_LAMBDA {
                         if (scaled) {
                           tile.Store(scratch_.dk, row, column);
                         } else {
                           StoreTile<T>(tile, rows, row, chunk.length, column, shape_.keys);
                         }
                       });
    if (scaled) StoreScaledKeyGradient(chunk, rows);
  }
  // Stores the gradients of the scale c and of k. The operand was c k, so dc = k . d(c k) and dk =
  // c d(c k).
  void StoreScaledKeyGradient(const ChunkEntry& chunk, const RowsOf& rows) {
    const RowsOf scales = Gradient(args_.key_scale, chunk);
    const RowsOf keys(args_.k, chunk, item_.scan.head, args_.num_heads, args_.num_k_heads);
    T factors[kMaxChunkSize];
    for (int s = 0; s < chunk.length; ++s) factors[s] = *scales.Row<const T>(s);
    if (item_.dkey_scale.data != nullptr) {
      const RowsOf dscales = Gradient(item_.dkey_scale, chunk);
      WithStorage<T>(keys.dtype, [&](auto sample) {
        using S = decltype(sample);
        for (int s = 0; s < chunk.length; ++s) {
          T sum = 0;
          for (int c = 0; c < shape_.keys; ++c)
            sum += Widen<T>(keys.Row<const S>(s)[c]) * *scratch_.dk.Row(s, c);
          *dscales.Row<T>(s) = sum;
        }
      });
    }
    ScaleRows(scratch_.dk, chunk.length, shape_.keys_padded, factors);
    StoreRows(scratch_.dk, rows, 0, chunk.length, 0, shape_.keys);
  }
  void StoreValueGradient(const ChunkEntry& chunk) {
    const Operands<T>& x = scratch_.x;
    const RowsOf rows = Gradient(item_.dv, chunk);
    ForTiles<Tile<T>>(x.rows, RoundUp(shape_.values, kPanel),
                      [&](int row, int column) HL_INLINE_LAMBDA {
                        Tile<T> tile(x.ahead);
                        tile.Clear();
                        tile.MultiplyAdd(x.k_exit, row, scratch_.adjoint, column, 0, shape_.keys);
                        tile.MultiplyAddTransposed(x.scores, row, x.dout, column, row, x.rows);
                        StoreTile<T>(tile, rows, row, x.length, column, shape_.values);
                      });
  }
  void StoreDecayGradient(const ChunkEntry& chunk, const Panels<T>& state_transposed) {
    const bool per_token = item_.dlog_decay.data != nullptr && IsPerToken(args_.decay_kind);
    const DecaySink sink = {.rows = Gradient(item_.dlog_decay, chunk),
                            .per_token = per_token,
                            .dlambda = item_.dlambda};
    if (sink.wanted())
      decay_.DecayGradient(scratch_.x, state_transposed, scratch_.adjoint_transposed, sink);
  }

  const ReverseItem& item_;
  const DecayAttentionArgs& args_;
  const Shape shape_;
  ScratchSpace space_;
  ReverseScratch<T> scratch_;
  Decay<T> decay_;
  const int every_;
};

// Computes only dL/d(state before the item), for a segment's summary.
template <typename T, template <typename> class Decay>
void ReverseStateScan(const ReverseItem& item) {
  const ScanItem& scan = item.scan;
  const Shape shape(*scan.args, *scan.plan);
  ScratchSpace space(scan.scratch);
  ReverseScratch<T> scratch(*scan.args, *scan.plan, shape, space);
  Decay<T> decay(scan, shape, true, space);
  Operands<T>& x = scratch.x;
  const Transition<T> transition(scan);
  LoadState<T>(shape, scan.entry_state, scan.entry_norm, scratch.adjoint);
  for (int n = scan.end - 1; n >= scan.begin; --n) {
    const ChunkEntry& chunk = scan.args->chunks[n];
    BeginChunk(chunk, x);
    LoadQueries(scan, shape, chunk, x);
    LoadOutputGradient(item, shape, chunk, x);
    decay.DecayTables(chunk);
    decay.ScaleQueries(x);
    UpdateState(shape, decay, x, x.q_entry, x.dout, scratch.adjoint);
    if (chunk.flags & kChunkResets) Clear(scratch.adjoint, shape.keys_padded, shape.columns_padded);
    transition.Add(decay, chunk);
  }
  StoreState<T>(shape, scratch.adjoint, scan.exit_state, scan.exit_norm);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
