// Where the parts of the CUDA kernels' workspace lie: offsets in bytes, each a multiple of 256.
// Host code.
//
//   const cuda::BackwardLayout layout = cuda::MakeBackwardLayout(args, plan);
//   float* const dq = cuda::At<float>(args.workspace, layout.dq);
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/args.h"

namespace halflife::kernels::cuda {

// Which kernels run a problem.
enum class Route {
  // bf16, one decay factor a token, no normaliser, K and V (of a slice) within an instance
  kTensorCores,
  kChannelScan,  // the same where each channel has its own decay
  kSimt,         // everything else, in fp32
};
Route ForwardRoute(const DecayAttentionArgs& args);
Route BackwardRoute(const DecayAttentionArgs& args);

// What the segments of a sequence hand to each other, [num_sequences, H, num_segments] of each;
// nothing where one does.
struct SegmentLayout {
  size_t states = 0;  // [.., K, V] fp32: first the segment's own sum, then the state it starts from
  size_t log_transition = 0;  // [..(, K with decays of channels)]
};
struct ForwardLayout {
  SegmentLayout segments;
  size_t bytes = 0;
};
struct BackwardLayout {
  SegmentLayout segments;
  size_t group = 0;  // bf16 states within a group of chunks, one set a block, as fragments
  // fp32 gradients of shared heads, one per head of the output, summed in the order of the heads.
  size_t dq = 0, dk = 0;  // [B, T, H, K]
  size_t dv = 0;          // [B, T, H, V]
  size_t dlog_decay = 0;  // [B, T, H(, K)]
  size_t dlambda = 0;     // [num_sequences, H, num_segments(, K)]: constant decays
  // Of the SIMT kernels, whose partial sums above have a further leading dimension, the slices of V
  // (but for dv).
  size_t dkey_scale = 0;   // [slices, B, T, H]
  size_t simt_states = 0;  // [num_chunks, H, K, V (+ 1)]
  size_t dnorm = 0;        // [B, T, H]
  size_t bytes = 0;
};
ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// Forward and Summarise; Backward and BackwardSummarise.
size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// bf16 [num_chunks / every + num_sequences, H, K, V]; nothing on the SIMT route, which recomputes.
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

template <typename T>
T* At(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

}  // namespace halflife::kernels::cuda
