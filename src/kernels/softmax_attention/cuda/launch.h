// What the CUDA kernels of softmax attention and their dispatch share: which problems they take,
// the sizes of their blocks, and what a launch is given. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/softmax_attention/args.h"

namespace halflife::kernels::softmax {

constexpr int kThreads = 128;                       // four warps, 16 rows of a tile each
constexpr int kMaxBlock = 128;                      // channels of d, and of a slice of V
constexpr int kDiagonals = 2 * kAttentionTile - 1;  // distances between two tiles
constexpr int kBiasTile = 128;                      // a place for each

// What queries of a tile see, in places among the keys: of the ranges [first, end) their union and
// the part that all share, and the union of their sinks. Empty ones end where they begin, or
// before.
struct TileSpan {
  int first, end, sinks, sinks_end, all_first, all_end;
};

// Shared memory of a tile of queries: what each of them sees, and the numbers of its softmax.
struct QueryTable {
  int first[kAttentionTile], end[kAttentionTile], sinks[kAttentionTile];
  float log_sum[kAttentionTile], delta[kAttentionTile], bias_scale[kAttentionTile];
};

// Tiles of 64 rows of bf16.
constexpr int TileBytes(int columns) { return kAttentionTile * columns * 2; }
constexpr int kTableBytes = sizeof(QueryTable);
constexpr int kBiasBytes = kBiasTile * 4;
// dS of a pair of tiles, rows apart by one word more than they are long.
constexpr int kScoreStride = kAttentionTile + 1;
constexpr int kScoreBytes = kAttentionTile * kScoreStride * 4;

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
inline int NumSlices(const SoftmaxAttentionArgs& args) {
  return (args.head_dim_v + kMaxBlock - 1) / kMaxBlock;
}
inline int NumQueryTiles(const SoftmaxAttentionArgs& args) {
  return (args.num_queries + kAttentionTile - 1) / kAttentionTile;
}
inline int NumKeyTiles(const SoftmaxAttentionArgs& args) {
  return (args.num_keys + kAttentionTile - 1) / kAttentionTile;
}
// Tiles of keys less tiles of queries: pairs of tiles at one distance are a band.
inline int NumBands(const SoftmaxAttentionArgs& args) {
  return NumQueryTiles(args) + NumKeyTiles(args) - 1;
}

struct BackwardParams {
  SoftmaxAttentionGradArgs grads;
  TileSpan* spans = nullptr;  // [B, tiles of queries]
  float* deltas = nullptr;    // [B, T, H]: dO . O, of a softmax
  float* bands = nullptr;     // [B, H, bands, kBiasTile]: sums of dS, where dbias is wanted
};

template <int kD, int kV>
void LaunchForward(const SoftmaxAttentionArgs& args, cudaStream_t stream);
template <int kD, int kV>
void LaunchBackward(const BackwardParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::softmax
