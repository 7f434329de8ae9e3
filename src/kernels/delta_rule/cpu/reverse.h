// The backward scan over chunks in reverse (see chunk.h), which processes one group of
// kDeltaCheckpointEvery chunks at a time. From the state saved before the group, it recomputes the
// states before the group's chunks, their errors and their scores of keys. With u and n known, the
// gradients of q, k and log_decay are those of two readers of the same keys:
//
//   D_rs = do_r . u_s (s <= r)      F_rs = n_r . u_s (s < r)
//   dq_r = P_r (S do_r) + sum_s D_rs w_rs k_s
//   dk_r = P_r (S n_r) + sum_s F_rs w_rs k_s                             as a reader
//        + Q_r (R u_r) + sum_t (D_tr w_tr q_t + F_tr w_tr k_t)           as a written key
#pragma once

#include "kernels/delta_rule/cpu/forward.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

// The values of the recomputed forward that the gradients of a chunk read.
template <typename T>
struct Recomputed {
  Panels<T> state_transposed;  // S^T [V, K], before the chunk
  Panels<T> errors;            // [C, V]
  Panels<T> key_scores;        // G [C, C]
};

template <typename T, template <typename> class Decay>
struct ReverseScratch {
  Operands<T> x;
  Decay<T> decay;
  Panels<T> state;                        // S [K, V]
  Panels<T> adjoint, adjoint_transposed;  // R [K, V] and R^T
  T* beta_dots;                           // [C, lanes]
  Recomputed<T> recomputed[kDeltaCheckpointEvery];

  ReverseScratch(const ScanItem& item, const Shape& shape, ScratchSpace& space)
      : x(shape, Decay<T>::kPerChannel, space),
        decay(item, shape, /*backward=*/true, space),
        state(space.Matrix<T>(shape.keys_padded, shape.values_padded)),
        adjoint(space.Matrix<T>(shape.keys_padded, shape.values_padded)),
        adjoint_transposed(space.Matrix<T>(shape.values_padded, shape.keys_padded)),
        beta_dots(space.Array<T>(kDeltaChunkSize * kLanes<T>)) {
    x.AllocateGradients(shape, space);
    for (Recomputed<T>& chunk : recomputed)
      chunk = {space.Matrix<T>(shape.values_padded, shape.keys_padded),
               space.Matrix<T>(kDeltaChunkSize, shape.values_padded),
               space.Matrix<T>(kDeltaChunkSize, kDeltaChunkSize)};
  }
};

template <typename T>
void LoadOutputGradient(const ReverseItem& item, const Shape& shape, const ChunkEntry& chunk,
                        const Operands<T>& x) {
  LoadRows(ValueRows(item.scan, item.dout, chunk), x.length, x.rows, shape.values, T(1),
           x.readers[kQuery].dread);
}

template <typename T, template <typename> class Decay>
class ReverseScan {
 public:
  explicit ReverseScan(const ReverseItem& item)
      : item_(item),
        scan_(item.scan),
        shape_(*scan_.args, scan_.values),
        space_(scan_.scratch),
        scratch_(scan_, shape_, space_),
        x_(scratch_.x),
        decay_(scratch_.decay) {}

  void Run() {
    LoadState<T>(shape_, scan_.entry_state, scratch_.adjoint);
    for (int end = scan_.end; end > scan_.begin;) {
      const int begin = scan_.first_chunk + (end - 1 - scan_.first_chunk) / kDeltaCheckpointEvery *
                                                kDeltaCheckpointEvery;
      Recompute(begin, end);
      for (int n = end - 1; n >= begin; --n) Gradients(n, scratch_.recomputed[n - begin]);
      end = begin;
    }
    StoreState<T>(shape_, scratch_.adjoint, scan_.exit_state);
  }

 private:
  void UseRecomputed(const Recomputed<T>& chunk) {
    x_.errors = chunk.errors;
    x_.readers[kKey].scores = chunk.key_scores;
  }

  void Recompute(int begin, int end) {
    LoadState<T>(shape_, Checkpoint<T>(scan_, begin), scratch_.state);
    for (int n = begin; n < end; ++n) {
      const ChunkEntry& chunk = scan_.args->chunks[n];
      const Recomputed<T>& kept = scratch_.recomputed[n - begin];
      if (chunk.flags & kChunkResets)
        Clear(scratch_.state, shape_.keys_padded, shape_.values_padded);
      Transpose(scratch_.state, kept.state_transposed, shape_.keys_padded, shape_.values_padded);
      UseRecomputed(kept);
      BeginChunk(scan_, shape_, chunk, x_);
      LoadValues(scan_, shape_, chunk, x_);
      decay_.DecayTables(chunk);
      decay_.ScaleKeys(x_);
      decay_.ScaleReader(x_, x_.readers[kKey]);
      decay_.Scores(x_, kKey, kKey);
      SolveErrors(shape_, x_, scratch_.state);
      if (n + 1 < end) UpdateState(shape_, decay_.through(), x_, scratch_.state);
    }
  }

