// A batch's chunk table where the kernels read it: beside the tensors, made once and shared by
// every layer.
//
//   inputs.chunks =
//       MakeSequenceChunks({.batch = B, .seq_len = T, .document_starts = starts}, x.device());
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "kernels/common/chunks/chunk_table.h"

namespace halflife::ops {

// The runs of tokens that no document start cuts, for what is counted within them. On the device of
// the chunks, int64.
struct TokenRuns {
  at::Tensor begin;  // [B, T]: the run's first token, counted within its row
  // [B, T]: whose initial state it goes on from; num_sequences: none, a document starts it
  at::Tensor sequence;
  // [sequences]: the last token of each, b T + t; of a sequence n without tokens B T + n.
  at::Tensor last;
};

struct SequenceChunks {
  int64_t batch = 0, seq_len = 0, chunk_size = 0;
  at::Device device = at::kCPU;  // whose kernels may read it
  kernels::ChunkTable table;
  at::Tensor device_chunks,
      device_begin;  // copies of the table on a CUDA device; undefined on the CPU

  int num_sequences() const { return static_cast<int>(table.sequence_begin.size()) - 1; }
  int num_chunks() const { return static_cast<int>(table.chunks.size()); }
  const kernels::ChunkEntry* chunks() const;
  const int32_t* sequence_begin() const;
  // Made when first asked for, by any thread.
  const TokenRuns& runs() const;

 private:
  mutable std::once_flag runs_made_;
  mutable TokenRuns runs_;
};

std::shared_ptr<const SequenceChunks> MakeSequenceChunks(kernels::ChunkTableConfig config,
                                                         at::Device device);

}  // namespace halflife::ops
