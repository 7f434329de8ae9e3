// The operands of the wgmma scans with per-channel decays, which channel_chunk_operands.cuh
// computes for every chunk of 64 tokens and head independently. For a chunk with decays exp(b_t),
// where P_r is the product of the decays from the chunk's start to r, inclusive, and Q_s that of
// the decays after s to its end:
//
//   queries  scale q_r P_r                      S before the chunk is multiplied by them
//   keys     c_s k_s Q_s                        S' = diag(G) S + keys^T v
//   scores   scale c_s sum over channels of q_r k_s times the decays in (s, r]; zero for s > r
//   G        the product of the chunk's decays, and its log2
//
// Rows past the end of a chunk are zero in the first two, and rows and columns in scores.
//
// The arrays lie one after another in one region of the workspace. Each is indexed by (chunk of the
// batch tile, head), the head fastest, in rows without gaps, as bulk copies need them. A head has
// one slice of K, so K is that of the head. C++17, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/decay_attention/cuda/launch.h"

namespace halflife::kernels::decay {

struct ChannelChunks {
  void *queries, *keys;    // [chunks of the batch tile, H, 64, K] bf16
  void* scores;            // [.., 64, 64] bf16: row r, column s
  float* transition;       // G [.., K]
  float* log2_transition;  // log2 of G [.., K]
};

constexpr size_t ChannelChunkBytes(int k) {
  return size_t{2} * kChunk * (2 * k + kChunk) + size_t{2} * 4 * k;
}

// Returns the arrays for a batch tile, in a region of the workspace that is aligned to 256 bytes
// and has ChannelChunkBytes per chunk and head.
inline ChannelChunks ChannelChunksOf(const DecayAttentionArgs& args, const SegmentShape& shape,
                                     const void* region) {
  const int64_t chunk_heads = MaxStatesInBatchTile(args, shape.num_sequences, /*num_parts=*/1);
  char* const bytes = static_cast<char*>(const_cast<void*>(region));
  const int64_t rows = chunk_heads * kChunk * args.head_dim_k * 2;
  ChannelChunks chunks = {};
  chunks.queries = bytes;
  chunks.keys = bytes + rows;
  chunks.scores = bytes + 2 * rows;
  chunks.transition =
      reinterpret_cast<float*>(bytes + 2 * rows + chunk_heads * kChunk * kChunk * 2);
  chunks.log2_transition = chunks.transition + chunk_heads * args.head_dim_k;
  return chunks;
}

// Returns the index of a chunk and head in these arrays; first_chunk: of the batch tile.
HL_EVERYWHERE constexpr int64_t ChunkHeadIndex(int chunk, int first_chunk, int head,
                                               int num_heads) {
  return int64_t{1} * (chunk - first_chunk) * num_heads + head;
}

}  // namespace halflife::kernels::decay
