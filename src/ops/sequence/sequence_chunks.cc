#include "ops/sequence/sequence_chunks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "core/error.h"
#include "ops/torch/host_transfer.h"

namespace halflife::ops {
namespace {

TokenRuns MakeTokenRuns(const SequenceChunks& chunks) {
  const int64_t batch = chunks.batch, seq_len = chunks.seq_len;
  const kernels::ChunkTable& table = chunks.table;
  const at::Tensor begin = at::empty({batch, seq_len}, at::kLong), sequence = at::empty_like(begin),
                   last = at::empty({chunks.num_sequences()}, at::kLong);
  auto* const begins = begin.mutable_data_ptr<int64_t>();
  auto* const sequences = sequence.mutable_data_ptr<int64_t>();
  for (int n = 0; n < chunks.num_sequences(); ++n) {
    int64_t end = batch * seq_len + n, run_begin = 0, owner = n;
    for (int i = table.sequence_begin[n]; i < table.sequence_begin[n + 1]; ++i) {
      const kernels::ChunkEntry& chunk = table.chunks[i];
      const bool resets = (chunk.flags & kernels::kChunkResets) != 0;
      if (resets || i == table.sequence_begin[n]) run_begin = chunk.token;
      if (resets) owner = chunks.num_sequences();
      const int64_t first = chunk.row * seq_len + chunk.token;
      std::fill_n(begins + first, chunk.length, run_begin);
      std::fill_n(sequences + first, chunk.length, owner);
      end = first + chunk.length - 1;
    }
    last.mutable_data_ptr<int64_t>()[n] = end;
  }
  return {Upload(begin, chunks.device), Upload(sequence, chunks.device),
          Upload(last, chunks.device)};
}

}  // namespace

const TokenRuns& SequenceChunks::runs() const {
  std::call_once(runs_made_, [&] { runs_ = MakeTokenRuns(*this); });
  return runs_;
}

void SequenceChunks::Assign(const SequenceChunks& other) {
  HL_CHECK(batch == other.batch && seq_len == other.seq_len && chunk_size == other.chunk_size &&
               device == other.device && num_sequences() == other.num_sequences() &&
               num_chunks() == other.num_chunks(),
           "a chunk table of ", num_chunks(), " entries for [", batch, ", ", seq_len,
           "] cannot hold one of ", other.num_chunks(), " for [", other.batch, ", ", other.seq_len,
           "]. Make both with the same shape and capacity.");
  std::ranges::copy(other.table.chunks, table.chunks.begin());
  std::ranges::copy(other.table.sequence_begin, table.sequence_begin.begin());
  if (device_chunks.defined()) {
    device_chunks.copy_(other.device_chunks);
    device_begin.copy_(other.device_begin);
  }
  if (!runs_.begin.defined()) return;
  runs_.begin.copy_(other.runs().begin);
  runs_.sequence.copy_(other.runs().sequence);
  runs_.last.copy_(other.runs().last);
}

const kernels::ChunkEntry* SequenceChunks::chunks() const {
  if (!device_chunks.defined()) return table.chunks.data();
  return static_cast<const kernels::ChunkEntry*>(device_chunks.const_data_ptr());
}
const int32_t* SequenceChunks::sequence_begin() const {
  if (!device_begin.defined()) return table.sequence_begin.data();
  return static_cast<const int32_t*>(device_begin.const_data_ptr());
}

std::shared_ptr<SequenceChunks> MakeSequenceChunks(kernels::ChunkTableConfig config,
                                                   at::Device device) {
  if (config.chunk_size == 0) config.chunk_size = kernels::DefaultChunkSize(!device.is_cpu());
  auto chunks = std::make_shared<SequenceChunks>();
  chunks->batch = config.batch;
  chunks->seq_len = config.seq_len;
  chunks->chunk_size = config.chunk_size;
  chunks->device = device;
  chunks->table = kernels::MakeChunkTable(config);
  if (!device.is_cpu()) {
    // A table of whole rows depends only on shapes. Recorded graphs find it at the same address.
    const bool whole_rows = config.document_starts.empty() && config.cu_seqlens.empty();
    const auto upload = [&](const auto& table) {
      return whole_rows ? ConstantTable(table, device) : UploadTable(table, device);
    };
    chunks->device_chunks = upload(chunks->table.chunks);
    chunks->device_begin = upload(chunks->table.sequence_begin);
    chunks->device =
        chunks->device_begin.device();  // with the index of the CUDA device, as in tensors
  }
  return chunks;
}

}  // namespace halflife::ops
