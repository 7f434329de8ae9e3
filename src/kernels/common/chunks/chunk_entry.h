// A chunk of a batch's tokens as the kernels read it, and its size. C++17, no LibTorch: CUDA
// sources include it.
#pragma once

#include <cstdint>

namespace halflife::kernels {

// A run of at most chunk_size tokens of one document, processed as one tile.
struct ChunkEntry {
  int64_t token;    // first token, counted within its row
  int32_t row;      // index into the batch
  int32_t length;   // 1 .. chunk_size
  uint32_t flags;   // of ChunkFlag
  int32_t padding;  // keeps the size a multiple of 8 on every side
};
enum ChunkFlag : uint32_t {
  kChunkResets = 1,  // a document starts here: the state before is zero, whatever came earlier
};

// Tokens of a chunk, C, where no one asks for another. A GPU's matrix units take 64 rows at once;
// on the CPU half of that makes a seventh fewer multiply-adds and smaller operands: forward +
// backward is 3 to 9 % faster at head sizes of 64 and 128.
constexpr int DefaultChunkSize(bool is_cuda) { return is_cuda ? 64 : 32; }

}  // namespace halflife::kernels
