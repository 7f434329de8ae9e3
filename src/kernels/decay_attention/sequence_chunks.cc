#include "kernels/decay_attention/sequence_chunks.h"

#include <ATen/ops/from_blob.h>

namespace halflife::kernels {
namespace {

template <typename T>
at::Tensor Upload(const std::vector<T>& host, at::Device device) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  // from_blob takes the memory as mutable; it is only copied from
  return at::from_blob(const_cast<T*>(host.data()), {bytes}, at::kByte).to(device);
}

}  // namespace

const ChunkEntry* SequenceChunks::chunks() const {
  if (!device_chunks.defined()) return table.chunks.data();
  return static_cast<const ChunkEntry*>(device_chunks.const_data_ptr());
}
const int32_t* SequenceChunks::sequence_begin() const {
  if (!device_begin.defined()) return table.sequence_begin.data();
  return static_cast<const int32_t*>(device_begin.const_data_ptr());
}

std::shared_ptr<const SequenceChunks> MakeSequenceChunks(const ChunkTableConfig& config,
                                                         at::Device device) {
  auto chunks = std::make_shared<SequenceChunks>();
  chunks->batch = config.batch;
  chunks->seq_len = config.seq_len;
  chunks->chunk_size = config.chunk_size;
  chunks->device = device;
  chunks->table = MakeChunkTable(config);
  if (!device.is_cpu()) {
    chunks->device_chunks = Upload(chunks->table.chunks, device);
    chunks->device_begin = Upload(chunks->table.sequence_begin, device);
  }
  return chunks;
}

}  // namespace halflife::kernels
