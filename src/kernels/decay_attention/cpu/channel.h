// Decays with one factor per channel, see kernels/common/cpu/channel_tiles.h.
#pragma once

#include "kernels/common/cpu/channel_tiles.h"
#include "kernels/decay_attention/cpu/scalar.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

static_assert(kTile == kDecayTile);

template <typename T>
class ChannelDecay {
 public:
  ChannelDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : args_(*item.args),
        head_(item.head),
        keys_(shape.keys),
        keys_padded_(shape.keys_padded),
        columns_(shape.columns),
        tiles_(shape.chunk_rows, keys_, keys_padded_, space),
        q_prefix_(space.Matrix<T>(shape.chunk_rows, keys_padded_)) {
    if (!backward) return;
    intra_ = space.Matrix<T>(shape.chunk_rows, keys_padded_);
    late_ = space.Matrix<T>(shape.chunk_rows, keys_padded_);
    early_ = space.Matrix<T>(shape.chunk_rows, keys_padded_);
  }

  const T* through() const { return tiles_.through(); }
  T log_through(int key) const { return tiles_.log_through(key); }
  bool cuts(int key) const {
    for (int r = 0; r < length_; ++r)
      if (*tiles_.log_decay().Row(r, key) == -static_cast<T>(__builtin_inff())) return true;
    return false;
  }

  void DecayTables(const ChunkEntry& chunk) {
    if (!IsPerToken(args_.decay_kind) && chunk.length == length_) return;
    length_ = chunk.length;
    TensorView view = args_.log_decay;
    if (!IsPerToken(args_.decay_kind)) view.stride_b = view.stride_t = 0;
    tiles_.Load(RowsOf(view, chunk, head_, args_.num_heads, args_.num_decay_heads), length_);
  }
  void ScaleQueries(const Operands<T>& x) { tiles_.ScaleReaders(x.q, q_prefix_, x.q_entry); }
  void ScaleKeys(const Operands<T>& x) { tiles_.ScaleKeys(x.k, x.k_exit); }

  // A_rs = sum over channels of q_r k_s w_rs
  void IntraTile(const Operands<T>& x) {
    tiles_.BeginScores();
    for (int i = 0; i < tiles_.rows(); i += kTile) {
      tiles_.AdvanceScores(i);
      tiles_.ScoresOfTile(i, x.q, q_prefix_, x.k_transposed, /*strict=*/false, x.ahead, x.scores);
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
          dscore = CausalLanes<T>(dscore, row + r, column + j, /*strict=*/false);
        });
      tile.Store(x.dscores, row, column);
    });
  }

  // dq_r = P_r (S do_r) + sum_{s <= r} D_rs w_rs k_s. Also stores late = q (dq without the pairs s
  // = r), for the decay's gradient.
  template <typename Store>
  void QueryGradient(const Operands<T>& x, const Panels<T>& state_transposed, Store store) {
    for (int i = 0; i < tiles_.rows(); i += kTile) {
      tiles_.AdvanceKeys(i);
      tiles_.ReaderGradientsOfTile(i, x.dscores, x.k, x.ahead, intra_);
    }
    ForTiles<Tile<T>>(tiles_.rows(), keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.dout, row, state_transposed, column, 0, columns_);
      MultiplyBy<T>(tile, tiles_.prefix(row, column));
      const T* before = tiles_.before(row, column);
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
    for (int j = tiles_.rows() - kTile; j >= 0; j -= kTile) {
      tiles_.AdvanceReaders(j, q_prefix_);
      tiles_.KeyGradientsOfTile(j, x.ahead, intra_, PairGradient{x.dscores, q_prefix_, x.q});
    }
    ForTiles<Tile<T>>(tiles_.rows(), keys_padded_, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.v, row, adjoint_transposed, column, 0, columns_);
      MultiplyBy<T>(tile, tiles_.suffix(row, column));
      const T* after = tiles_.after(row, column);
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
    for (int column = 0; column < keys_padded_; column += kLanes<T>) {
      Vec<T> whole = {};
      for (int i = 0; i < columns_; ++i)
        whole += At(state_transposed.Row(i, column)) * At(adjoint_transposed.Row(i, column));
      whole *= At(tiles_.through() + column);
      if (sink.dlambda != nullptr) AddConstantGradient(x.length, column, whole, sink.dlambda);
      if (sink.per_token)
        tiles_.DecayGradientOfLanes(column, x.length, /*resets=*/false, whole, early_, late_);
    }
    if (sink.per_token) StoreRows(late_, sink.rows, 0, x.length, 0, keys_);
  }

 private:
  using PairGradient = typename ChannelTiles<T>::PairGradient;

  void AddConstantGradient(int length, int column, const Vec<T>& whole, double* dlambda) const {
    for (int lane = 0; lane < kLanes<T> && column + lane < keys_; ++lane) {
      double sum = length * static_cast<double>(whole[lane]);
      for (int r = 0; r < length; ++r)
        sum += (r + 1.0) * late_.Row(r, column)[lane] +
               (length - 1.0 - r) * early_.Row(r, column)[lane];
      if (tiles_.log_decay().Row(0, column)[lane] > -__builtin_inff())
        dlambda[column + lane] += sum;
    }
  }

  const DecayAttentionArgs& args_;
  const int head_, keys_, keys_padded_, columns_;
  int length_ = -1;
  ChannelTiles<T> tiles_;
  Panels<T> q_prefix_;              // [C, K]; KeyGradient modifies it
  Panels<T> intra_, late_, early_;  // [C, K]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
