// One decay per token and key channel, see kernels/common/cpu/channel_tiles.h. The decays from and
// to the state are exponentials of whole sums.
#pragma once

#include "kernels/common/cpu/channel_tiles.h"
#include "kernels/delta_rule/cpu/chunk.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

static_assert(kTile == kDecayTile);

template <typename T>
class ChannelDecay {
 public:
  static constexpr bool kPerChannel = true;

  ChannelDecay(const ScanItem& item, const Shape& shape, bool backward, ScratchSpace& space)
      : item_(item), shape_(shape), tiles_(kDeltaChunkSize, shape.keys, shape.keys_padded, space) {
    if (!backward) return;
    intra_ = space.Matrix<T>(kDeltaChunkSize, shape.keys_padded);
    late_ = space.Matrix<T>(kDeltaChunkSize, shape.keys_padded);
    early_ = space.Matrix<T>(kDeltaChunkSize, shape.keys_padded);
  }

  const T* through() const { return tiles_.through(); }  // Gamma

  void DecayTables(const ChunkEntry& chunk) {
    tiles_.Load(ValueRows(item_, item_.args->log_decay, chunk), chunk.length);
  }
  void ScaleReader(const Operands<T>&, const Reader<T>& reader) const {
    tiles_.ScaleReaders(reader.x, reader.prefix, reader.entry);
  }
  void ScaleKeys(const Operands<T>& x) const { tiles_.ScaleKeys(x.k, x.k_exit); }

  // Computes the scores of readers `first` to `last`: the sum over channels of x_r w_rs k_s.
  void Scores(const Operands<T>& x, ReaderIndex first, ReaderIndex last) const {
    tiles_.BeginScores();
    for (int i = 0; i < tiles_.rows(); i += kTile) {
      tiles_.AdvanceScores(i);
      for (int index = first; index <= last; ++index) {
        const Reader<T>& reader = x.readers[index];
        tiles_.ScoresOfTile(i, reader.x, reader.prefix, x.k_transposed, reader.strict, x.ahead,
                            reader.scores);
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
            dscore = CausalLanes<T>(dscore, row + r, column + j, reader.strict);
          });
        tile.Store(reader.dscores, row, column);
      });
  }

  // dx_r = P_r (S dread_r) + sum_s dscores_rs w_rs k_s, for both readers. Also stores the sum of
  // both x dx, without the pairs s = r, for the decay's gradient.
  void ReaderGradients(const Operands<T>& x, const Panels<T>& state_transposed) {
    for (int i = 0; i < tiles_.rows(); i += kTile) {
      tiles_.AdvanceKeys(i);
      for (const Reader<T>& reader : x.readers)
        tiles_.ReaderGradientsOfTile(i, reader.dscores, x.k, x.ahead, reader.dx);
    }
    Clear(late_, tiles_.rows(), shape_.keys_padded);
    for (const Reader<T>& reader : x.readers) AddStateReads(x, reader, state_transposed);
  }
  // Adds to dx of the keys: dk_s += Q_s (R u_s) + sum over both readers and r of dscores_rs w_rs
  // x_r. Also subtracts k times the sum over r > s from late, and stores early = k Q (R u).
  void KeyGradient(const Operands<T>& x, const Panels<T>& adjoint_transposed) {
    const Reader<T>&query = x.readers[kQuery], &key = x.readers[kKey];
    for (int j = tiles_.rows() - kTile; j >= 0; j -= kTile) {
      for (const Reader<T>& reader : x.readers) tiles_.AdvanceReaders(j, reader.prefix);
      tiles_.KeyGradientsOfTile(j, x.ahead, intra_,
                                PairGradient{query.dscores, query.prefix, query.x},
                                PairGradient{key.dscores, key.prefix, key.x});
    }
    ForTiles<Tile<T>>(tiles_.rows(), shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(x.u, row, adjoint_transposed, column, 0, shape_.values);
      MultiplyBy<T>(tile, tiles_.suffix(row, column));
      const T* after = tiles_.after(row, column);
      const T *q = query.x.Row(row, column), *k = x.k.Row(row, column);
      const T* intra = intra_.Row(row, column);
      T *late = late_.Row(row, column), *early = early_.Row(row, column);
      T* dk = key.dx.Row(row, column);
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
    for (int column = 0; column < shape_.keys_padded; column += kLanes<T>) {
      Vec<T> after = {};
      for (int i = 0; i < shape_.values; ++i)
        after += At(state_transposed.Row(i, column)) * At(adjoint_transposed.Row(i, column));
      after *= At(tiles_.through() + column);
      tiles_.DecayGradientOfLanes(column, x.length, (chunk.flags & kChunkResets) != 0, after,
                                  early_, late_);
    }
    StoreRows(late_, dlog_decay, 0, x.length, 0, shape_.keys);
  }

 private:
  using PairGradient = typename ChannelTiles<T>::PairGradient;

  // Completes dx with what the rows read from the state, and with the pairs s = r.
  void AddStateReads(const Operands<T>& x, const Reader<T>& reader,
                     const Panels<T>& state_transposed) const {
    ForTiles<Tile<T>>(tiles_.rows(), shape_.keys_padded, [&](int row, int column) HL_INLINE_LAMBDA {
      Tile<T> tile(x.ahead);
      tile.Clear();
      tile.MultiplyAdd(reader.dread, row, state_transposed, column, 0, shape_.values);
      MultiplyBy<T>(tile, tiles_.prefix(row, column));
      const T* before = tiles_.before(row, column);
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
  ChannelTiles<T> tiles_;
  Panels<T> intra_, late_, early_;  // [C, K]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
