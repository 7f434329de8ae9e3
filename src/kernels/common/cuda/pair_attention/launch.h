// Shared by the kernels on pairs of tiles and their dispatch: block sizes and launch parameters.
// C++17; the host code is compiled in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda/pair_attention/args.h"

namespace halflife::kernels::pairs {

constexpr int kTileRows = 64;    // tokens of a tile, for queries and for keys
constexpr int kBlocksPerSm = 2;  // minimum: allows up to 255 registers per thread
constexpr int kThreads = 128;    // four warps, 16 rows of a tile each
constexpr int kMaxBlock = 128;   // maximum channels of d, and of a slice of V
// Number of distances between the tokens of two tiles.
constexpr int kDiagonals = 2 * kTileRows - 1;
constexpr int kBiasTile = 128;  // elements reserved for them

// The key indices that queries of a tile see: the union of their ranges [first, end), the part that
// all of them see, and the union of their sinks. An empty range ends at or before its beginning.
struct TileSpan {
  int first, end, sinks, sinks_end, all_first, all_end;
};

// Per-query data of a tile in shared memory: the keys that each query sees, and the divisor of its
// weights.
struct QueryTable {
  int first[kTileRows], end[kTileRows], sinks[kTileRows];
  float normaliser[kTileRows], delta[kTileRows], bias_scale[kTileRows];
};

// Bytes of a bf16 tile of 64 rows.
constexpr int TileBytes(int columns) { return kTileRows * columns * 2; }
constexpr int kTableBytes = sizeof(QueryTable);
constexpr int kBiasBytes = kBiasTile * 4;
// dS of a pair of tiles, with rows padded by one word.
constexpr int kScoreStride = kTileRows + 1;
constexpr int kScoreBytes = kTileRows * kScoreStride * 4;
// One bit per pair of two tiles: whether dropout keeps it.
constexpr int kKeptWords = kTileRows * kTileRows / 32;

// In addition to the sizes below: the bits of the current pair of tiles and of the next.
constexpr int DropoutBytes(bool drops) { return drops ? 2 * kKeptWords * 4 : 0; }
// Shared memory of a block for the compiled sizes of d and of a slice of V. With more than one
// slice (kSliced), a backward streams its slices of V.
constexpr int ForwardBytes(int d, int v) {
  return TileBytes(d) + 2 * (TileBytes(d) + TileBytes(v)) + kTableBytes + 2 * kBiasBytes;
}
constexpr int QueryGradientBytes(int d, int v, bool sliced) {
  return 3 * TileBytes(d) + (sliced ? 4 : 3) * TileBytes(v) + kTableBytes + 2 * kBiasBytes;
}
constexpr int KeyGradientBytes(int d, int v, bool sliced) {
  return 3 * TileBytes(d) + (sliced ? 4 : 3) * TileBytes(v) + 2 * (kTableBytes + kBiasBytes);
}
constexpr int BiasGradientBytes(int d, int v) {
  return 2 * (TileBytes(d) + TileBytes(v)) + kTableBytes + kBiasBytes + kScoreBytes;
}

inline int BlockOf(int width) { return width <= 64 ? 64 : kMaxBlock; }
inline int NumSlices(const PairAttentionArgs& args) {
  return (args.head_dim_v + kMaxBlock - 1) / kMaxBlock;
}
inline int NumQueryTiles(const PairAttentionArgs& args) {
  return (args.num_queries + kTileRows - 1) / kTileRows;
}
inline int NumKeyTiles(const PairAttentionArgs& args) {
  return (args.num_keys + kTileRows - 1) / kTileRows;
}
// The number of bands. A band consists of all pairs of tiles with the same difference between the
// tile indices of keys and queries.
inline int NumBands(const PairAttentionArgs& args) {
  return NumQueryTiles(args) + NumKeyTiles(args) - 1;
}

struct BackwardParams {
  PairAttentionGradArgs grads;
  TileSpan* spans = nullptr;  // [B, tiles of queries]
  float* deltas = nullptr;    // [B, T, H]: dO . O, if the sum of weights is the divisor
  float* bands = nullptr;     // [B, H, bands, kBiasTile]: sums of dS, if dbias is requested
};

// Returns the larger shared memory of a block in forward and backward, in bytes.
inline int64_t SharedBytes(int head_dim, int head_dim_v, bool has_bias, bool drops) {
  const int d = BlockOf(head_dim), v = BlockOf(head_dim_v);
  const bool sliced = head_dim_v > kMaxBlock;
  const int64_t sizes[] = {ForwardBytes(d, v), QueryGradientBytes(d, v, sliced),
                           KeyGradientBytes(d, v, sliced), has_bias ? BiasGradientBytes(d, v) : 0};
  int64_t most = 0;
  for (const int64_t size : sizes) most = size > most ? size : most;
  return most + DropoutBytes(drops);
}

template <int kD, int kV>
void LaunchForward(const PairAttentionArgs& args, cudaStream_t stream);
template <int kD, int kV>
void LaunchBackward(const BackwardParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::pairs
