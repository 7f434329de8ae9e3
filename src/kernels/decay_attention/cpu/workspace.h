// Where the parts of the workspace and of the checkpoints lie: offsets in bytes from the buffer's
// start, each a multiple of 64. The sizes that plan.cc gives out are the `bytes` of these.
//
//   const ForwardLayout layout = MakeForwardLayout(args, plan);
//   auto* memory = static_cast<std::byte*>(args.workspace);
//   auto* states = reinterpret_cast<float*>(memory + layout.segments.states);
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cpu {

constexpr int kMaxChunkSize = 256;       // tokens
constexpr int kMaxCheckpointEvery = 64;  // chunks

// Bytes of an element of state, and of a partial sum: fp32, or fp64 beside fp64 operands.
constexpr size_t ComputeBytes(const DecayAttentionArgs& args) {
  return args.q.dtype == DType::kF64 ? 8 : 4;
}

// Hands out consecutive regions.
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

// What a sequence's segments hand to each other, [num_sequences, H, num_segments] of each; none
// where one segment does.
struct SegmentLayout {
  size_t states = 0;  // [.., K, V]: first the segment's own sum, then the state it starts from
  size_t norms = 0;   // [.., K]     likewise, with kSumOfKeys
  size_t log_transition = 0;  // [.., K or 1]
};
struct ForwardLayout {
  SegmentLayout segments;
  size_t bytes = 0;
};
struct BackwardLayout {
  SegmentLayout segments;
  // Gradients of shared heads, one per head of the output, for a sum in the order of the heads.
  size_t dq = 0, dk = 0;  // [B, T, H, K]
  size_t dv = 0;          // [B, T, H, V]
  size_t dlog_decay = 0;  // [B, T, H(, K)]
  size_t dlambda = 0;     // [num_sequences, num_segments, H(, K)] fp64: constant decays
  size_t bytes = 0;
};
ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// Checkpoints are [num_slots, H, K, V], then with kSumOfKeys [num_slots, H, K]; see CheckpointSlot.
struct CheckpointLayout {
  int64_t num_slots = 0;
  size_t norms = 0;
  size_t bytes = 0;
};
CheckpointLayout MakeCheckpointLayout(const DecayAttentionArgs& args,
                                      const DecayAttentionPlan& plan);

}  // namespace halflife::kernels::cpu