  void Gradients(int n, const Recomputed<T>& kept) {
    const ChunkEntry& chunk = scan_.args->chunks[n];
    UseRecomputed(kept);
    LoadOperands(chunk);
    decay_.Scores(x_, kQuery, kQuery);
    SolveAdjoint(shape_, x_, scratch_.adjoint,
                 item_.dbeta.data == nullptr ? nullptr : scratch_.beta_dots);
    Transpose(scratch_.adjoint, scratch_.adjoint_transposed, shape_.keys_padded,
              shape_.values_padded);
    decay_.PairGradients(x_);
    decay_.ReaderGradients(x_, kept.state_transposed);
    decay_.KeyGradient(x_, scratch_.adjoint_transposed);
    StoreGradients(chunk);
    if (item_.dlog_decay.data != nullptr)
      decay_.DecayGradient(x_, kept.state_transposed, scratch_.adjoint_transposed, chunk,
                           ValueRows(scan_, item_.dlog_decay, chunk));
    UpdateAdjoint(shape_, decay_.through(), x_, scratch_.adjoint);
    if (chunk.flags & kChunkResets)
      Clear(scratch_.adjoint, shape_.keys_padded, shape_.values_padded);
  }

  void LoadOperands(const ChunkEntry& chunk) {
    BeginChunk(scan_, shape_, chunk, x_);
    LoadQueries(scan_, shape_, chunk, x_);
    LoadOutputGradient(item_, shape_, chunk, x_);
    for (int column = 0; column < shape_.values_padded; column += kPanel)
      for (int r = 0; r < x_.rows; ++r)
        for (int j = 0; j < kPanel; j += kLanes<T>)
          At(x_.u.Row(r, column) + j) = At(x_.errors.Row(r, column) + j) * x_.beta[r];
    Transpose(x_.u, x_.u_transposed, x_.rows, shape_.values_padded);
    decay_.DecayTables(chunk);
    decay_.ScaleKeys(x_);
    for (const Reader<T>& reader : x_.readers) decay_.ScaleReader(x_, reader);
  }

  void StoreGradients(const ChunkEntry& chunk) const {
    const Reader<T>&query = x_.readers[kQuery], &key = x_.readers[kKey];
    StoreScaledRows(query.dx, ValueRows(scan_, item_.dq, chunk), x_.length, shape_.keys,
                    static_cast<T>(scan_.args->scale));
    StoreScaledRows(key.dx, ValueRows(scan_, item_.dk, chunk), x_.length, shape_.keys, T(1));
    StoreScaledRows(key.dread, ValueRows(scan_, item_.dv, chunk), x_.length, shape_.values, T(-1));
    if (item_.dbeta.data == nullptr) return;
    const RowsOf dbeta = ValueRows(scan_, item_.dbeta, chunk);
    for (int r = 0; r < x_.length; ++r)
      *dbeta.Row<T>(r) = Sum<T>(At(scratch_.beta_dots + r * kLanes<T>));
  }

  const ReverseItem& item_;
  const ScanItem& scan_;
  const Shape shape_;
  ScratchSpace space_;
  ReverseScratch<T, Decay> scratch_;
  Operands<T>& x_;
  Decay<T>& decay_;
};

// Computes only dL/d(state before the item).
template <typename T, template <typename> class Decay>
void AdjointScan(const ReverseItem& item) {
  const ScanItem& scan = item.scan;
  const Shape shape(*scan.args, scan.values);
  ScratchSpace space(scan.scratch);
  ReverseScratch<T, Decay> scratch(scan, shape, space);
  Operands<T>& x = scratch.x;
  LoadState<T>(shape, scan.entry_state, scratch.adjoint);
  for (int n = scan.end - 1; n >= scan.begin; --n) {
    const ChunkEntry& chunk = scan.args->chunks[n];
    BeginChunk(scan, shape, chunk, x);
    LoadQueries(scan, shape, chunk, x);
    LoadOutputGradient(item, shape, chunk, x);
    scratch.decay.DecayTables(chunk);
    scratch.decay.ScaleKeys(x);
    for (const Reader<T>& reader : x.readers) scratch.decay.ScaleReader(x, reader);
    scratch.decay.Scores(x, kQuery, kKey);
    SolveAdjoint(shape, x, scratch.adjoint, static_cast<T*>(nullptr));
    UpdateAdjoint(shape, scratch.decay.through(), x, scratch.adjoint);
    if (chunk.flags & kChunkResets) Clear(scratch.adjoint, shape.keys_padded, shape.values_padded);
  }
  StoreState<T>(shape, scratch.adjoint, scan.exit_state);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
