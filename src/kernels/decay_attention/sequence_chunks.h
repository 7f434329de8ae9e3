// A batch's chunk table where the kernels read it: beside the tensors, made once and shared by every layer.
//
//   inputs.chunks = MakeSequenceChunks({.batch = B, .seq_len = T, .document_starts = starts}, x.device());
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "kernels/decay_attention/chunk_table.h"

namespace halflife::kernels {

struct SequenceChunks {
  int64_t batch = 0, seq_len = 0, chunk_size = 64;
  at::Device device = at::kCPU;  // whose kernels may read it
  ChunkTable table;
  at::Tensor device_chunks,
      device_begin;  // copies of the table on a CUDA device; undefined on the CPU

  int num_sequences() const { return static_cast<int>(table.sequence_begin.size()) - 1; }
  int num_chunks() const { return static_cast<int>(table.chunks.size()); }
  const ChunkEntry* chunks() const;
  const int32_t* sequence_begin() const;
};

std::shared_ptr<const SequenceChunks> MakeSequenceChunks(const ChunkTableConfig& config,
                                                         at::Device device);

}  // namespace halflife::kernels
