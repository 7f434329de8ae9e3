// What the kernels on pairs of tiles and their dispatch share: the sizes of their blocks, and what
// a launch is given. C++17, host code in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda/pair_attention/args.h"

namespace halflife::kernels::pairs {

constexpr int kTileRows = 64;                  // tokens of a tile, of queries and of keys alike
constexpr int kBlocksPerSm = 2;                // at least: up to 255 registers a thread
constexpr int kThreads = 128;                  // four warps, 16 rows of a tile each
constexpr int kMaxBlock = 128;                 // channels of d, and of a slice of V
constexpr int kDiagonals = 2 * kTileRows - 1;  // distances between two tiles
constexpr int kBiasTile = 128;                 // a place for each

// What queries of a tile see, in places among the keys: of the ranges [first, end) their union and
// the part that all share, and the union of their sinks. Empty ones end where they begin, or
// before.
struct TileSpan {
  int first, end, sinks, sinks_end, all_first, all_end;
};

// Shared memory of a tile of queries: what each of them sees, and what its weights are divided by.
struct QueryTable {
  int first[kTileRows], end[kTileRows], sinks[kTileRows];
  float normaliser[kTileRows], delta[kTileRows], bias_scale[kTileRows];
};

// Tiles of 64 rows of bf16.
constexpr int TileBytes(int columns) { return kTileRows * columns * 2; }
constexpr int kTableBytes = sizeof(QueryTable);
constexpr int kBiasBytes = kBiasTile * 4;
// dS of a pair of tiles, rows apart by one word more than they are long.
constexpr int kScoreStride = kTileRows + 1;
constexpr int kScoreBytes = kTileRows * kScoreStride * 4;
// Of dropout, which pairs of two tiles are kept: a bit each.
constexpr int kKeptWords = kTileRows * kTileRows / 32;

// Beside those below: of the pair at hand and the next.
constexpr int DropoutBytes(bool drops) { return drops ? 2 * kKeptWords * 4 : 0; }
// A block's d and slice of V, as compiled. Of more than one slice a backward streams what it has of
// V; kSliced.
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
// Tiles of keys less tiles of queries: pairs of tiles at one distance are a band.
inline int NumBands(const PairAttentionArgs& args) {
  return NumQueryTiles(args) + NumKeyTiles(args) - 1;
}

struct BackwardParams {
  PairAttentionGradArgs grads;
  TileSpan* spans = nullptr;  // [B, tiles of queries]
  float* deltas = nullptr;    // [B, T, H]: dO . O, where the sum of weights divides
  float* bands = nullptr;     // [B, H, bands, kBiasTile]: sums of dS, where dbias is wanted
};

// Shared memory of a block, forward and backward, in bytes.
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
