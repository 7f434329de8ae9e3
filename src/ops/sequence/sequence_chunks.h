// The chunk table of a batch on the device of its tensors. All layers share one table.
//
//   inputs.chunks =
//       MakeSequenceChunks({.batch = B, .seq_len = T, .document_starts = starts}, x.device());
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "kernels/common/chunks/chunk_table.h"

namespace halflife::ops {

// For each token, its run: consecutive tokens of a sequence without a document start in between.
// int64, on the device of the chunks.
struct TokenRuns {
  at::Tensor begin;  // [B, T]: index of the run's first token within its row
  // [B, T]: the sequence whose initial state the run continues; num_sequences if a document starts
  // the run.
  at::Tensor sequence;
  // [sequences]: index b T + t of the last token of a sequence, or B T + n if sequence n is empty.
  at::Tensor last;
};

struct SequenceChunks {
  int64_t batch = 0, seq_len = 0, chunk_size = 0;
  at::Device device = at::kCPU;  // the device whose kernels may read it
  kernels::ChunkTable table;
  at::Tensor device_chunks,
      device_begin;  // copies of the table on a CUDA device; undefined on the CPU

  int num_sequences() const { return static_cast<int>(table.sequence_begin.size()) - 1; }
  int num_chunks() const { return static_cast<int>(table.chunks.size()); }
  const kernels::ChunkEntry* chunks() const;
  const int32_t* sequence_begin() const;
  // Computed by the first call, from any thread.
  const TokenRuns& runs() const;
  // Replaces the contents by those of another table of the same shape and capacity. Addresses stay
  // the same, so a recorded graph reads the new table. No other thread may use either of the two.
  void Assign(const SequenceChunks& other);

 private:
  mutable std::once_flag runs_made_;
  mutable TokenRuns runs_;
};

std::shared_ptr<SequenceChunks> MakeSequenceChunks(kernels::ChunkTableConfig config,
                                                   at::Device device);

}  // namespace halflife::ops
