// Arguments of focus pooling, shared by its LibTorch side, CPU kernels and CUDA kernels.
//
//   Z_t = sum over j in W(t) of exp(l_j) + eps,   out_t = sum over j in W(t) of exp(l_j) u_j / Z_t
//
// W(t) is the last `window` tokens of t's document, including t. A token's log weight l is one
// number per head; -inf masks the token, whose u is then not read. A row whose window holds no
// token gives 0. Weighted sums are elements of a monoid: (m, z, s) represents exp(m) z and exp(m)
// s, where m is the largest log weight in the sum. So nothing overflows and nothing is subtracted:
// tokens that have left a window leave no rounding error (Gil and Werman, 1993, for sums over
// windows in linear time). A NaN in u or l affects only the tokens whose windows contain it.
//
// T is float, Bf16 or, on the CPU, double. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The type of sums, weights and state.
template <typename T>
using FocusCompute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Tokens [begin, begin + length) of a row, between two document starts.
struct FocusRun {
  int64_t row, begin, length;
  int64_t sequence;     // the sequence whose initial state it continues; -1: none
  int64_t final_state;  // the sequence that it ends; -1: none
};

// The runs and their inputs. N is the number of sequences. All arrays are contiguous. A null state
// is empty.
template <typename T>
struct FocusPoolShape {
  using Compute = FocusCompute<T>;
  int64_t batch = 0, seq_len = 0, num_heads = 0, dim = 0;  // B, T, H, P
  int64_t window = 0;                                      // tokens; 0: all
  double eps = 0;
  const FocusRun* runs = nullptr;  // on the host; no token is in two runs
  int64_t num_runs = 0;
  const Compute* log_weight = nullptr;  // [B, T, H]
  const T* u = nullptr;                 // [B, T, H, P]
  // Without a window: the sums so far. A mass of 0 means that there was no token.
  const Compute* log_scale = nullptr;  // m [N, H]
  const Compute* mass = nullptr;       // z [N, H]
  const Compute* sum = nullptr;        // s [N, H, P]
  // With a window: the last window - 1 tokens. -inf: absent.
  const Compute* tail_log_weight = nullptr;  // [N, window - 1, H]
  const T* tail_u = nullptr;                 // [N, window - 1, H, P]
};

template <typename T>
struct FocusPoolResults {
  using Compute = FocusCompute<T>;
  T* out = nullptr;  // [B, T, H, P]
  // Z is exp(row_max) row_sum; -inf and 0 for a row that sees no token.
  Compute* row_max = nullptr;  // [B, T, H]
  Compute* row_sum = nullptr;  // [B, T, H]
  // Without a window. log_scale null: not computed. Sequences that no run ends are not written.
  Compute* log_scale = nullptr;
  Compute* mass = nullptr;
  Compute* sum = nullptr;
};

// Gradients of absent inputs are null. A log scale has no gradient: mass and sum carry all of it.
template <typename T>
struct FocusPoolGrads {
  using Compute = FocusCompute<T>;
  const T* dout = nullptr;         // [B, T, H, P]
  const Compute* dmass = nullptr;  // gradient of the final state, together with `dsum`; null: zero
  const Compute* dsum = nullptr;   // [N, H, P]
  Compute* dlog_weight = nullptr;  // [B, T, H]
  T* du = nullptr;                 // [B, T, H, P]
  Compute* dinitial_mass = nullptr;     // [N, H]; sequences without a run are not written
  Compute* dinitial_sum = nullptr;      // [N, H, P]
  Compute* dtail_log_weight = nullptr;  // [N, window - 1, H]
  T* dtail_u = nullptr;
};

namespace cpu {
// Processes items [begin, end) of the num_runs H pairs (run, head): the work of one thread.
template <typename T>
void FocusPoolForward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                      int64_t begin, int64_t end);
// `results` are those of the forward.
template <typename T>
void FocusPoolBackward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                       const FocusPoolGrads<T>& grads, int64_t begin, int64_t end);
}  // namespace cpu

// The work of a thread block: at most kFocusChunk leaves of a run. Leaves are tokens in the
// direction of time, including those of the tail.
struct FocusChunk {
  int64_t first;  // index of the first leaf within the run
  int32_t run, length;
  int32_t opposite;  // leaves of the chunk at the same position in the previous block; 0: none
  int32_t has_rows;  // 0: a chunk of the tail
};
struct FocusBlock {
  int32_t run = 0;
  int32_t first_chunk = 0, num_chunks = 0;
  int32_t first_before = 0, num_before = 0;  // chunks of the previous block
};

namespace cuda {
// All pointers are to device memory. A narrow window (focus_pool_plan.h) has no blocks.
struct FocusWork {
  const FocusRun* runs = nullptr;
  const FocusChunk* chunks = nullptr;
  const FocusBlock* blocks = nullptr;
  int64_t num_chunks = 0, num_blocks = 0;
  // FocusTotalsFloats() each: the total of a chunk, the total of the chunks before it in its block,
  // and that of the rest of the previous block.
  float* totals = nullptr;
  float* carry = nullptr;
  float* rest = nullptr;
  float* delta = nullptr;  // [B, T, H], for the backward
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
