// The forward scan over chunks. The state stays in cache from chunk to chunk. See chunk.h.
#pragma once

#include "kernels/delta_rule/cpu/channel.h"
#include "kernels/delta_rule/cpu/scalar.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta {

// out = (q P) S + A u
template <typename T>
void StoreOutputs(const ScanItem& item, const Shape& shape, const ChunkEntry& chunk,
                  const Operands<T>& x, const Panels<T>& state) {
  const RowsOf out = ValueRows(item, item.args->out, chunk);
  const Reader<T>& query = x.readers[kQuery];
  ForTiles<Tile<T>>(x.rows, shape.values_padded, [&](int row, int column) HL_INLINE_LAMBDA {
    Tile<T> tile(x.ahead);
    tile.Clear();
    tile.MultiplyAdd(query.entry, row, state, column, 0, shape.keys);
    tile.MultiplyAdd(query.scores, row, x.u, column, 0, row);
    tile.MultiplyAddLower(query.scores, row, x.u, column);
    StoreTile<T>(tile, out, row, x.length, column, shape.values);
  });
}

template <typename T, template <typename> class Decay>
struct ForwardScratch {
  Operands<T> x;
  Decay<T> decay;
  Panels<T> state;  // S [K, V]

  ForwardScratch(const ScanItem& item, const Shape& shape, ScratchSpace& space)
      : x(shape, Decay<T>::kPerChannel, space),
        decay(item, shape, /*backward=*/false, space),
        state(space.Matrix<T>(shape.keys_padded, shape.values_padded)) {}
};

// Scans an item with outputs, or (kOutputs = false) only its state.
template <typename T, template <typename> class Decay, bool kOutputs>
void ForwardScan(const ScanItem& item) {
  const DeltaRuleArgs& args = *item.args;
  const Shape shape(args, item.values);
  ScratchSpace space(item.scratch);
  ForwardScratch<T, Decay> scratch(item, shape, space);
  auto& [x, decay, state] = scratch;
  LoadState<T>(shape, item.entry_state, state);
  for (int n = item.begin; n < item.end; ++n) {
    const ChunkEntry& chunk = args.chunks[n];
    if (chunk.flags & kChunkResets) Clear(state, shape.keys_padded, shape.values_padded);
    if (kOutputs && args.checkpoints != nullptr &&
        (n - item.first_chunk) % kDeltaCheckpointEvery == 0)
      StoreState<T>(shape, state, Checkpoint<T>(item, n));
    BeginChunk(item, shape, chunk, x);
    LoadValues(item, shape, chunk, x);
    decay.DecayTables(chunk);
    decay.ScaleKeys(x);
    decay.ScaleReader(x, x.readers[kKey]);
    if constexpr (kOutputs) {
      LoadQueries(item, shape, chunk, x);
      decay.ScaleReader(x, x.readers[kQuery]);
    }
    decay.Scores(x, kOutputs ? kQuery : kKey, kKey);
    SolveErrors(shape, x, state);
    if constexpr (kOutputs) StoreOutputs(item, shape, chunk, x, state);
    UpdateState(shape, decay.through(), x, state);
  }
  StoreState<T>(shape, state, item.exit_state);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::delta
