// Where the states of the delta rule are saved, by the same rules for the forward, which writes
// them, and for the backward. C++17, so that CUDA sources can include this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/delta_rule/delta_rule_args.h"

namespace halflife::kernels {

// The state before every fourth chunk of a sequence is saved. A backward recomputes the states
// between them.
constexpr int kDeltaCheckpointEvery = 4;

// Returns the slot of the state before `chunk`, which must be the first chunk of a group of
// kDeltaCheckpointEvery, in a sequence whose chunks start at `first`. The slots of a sequence are
// consecutive. Slots of neighbouring sequences never overlap, without a table of their counts,
// because floor(a) + floor(b) <= floor(a + b).
HL_EVERYWHERE constexpr int64_t DeltaCheckpointSlot(int sequence, int first, int chunk) {
  return int64_t{1} * first / kDeltaCheckpointEvery + sequence +
         (chunk - first) / kDeltaCheckpointEvery;
}
HL_EVERYWHERE constexpr int64_t NumDeltaCheckpoints(int num_chunks, int num_sequences) {
  return int64_t{1} * num_chunks / kDeltaCheckpointEvery + num_sequences;
}

// Returns the bytes per element of a state: fp32, or fp64 with fp64 operands.
constexpr size_t DeltaComputeBytes(const DeltaRuleArgs& args) {
  return args.q.dtype == DType::kF64 ? 8 : 4;
}

}  // namespace halflife::kernels
