// A chunk of a batch's tokens in the form that the kernels read, and the default chunk size. C++17
// without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

namespace halflife::kernels {

// A run of at most chunk_size tokens of one document, processed as one tile.
struct ChunkEntry {
  int64_t token;    // first token, counted within its row
  int32_t row;      // index into the batch
  int32_t length;   // 1 .. chunk_size; 0: an unused entry, which belongs to no sequence
  uint32_t flags;   // bits of ChunkFlag
  int32_t padding;  // makes the size a multiple of 8 on every platform
};
enum ChunkFlag : uint32_t {
  kChunkResets = 1,  // a document starts here: the state before the chunk is zero
};

// The default number of tokens of a chunk, C. The matrix units of a GPU process 64 rows at once. On
// the CPU, 32 tokens need a seventh fewer multiply-adds and have smaller operands: forward +
// backward was measured 3 to 9 % faster for head sizes of 64 and 128.
constexpr int DefaultChunkSize(bool is_cuda) { return is_cuda ? 64 : 32; }

}  // namespace halflife::kernels
