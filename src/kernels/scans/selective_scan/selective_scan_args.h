// Arguments of Mamba's selective scan, shared by its LibTorch side, CPU loops and CUDA kernels. For
// each sequence and channel i, with N states:
//
//   step_t = softplus(delta_t + delta_bias)
//   h_t[n] = e^{step_t a[n]} h_{t-1}[n] + step_t x_t b_t[n],   y_t = sum_n c_t[n] h_t[n] + skip x_t
//
// T is the storage type of activations (float, Bf16 or double). C is the type of everything else
// and of the arithmetic (float, or double for double). C++17 without LibTorch, because CUDA sources
// include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kScanMaxStates = 256;

namespace cuda {
// The kernels of a call. The two routes differ in the order of their sums.
enum class ScanRoute : int {
  kAuto,      // ScanRouteOf() decides
  kSegments,  // any number of states; rows are split into segments if the channels are few
  kLanes,     // 16 states, which stay in registers for the whole row
};
}  // namespace cuda

template <typename T, typename C>
struct ScanShape {
  const T* x = nullptr;           // [B, T, I]
  const T* delta = nullptr;       // [B, T, I], before bias and softplus
  const C* delta_bias = nullptr;  // [I]
  const C* a = nullptr;           // [I, N], negative, or p of a = -e^p
  const T* b = nullptr;           // [B, T, N]
  const T* c = nullptr;           // [B, T, N]
  const C* skip = nullptr;        // [I]
  // [B, T]: document starts, at which the state is reset; null: none.
  const bool* starts = nullptr;
  const C* initial = nullptr;  // [B, I, N]; null: zero
  int64_t batch = 0, seq_len = 0, channels = 0;
  int64_t states = 0;        // N, 1 to kScanMaxStates
  int64_t token_stride = 0;  // distance between the tokens of b and of c, in elements; N if dense
  // The same for x and delta, only on the CPU. A GPU needs them dense.
  int64_t x_stride = 0, delta_stride = 0;
  bool negative_exp = false;  // true: `a` holds p, and the gradient is that of p
  cuda::ScanRoute route = cuda::ScanRoute::kAuto;  // of CUDA kernels; the same in both directions
};

template <typename T, typename C>
struct ScanResults {
  T* y = nullptr;        // [B, T, I]
  int64_t y_stride = 0;  // distance between tokens, like x_stride
  C* final = nullptr;    // [B, I, N], may be the memory of the initial state; null: not computed
  C* kept = nullptr;     // [B, tiles, N, I]: the state before each tile; null: not computed
};

template <typename T, typename C>
struct ScanGrads {
  const C* kept = nullptr;
  const T* dy = nullptr;      // [B, T, I]
  int64_t dy_stride = 0;      // distance between tokens, like x_stride
  const C* dfinal = nullptr;  // [B, I, N]; null: zero
  T* dx = nullptr;            // [B, T, I]
  int64_t dx_stride = 0;
  T* ddelta = nullptr;  // [B, T, I]
  int64_t ddelta_stride = 0;
  C* dinitial = nullptr;           // [B, I, N]; null: not computed
  T *db = nullptr, *dc = nullptr;  // [B, T, N]
  int64_t token_stride = 0;        // distance between the tokens of db and of dc, as in ScanShape
};

inline int64_t ScanTiles(int64_t seq_len, int64_t tokens) {
  return (seq_len + tokens - 1) / tokens;
}

namespace cpu {
// Tokens of a tile. The forward keeps one state per tile, from which the backward recomputes the
// others. With N = 16, the kept states have half as many floats as the activations.
constexpr int kScanTile = 32;
// Channels of a sequence that are processed together. A work item is one such block of one
// sequence: item = sequence * blocks + block. Results do not depend on the thread that runs an
// item.
constexpr int kScanChannels = 64;
inline int64_t ScanBlocks(int64_t channels) {
  return (channels + kScanChannels - 1) / kScanChannels;
}

// Results of a backward's items that the caller must sum, in order.
template <typename C>
struct ScanPartials {
  C* da = nullptr;                 // [B, N, I]
  C* dskip = nullptr;              // [B, I]
  C* ddelta_bias = nullptr;        // [B, I]
  C *db = nullptr, *dc = nullptr;  // [blocks, B, T, N]
};

// Computes db and dc of tokens [begin, end) of all rows from the blocks' sums, in order.
// C is the arithmetic type: double for fp64, else float.
template <typename T, typename C>
void ScanSumTokens(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                   const ScanPartials<C>& partials, int64_t begin, int64_t end);

// Returns the scratch bytes that an item needs, aligned to 64. T and C are those of the call.
int64_t ScanScratchBytes(int64_t states, bool wide);

template <typename T, typename C>
void ScanForward(const ScanShape<T, C>& shape, const ScanResults<T, C>& results, int64_t item,
                 void* scratch);
template <typename T, typename C>
void ScanBackward(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                  const ScanPartials<C>& partials, int64_t item, void* scratch);
}  // namespace cpu

namespace cuda {
constexpr int kScanTile = 16;  // like cpu::kScanTile; a thread holds a tile's tokens in registers

// fp32 gradients. `added`: add to their contents.
struct ScanWeightGrads {
  float* da = nullptr;                             // [I, N]
  float *dskip = nullptr, *ddelta_bias = nullptr;  // [I]
  bool a_added = false, skip_added = false, bias_added = false;
};

// Rows are split into segments if their channels are too few to fill a GPU: one pass computes the
// own state of each segment, one joins them in order, and one processes all tokens. Both sizes
// depend only on the shape.
struct ScanSegments {
  int64_t count = 1;   // per row
  int64_t tokens = 0;  // tokens of every segment but the last, a multiple of kScanTile
};
ScanSegments ScanSegmentsOf(int64_t batch, int64_t seq_len, int64_t channels);

struct ScanSizes {
  int64_t batch, seq_len, channels, states;
  ScanRoute route = ScanRoute::kAuto;
};
// Returns the route of a call, never kAuto. It depends only on the shape.
ScanRoute ScanRouteOf(const ScanSizes& sizes);
int64_t ScanForwardWorkspaceFloats(const ScanSizes& sizes);
int64_t ScanBackwardWorkspaceFloats(const ScanSizes& sizes);

template <typename T>
void ScanForward(const ScanShape<T, float>& shape, const ScanResults<T, float>& results,
                 float* workspace, cudaStream_t stream);
template <typename T>
void ScanBackward(const ScanShape<T, float>& shape, const ScanGrads<T, float>& grads,
                  const ScanWeightGrads& weights, float* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
