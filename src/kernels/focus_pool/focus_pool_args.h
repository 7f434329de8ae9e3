// The contract of focus pooling between its LibTorch side, its CPU kernels and its CUDA kernels.
//
//   Z_t = sum over j in W(t) of exp(l_j) + eps,   out_t = sum over j in W(t) of exp(l_j) u_j / Z_t
//
// W(t): the last `window` tokens of t's document, t included. A token's log weight l is one number
// per head; -inf masks the token, whose u is then not read. A row whose window holds no token gives
// 0. Weighted sums are elements of a monoid: (m, z, s) stands for exp(m) z and exp(m) s, m the
// largest log weight in them, so that nothing overflows and nothing is subtracted: what has left a
// window leaves no rounding behind (Gil and Werman, 1993, for sums over windows in linear time). A
// NaN in u or l is heard by the tokens that see its own, and by no other.
//
// T: float, Bf16 or, on the CPU, double. C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// Of sums, weights and state.
template <typename T>
using FocusCompute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Tokens [begin, begin + length) of a row, between two document starts.
struct FocusRun {
  int64_t row, begin, length;
  int64_t sequence;     // whose initial state it goes on from; -1: none
  int64_t final_state;  // of the sequence that it ends; -1: none
};

// The runs and all that they read; N counts sequences. Everything is contiguous. A null state: from
// nothing.
template <typename T>
struct FocusPoolShape {
  using Compute = FocusCompute<T>;
  int64_t batch = 0, seq_len = 0, num_heads = 0, dim = 0;  // B, T, H, P
  int64_t window = 0;                                      // tokens; 0: all
  double eps = 0;
  const FocusRun* runs = nullptr;  // on the host; no token is in two
  int64_t num_runs = 0;
  const Compute* log_weight = nullptr;  // [B, T, H]
  const T* u = nullptr;                 // [B, T, H, P]
  // The sums so far, without a window; a mass of 0: nothing was seen.
  const Compute* log_scale = nullptr;  // m [N, H]
  const Compute* mass = nullptr;       // z [N, H]
  const Compute* sum = nullptr;        // s [N, H, P]
  // The last window - 1 tokens, with a window; -inf: absent.
  const Compute* tail_log_weight = nullptr;  // [N, window - 1, H]
  const T* tail_u = nullptr;                 // [N, window - 1, H, P]
};

template <typename T>
struct FocusPoolResults {
  using Compute = FocusCompute<T>;
  T* out = nullptr;  // [B, T, H, P]
  // exp(row_max) row_sum is Z; -inf and 0 for a row that saw nothing.
  Compute* row_max = nullptr;  // [B, T, H]
  Compute* row_sum = nullptr;  // [B, T, H]
  // Without a window; log_scale null: not wanted. Sequences that no run ends are not written.
  Compute* log_scale = nullptr;
  Compute* mass = nullptr;
  Compute* sum = nullptr;
};

// Gradients of what has none to give are null. A log scale has no gradient: mass and sum carry it.
template <typename T>
struct FocusPoolGrads {
  using Compute = FocusCompute<T>;
  const T* dout = nullptr;              // [B, T, H, P]
  const Compute* dmass = nullptr;       // of the final state, beside `dsum`; null: zero
  const Compute* dsum = nullptr;        //
  Compute* dlog_weight = nullptr;       // [B, T, H]
  T* du = nullptr;                      // [B, T, H, P]
  Compute* dinitial_mass = nullptr;     // [N, H]; sequences without a run are not written
  Compute* dinitial_sum = nullptr;      // [N, H, P]
  Compute* dtail_log_weight = nullptr;  // [N, window - 1, H]
  T* dtail_u = nullptr;
};

namespace cpu {
// Pieces [begin, end) of the num_runs H pairs (run, head): the work of one thread.
template <typename T>
void FocusPoolForward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                      int64_t begin, int64_t end);
// `results` are the forward's.
template <typename T>
void FocusPoolBackward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                       const FocusPoolGrads<T>& grads, int64_t begin, int64_t end);
}  // namespace cpu

// What runs as one block of threads: at most kFocusChunk leaves of a run (tokens in the direction
// of time, those of the tail included).
struct FocusChunk {
  int64_t first;  // leaf, counted within the run
  int32_t run, length;
  int32_t opposite;  // leaves of the chunk that stands opposite, in the block before; 0: none
  int32_t has_rows;  // 0: of the tail
};
struct FocusBlock {
  int32_t run = 0;
  int32_t first_chunk = 0, num_chunks = 0;
  int32_t first_before = 0, num_before = 0;  // chunks of the block before
};

namespace cuda {
// All on the device. A narrow window (partition.h) has no blocks.
struct FocusWork {
  const FocusRun* runs = nullptr;
  const FocusChunk* chunks = nullptr;
  const FocusBlock* blocks = nullptr;
  int64_t num_chunks = 0, num_blocks = 0;
  // FocusTotalsFloats each: what a chunk makes, what comes before it in its block, and the rest of
  // the block before.
  float* totals = nullptr;
  float* carry = nullptr;
  float* rest = nullptr;
  float* delta = nullptr;  // [B, T, H], of the backward
};
inline int64_t FocusTotalsFloats(int64_t num_chunks, int64_t num_heads, int64_t dim) {
  return num_chunks * num_heads * (dim + 2);
}

template <typename T>
void FocusPoolForward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                      const FocusWork& work, cudaStream_t stream);
template <typename T>
void FocusPoolBackward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                       const FocusPoolGrads<T>& grads, const FocusWork& work, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
