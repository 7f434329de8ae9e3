// Arguments of the mix of each token with the previous one, shared by its LibTorch side, CPU loops
// and CUDA kernels. For each of a few mixes m [D], with x_{t-1} = 0 if there is no previous token:
//
//   out_t = (1 - m) x_{t-1} + m x_t
//   dx_t = sum over mixes of m dout_t + (1 - m) dout_{t+1},   dm = sum of dout_t (x_t - x_{t-1})
//
// The token before a slice's first is the tail. T is float or Bf16; arithmetic and sums are fp32.
// C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kTokenMixes = 3;  // maximum mixes of a pass

template <typename T>
struct TokenShiftShape {
  const T* x = nullptr;                  // [B, T, D]
  const T* tail = nullptr;               // null: there is nothing before the slice; else [B, D]
  const float* mixes[kTokenMixes] = {};  // [D] each
  // [B, T]: document starts; the first token of a document has no previous token
  const bool* starts = nullptr;
  int num_mixes = 0;
  int64_t batch = 0, seq_len = 0, dim = 0;
};
template <typename T>
struct TokenShiftResults {
  T* out[kTokenMixes] = {};  // [B, T, D] each
};

template <typename T>
struct TokenShiftGrads {
  const T* dout[kTokenMixes] = {};  // [B, T, D] each
  T* dx = nullptr;                  // [B, T, D]
  T* dtail = nullptr;               // [B, D], or null
  float* dmixes[kTokenMixes] = {};  // [D] each
  bool added[kTokenMixes] = {};     // true: add to the contents of the mix's gradient
};

namespace cpu {
// Tokens per partial sum of the mixes' gradients. Fixed, so that a sum does not depend on the
// number of threads. The last block of a row may be shorter.
constexpr int64_t kTokenShiftTokensPerBlock = 64;
inline int64_t TokenShiftBlocksPerRow(int64_t seq_len) {
  return (seq_len + kTokenShiftTokensPerBlock - 1) / kTokenShiftTokensPerBlock;
}

// `zeros` holds D zeros, which replace the token before a document's first.
template <typename T>
void TokenShiftForward(const TokenShiftShape<T>& shape, const TokenShiftResults<T>& results,
                       int64_t block, const T* zeros);
// Adds the block's gradients to dmixes [num_mixes, D]; grads.dmixes is not used. `scratch` holds D
// floats.
template <typename T>
void TokenShiftBackward(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                        int64_t block, const T* zeros, float* dmixes, float* scratch);
}  // namespace cpu

namespace cuda {
// Tokens that a thread processes in the backward. Each such run has one partial sum of the mixes'
// gradients.
constexpr int64_t kTokenShiftGradRun = 32;
template <typename T>
int64_t TokenShiftPartials(const TokenShiftShape<T>& shape) {
  return shape.batch * ((shape.seq_len + kTokenShiftGradRun - 1) / kTokenShiftGradRun);
}

template <typename T>
void TokenShiftForward(const TokenShiftShape<T>& shape, const TokenShiftResults<T>& results,
                       cudaStream_t stream);
// `partials` holds TokenShiftPartials num_mixes D floats.
template <typename T>
void TokenShiftBackward(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                        float* partials, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
