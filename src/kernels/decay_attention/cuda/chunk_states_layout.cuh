// The interface between warpgroup_states.cuh and warpgroup_gradients.cuh: the layout of factors and
// states in global memory.
#pragma once

#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

// The decay factors of a chunk, as in DecayTables. A reverse scan reads the first two members, a
// forward scan the last two.
struct ThroughFactors {
  float transition, log2_transition;
  float padding[2];
};
struct ChunkFactors {
  float incoming[kChunk];
  ThroughFactors through;
  float outgoing_scaled[kChunk];
};
constexpr int kForwardFactors = kChunk * 4;  // the offset in bytes of what a forward scan reads
static_assert(sizeof(ChunkFactors) == kChunkFactorsBytes && kChunkFactorsBytes % 16 == 0);

template <typename Params>
HL_DEVICE int ChunkInBatchTile(const Params& params, int chunk) {
  return chunk - params.grads.forward.sequence_begin[params.shape.first_sequence];
}
// Returns the index into the factors, [chunks of the batch tile, H].
template <typename Params>
HL_DEVICE int64_t FactorsSlot(const Params& params, int head, int chunk) {
  return int64_t{1} * ChunkInBatchTile(params, chunk) * params.grads.forward.num_heads + head;
}
// Returns the index into ReverseScanParams::states and ::adjoints, [chunks of the batch tile, H,
// slices of K and V].
template <typename Params>
HL_DEVICE int64_t StateSlot(const Params& params, int part, int head, int chunk) {
  return FactorsSlot(params, head, chunk) * params.shape.num_parts() + part;
}

// Returns the slices of a head if its blocks are 64 x 64.
HL_EVERYWHERE constexpr SegmentShape StateBlocks(const DecayAttentionArgs& args,
                                                 SegmentShape shape) {
  shape.num_key_slices = args.head_dim_k / kStateBlock;
  shape.num_slices = args.head_dim_v / kStateBlock;
  return shape;
}
// A 64 x 64 block of the stored states, which are [kK, kV] per slice of the gradients. Heads fill
// their slices.
struct StateBlock {
  bf16* first;  // for the chunk `first_chunk`
  int first_chunk, row_stride;
  int64_t chunk_stride;
};
template <typename Params>
HL_DEVICE StateBlock BlockOf(const Params& params, void* states, const BlockIndex& block_index) {
  const DecayAttentionArgs& args = params.grads.forward;
  const SegmentShape& shape = params.shape;
  const int k = args.head_dim_k / shape.num_key_slices, v = args.head_dim_v / shape.num_slices;
  const int row = block_index.key_slice * kStateBlock, column = block_index.slice * kStateBlock;
  const int first_chunk = args.sequence_begin[shape.first_sequence];
  const int64_t slot =
      StateSlot(params, row / k * shape.num_slices + column / v, block_index.head, first_chunk);
  return {static_cast<bf16*>(states) + slot * (k * v) + row % k * v + column % v, first_chunk, v,
          int64_t{1} * args.num_heads * shape.num_parts() * (k * v)};
}

}  // namespace halflife::kernels::decay
