// The contract of Mamba's selective scan between its binding, its CPU loops and its CUDA kernels.
// Per sequence and channel i, with N states each:
//
//   step_t = softplus(delta_t + delta_bias)
//   h_t[n] = e^{step_t a[n]} h_{t-1}[n] + step_t x_t b_t[n],   y_t = sum_n c_t[n] h_t[n] + skip x_t
//
// T: storage of activations (float, Bf16 or double), C: of all else and of the arithmetic (float,
// or double beside double). C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int64_t kScanMaxStates = 256;

template <typename T, typename C>
struct ScanShape {
  const T* x = nullptr;           // [B, T, I]
  const T* delta = nullptr;       // [B, T, I], before bias and softplus
  const C* delta_bias = nullptr;  // [I]
  const C* a = nullptr;           // [I, N], < 0, or p of a = -e^p
  const T* b = nullptr;           // [B, T, N]
  const T* c = nullptr;           // [B, T, N]
  const C* skip = nullptr;        // [I]
  const bool* starts = nullptr;   // [B, T]: documents, before which the state is dropped; or null
  const C* initial = nullptr;     // [B, I, N]; null: zero
  int64_t batch = 0, seq_len = 0, channels = 0;
  int64_t states = 0;        // N, 1 to kScanMaxStates
  int64_t token_stride = 0;  // elements between the tokens of b and of c: N, where they are dense
  // Likewise of x and of delta, for the CPU: a GPU takes dense ones alone.
  int64_t x_stride = 0, delta_stride = 0;
  bool negative_exp = false;  // a holds p, and its gradient is p's
};

template <typename T, typename C>
struct ScanResults {
  T* y = nullptr;        // [B, T, I]
  int64_t y_stride = 0;  // between its tokens, as that of x
  C* final = nullptr;    // [B, I, N], may be the initial state's memory; null: not wanted
  C* kept = nullptr;     // [B, tiles, N, I]: the state before each tile; null: not wanted
};

template <typename T, typename C>
struct ScanGrads {
  const C* kept = nullptr;
  const T* dy = nullptr;      // [B, T, I]
  int64_t dy_stride = 0;      // between its tokens, as that of x
  const C* dfinal = nullptr;  // [B, I, N]; null: zero
  T* dx = nullptr;            // [B, T, I]
  int64_t dx_stride = 0;
  T* ddelta = nullptr;  // [B, T, I]
  int64_t ddelta_stride = 0;
  C* dinitial = nullptr;           // [B, I, N]; null: not wanted
  T *db = nullptr, *dc = nullptr;  // [B, T, N]
  int64_t token_stride = 0;        // between the tokens of db and of dc, as in ScanShape
};

inline int64_t ScanTiles(int64_t seq_len, int64_t tokens) {
  return (seq_len + tokens - 1) / tokens;
}

namespace cpu {
// Tokens of a tile: between two states that the forward keeps, from which the backward goes forward
// once more. Half as many floats as the activations have, where N is 16.
constexpr int kScanTile = 32;
// Channels of a sequence that are worked through together. An item is one such block of one
// sequence, item = sequence * blocks + block; no result depends on who runs it.
constexpr int kScanChannels = 64;
inline int64_t ScanBlocks(int64_t channels) {
  return (channels + kScanChannels - 1) / kScanChannels;
}

// What the items of a backward leave to be summed, in order, by the caller.
template <typename C>
struct ScanPartials {
  C* da = nullptr;                 // [B, N, I]
  C* dskip = nullptr;              // [B, I]
  C* ddelta_bias = nullptr;        // [B, I]
  C *db = nullptr, *dc = nullptr;  // [blocks, B, T, N]
};

// db and dc of tokens [begin, end) of all rows, of the sums of the blocks in their order.
void ScanSumTokens(const ScanShape<float, float>& shape, const ScanGrads<float, float>& grads,
                   const ScanPartials<float>& partials, int64_t begin, int64_t end);
void ScanSumTokens(const ScanShape<Bf16, float>& shape, const ScanGrads<Bf16, float>& grads,
                   const ScanPartials<float>& partials, int64_t begin, int64_t end);
void ScanSumTokens(const ScanShape<double, double>& shape, const ScanGrads<double, double>& grads,
                   const ScanPartials<double>& partials, int64_t begin, int64_t end);

// Bytes of scratch that an item needs, aligned to 64; T and C as those of the call.
int64_t ScanScratchBytes(int64_t states, bool wide);

void ScanForward(const ScanShape<float, float>& shape, const ScanResults<float, float>& results,
                 int64_t item, void* scratch);
void ScanForward(const ScanShape<Bf16, float>& shape, const ScanResults<Bf16, float>& results,
                 int64_t item, void* scratch);
void ScanForward(const ScanShape<double, double>& shape, const ScanResults<double, double>& results,
                 int64_t item, void* scratch);
void ScanBackward(const ScanShape<float, float>& shape, const ScanGrads<float, float>& grads,
                  const ScanPartials<float>& partials, int64_t item, void* scratch);
void ScanBackward(const ScanShape<Bf16, float>& shape, const ScanGrads<Bf16, float>& grads,
                  const ScanPartials<float>& partials, int64_t item, void* scratch);
void ScanBackward(const ScanShape<double, double>& shape, const ScanGrads<double, double>& grads,
                  const ScanPartials<double>& partials, int64_t item, void* scratch);
}  // namespace cpu

namespace cuda {
constexpr int kScanTile = 16;  // as above; a thread holds a tile's tokens in registers

// fp32; `added`: to what they hold.
struct ScanWeightGrads {
  float* da = nullptr;                             // [I, N]
  float *dskip = nullptr, *ddelta_bias = nullptr;  // [I]
  bool a_added = false, skip_added = false, bias_added = false;
};

// Rows are cut into segments where their channels alone would leave a GPU idle: a pass for the own
// states of each, one that joins them in order, then all tokens. Both sizes depend on the shape
// alone.
struct ScanSegments {
  int64_t count = 1;   // of a row
  int64_t tokens = 0;  // of each but the last, a multiple of kScanTile
};
ScanSegments ScanSegmentsOf(int64_t batch, int64_t seq_len, int64_t channels);

struct ScanSizes {
  int64_t batch, seq_len, channels, states;
};
int64_t ScanForwardWorkspaceFloats(const ScanSizes& sizes);
int64_t ScanBackwardWorkspaceFloats(const ScanSizes& sizes);

void ScanForward(const ScanShape<float, float>& shape, const ScanResults<float, float>& results,
                 float* workspace, cudaStream_t stream);
void ScanForward(const ScanShape<Bf16, float>& shape, const ScanResults<Bf16, float>& results,
                 float* workspace, cudaStream_t stream);
void ScanBackward(const ScanShape<float, float>& shape, const ScanGrads<float, float>& grads,
                  const ScanWeightGrads& weights, float* workspace, cudaStream_t stream);
void ScanBackward(const ScanShape<Bf16, float>& shape, const ScanGrads<Bf16, float>& grads,
                  const ScanWeightGrads& weights, float* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
