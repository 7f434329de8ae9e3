// The part of the problem that a block of a scan of states owns, for both scans (scan.cuh,
// warpgroup_scan.cuh).
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/delta_rule_partition.h"

namespace halflife::kernels::delta {

struct ScanBlock {
  int sequence, head, column;  // the slice's first column
  int begin, end;              // chunks
  int first;                   // first chunk of the sequence
};

// Returns the sequence to which a checkpoint slot belongs. An unused slot counts for the sequence
// before it.
HL_DEVICE int SequenceOfSlot(const DeltaRuleArgs& args, int64_t slot) {
  int low = 0, high = args.num_sequences;  // sequence `low` starts at or before the slot
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const int first = args.sequence_begin[middle];
    if (DeltaCheckpointSlot(middle, first, first) <= slot) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// kWidth: the columns of a slice.
template <int kWidth>
HL_DEVICE ScanBlock MakeScanBlock(const ScanParams& params) {
  const DeltaRuleArgs& args = params.args;
  const int slices = (PaddedValues(params.values) + kWidth - 1) / kWidth;
  int64_t index = blockIdx.x;
  ScanBlock block;
  block.column = static_cast<int>(index % slices) * kWidth;
  index /= slices;
  block.head = static_cast<int>(index % args.num_value_heads);
  index /= args.num_value_heads;
  if (params.from_checkpoints) {
    block.sequence = SequenceOfSlot(args, index);
    block.first = args.sequence_begin[block.sequence];
    const int64_t group = index - DeltaCheckpointSlot(block.sequence, block.first, block.first);
    const int last = args.sequence_begin[block.sequence + 1];
    block.begin = block.first + static_cast<int>(group) * kDeltaCheckpointEvery;
    block.end = min(last, block.begin + kDeltaCheckpointEvery);
  } else {
    block.sequence = static_cast<int>(index);
    block.begin = block.first = args.sequence_begin[block.sequence];
    block.end = args.sequence_begin[block.sequence + 1];
  }
  return block;
}

HL_DEVICE float* CheckpointAt(const ScanParams& params, const ScanBlock& block, int chunk) {
  const int64_t slot = DeltaCheckpointSlot(block.sequence, block.first, chunk);
  return params.checkpoints +
         (slot * params.args.num_value_heads + block.head) * params.args.head_dim_k * params.values;
}
// Returns the first element of the block's head in the initial or final states.
HL_DEVICE int64_t StateIndex(const ScanParams& params, const ScanBlock& block) {
  const DeltaRuleArgs& args = params.args;
  return (int64_t{1} * block.sequence * args.num_value_heads + block.head) * args.head_dim_k *
         params.values;
}

// Returns the number of independent parts of a scan: sequences or, from checkpoints, groups of
// chunks.
inline int64_t NumScanParts(const ScanParams& params) {
  const DeltaRuleArgs& args = params.args;
  return params.from_checkpoints ? NumDeltaCheckpoints(args.num_chunks, args.num_sequences)
                                 : args.num_sequences;
}

}  // namespace halflife::kernels::delta
