// Arguments of RWKV-4's time mixing, shared by its LibTorch side, CPU loops and CUDA kernels. For
// each sequence and channel, with the log decay w <= 0 and the bonus u of the token's own key:
//
//   out_t = (A_{t-1} + e^{u + k_t} v_t) / (B_{t-1} + e^{u + k_t})
//   A_t = e^w A_{t-1} + e^{k_t} v_t,   B_t the same of 1 in place of v_t
//
// A state holds A = p e^o and B = q e^o. If q is 0, there was no token, for any o. T is the storage
// type of activations (float, Bf16 or double). C is the type of everything else and of the
// arithmetic (float, or double for double). C++17 without LibTorch, because CUDA sources include
// it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// Tokens between two states that the forward keeps. The backward recomputes the states between
// them.
constexpr int kWkvTokensPerState = 16;
inline int64_t WkvTiles(int64_t seq_len) {
  return (seq_len + kWkvTokensPerState - 1) / kWkvTokensPerState;
}

// The state of each sequence, [B, D] each.
template <typename C>
struct WkvState {
  C* numerator = nullptr;    // p; null: the whole state is absent
  C* denominator = nullptr;  // q
  C* log_scale = nullptr;    // o
};

template <typename T, typename C>
struct WkvShape {
  const T* k = nullptr;          // [B, T, D]
  const T* v = nullptr;          // [B, T, D]
  const C* log_decay = nullptr;  // [D] w, or p of w = -e^p
  const C* bonus = nullptr;      // [D] u
  // [B, T]: document starts, at which the state is reset; null: none.
  const bool* starts = nullptr;
  WkvState<const C> initial = {};  // absent: empty
  int64_t batch = 0, seq_len = 0, dim = 0;
  bool negative_exp = false;  // true: log_decay holds p, and the gradient is that of p
};

template <typename T, typename C>
struct WkvResults {
  T* out = nullptr;        // [B, T, D]
  WkvState<C> final = {};  // may be the memory of the initial state, or absent
  C* kept = nullptr;       // [B, WkvTiles, 3, D]: p, q, o before each tile; null: not computed
};

template <typename T, typename C>
struct WkvGrads {
  const C* kept = nullptr;
  const T* dout = nullptr;         // [B, T, D]
  WkvState<const C> final = {};    // the forward's final state, of which log_scale is read
  WkvState<const C> dfinal = {};   // log_scale has no gradient and is null; may be absent
  T *dk = nullptr, *dv = nullptr;  // [B, T, D]
  WkvState<C> dinitial = {};       // absent: not computed
};
// [D] each.
template <typename C>
struct WkvChannelGrads {
  C *dlog_decay = nullptr, *dbonus = nullptr;
  bool decay_added = false, bonus_added = false;  // true: add to their contents
};

namespace cpu {
// Channels of a sequence that are processed together. A work item is one such block of one
// sequence: item = sequence * blocks + block. Results do not depend on the thread that runs an
// item.
constexpr int kWkvChannels = 64;
inline int64_t WkvBlocks(int64_t dim) { return (dim + kWkvChannels - 1) / kWkvChannels; }

// C is the arithmetic type: double for fp64, else float.
template <typename T, typename C>
void WkvForward(const WkvShape<T, C>& shape, const WkvResults<T, C>& results, int64_t item);
// dlog_decay and dbonus are [B, D]: separate for each sequence.
template <typename T, typename C>
void WkvBackward(const WkvShape<T, C>& shape, const WkvGrads<T, C>& grads, C* dlog_decay, C* dbonus,
                 int64_t item);
}  // namespace cpu

namespace cuda {
// Rows are split into segments if their channels are too few to fill a GPU: one pass computes the
// own state of each segment, one joins them in order, and one processes all tokens. Both sizes
// depend only on the shape.
struct WkvSegments {
  int64_t count = 1;   // per row
  int64_t tokens = 0;  // tokens of every segment but the last, a multiple of kWkvTokensPerState
};
WkvSegments WkvSegmentsOf(int64_t batch, int64_t seq_len, int64_t dim);
// Returns the workspace size of the forward or the backward.
int64_t WkvWorkspaceFloats(int64_t batch, int64_t seq_len, int64_t dim);

template <typename T>
void WkvForward(const WkvShape<T, float>& shape, const WkvResults<T, float>& results,
                float* workspace, cudaStream_t stream);
template <typename T>
void WkvBackward(const WkvShape<T, float>& shape, const WkvGrads<T, float>& grads,
                 const WkvChannelGrads<float>& channels, float* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
