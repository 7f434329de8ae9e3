// The layout of the workspace and of the checkpoints: offsets in bytes from the buffer's start,
// each a multiple of 64. The public size functions return the `bytes` of these layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cpu {

constexpr int kMaxChunkSize = 256;       // tokens
constexpr int kMaxCheckpointEvery = 64;  // chunks

// Returns the bytes per element of a state or a partial sum: fp32, or fp64 with fp64 operands.
constexpr size_t ComputeBytes(const DecayAttentionArgs& args) {
  return args.q.dtype == DType::kF64 ? 8 : 4;
}

// Allocates consecutive regions.
class Regions {
 public:
  constexpr size_t Add(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  constexpr size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// The states that the segments of a sequence pass to each other, indexed [num_sequences, H,
// num_segments]. Empty if there is only one segment.
struct SegmentLayout {
  size_t states = 0;          // [.., K, V]: first the segment's own state, then the state after it
  size_t norms = 0;           // [.., K]: the same for z, with kSumOfKeys
  size_t log_transition = 0;  // [.., K or 1]
};
struct ForwardLayout {
  SegmentLayout segments;
  size_t bytes = 0;
};
struct BackwardLayout {
  SegmentLayout segments;
  // Gradients of shared heads, one per output head, to be summed in the order of the heads.
  size_t dq = 0, dk = 0;  // [B, T, H, K]
  size_t dv = 0;          // [B, T, H, V]
  size_t dlog_decay = 0;  // [B, T, H(, K)]
  size_t dlambda = 0;     // [num_sequences, num_segments, H(, K)] fp64: constant decays
  size_t bytes = 0;
};
ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// Checkpoints are [num_slots, H, K, V] and, with kSumOfKeys, then [num_slots, H, K]. See
// CheckpointSlot.
struct CheckpointLayout {
  int64_t num_slots = 0;
  size_t norms = 0;
  size_t bytes = 0;
};
CheckpointLayout MakeCheckpointLayout(const DecayAttentionArgs& args,
                                      const DecayAttentionPlan& plan);

}  // namespace halflife::kernels::cpu
