// The sizes of a head, and copies of its states between the caller's memory and panels in scratch.
#pragma once

#include "kernels/common/cpu/chunk_rows.h"
#include "kernels/decay_attention/cpu/kernels.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// The tile size in tokens at which weights are formed and triangular products are skipped.
constexpr int kTile = 16;

// The sizes of one head. The normaliser is stored as an additional column of v that is all ones:
// the last column of the state is then z, and the last column of out is the denominator, so that no
// product needs a special case.
struct Shape {
  int keys, values;                 // K, V
  int columns;                      // V, or V + 1 with the normaliser
  int keys_padded, columns_padded;  // rounded up to whole panels; the padding is always zero
  int chunk_rows;                   // C rounded up to whole tiles
  bool normalised;

  Shape(const DecayAttentionArgs& args, const DecayAttentionPlan& plan)
      : keys(args.head_dim_k),
        values(args.head_dim_v),
        columns(args.head_dim_v + (args.norm_kind == NormKind::kSumOfKeys)),
        keys_padded(RoundUp(keys, kPanel)),
        columns_padded(RoundUp(columns, kPanel)),
        chunk_rows(RoundUp(plan.chunk_size, kTile)),
        normalised(args.norm_kind == NormKind::kSumOfKeys) {}
};

// Calls function(address, row, column, bytes) for the part of each row of [K, V] in each panel.
template <typename T, typename Function>
void ForPieces(T* state, const Shape& shape, Function function) {
  for (int c = 0; c < shape.values; c += kPanel) {
    const size_t bytes = sizeof(T) * (shape.values - c < kPanel ? shape.values - c : kPanel);
    for (int i = 0; i < shape.keys; ++i)
      function(state + int64_t{1} * i * shape.values + c, i, c, bytes);
  }
}
// Copies [K, V] and [K] to or from the panels of a state [K, V (+ 1)].
template <typename T>
void LoadState(const Shape& shape, const void* state, const void* norm, const Panels<T>& to) {
  Clear(to, shape.keys_padded, shape.columns_padded);
  if (state != nullptr)
    ForPieces(static_cast<const T*>(state), shape, [&](const T* piece, int i, int c, size_t bytes) {
      __builtin_memcpy(to.Row(i, c), piece, bytes);
    });
  const auto* sums = static_cast<const T*>(norm);
  for (int i = 0; shape.normalised && norm != nullptr && i < shape.keys; ++i)
    *to.Row(i, shape.values) = sums[i];
}
template <typename T>
void StoreState(const Shape& shape, const Panels<T>& from, void* state, void* norm) {
  if (state != nullptr)
    ForPieces(static_cast<T*>(state), shape, [&](T* piece, int i, int c, size_t bytes) {
      __builtin_memcpy(piece, from.Row(i, c), bytes);
    });
  auto* sums = static_cast<T*>(norm);
  for (int i = 0; shape.normalised && norm != nullptr && i < shape.keys; ++i)
    sums[i] = *from.Row(i, shape.values);
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
