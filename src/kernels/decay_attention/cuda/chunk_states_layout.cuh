// What chunk_states.cuh leaves for warpgroup_gradients.cuh, and how lanes store it: the places of
// factors and states, rows of four lanes' accumulators as units of 16 bytes.
#pragma once

#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

// What decays make of a chunk's tokens, as of DecayTables.
struct ChunkFactors {
  float incoming[kChunk], outgoing_scaled[kChunk];
  float transition;
  float padding[3];
};
static_assert(sizeof(ChunkFactors) == kChunkFactorsBytes && kChunkFactorsBytes % 16 == 0);

HL_DEVICE int ChunkOfTurn(const ReverseScanParams& params, int chunk) {
  return chunk - params.grads.forward.sequence_begin[params.shape.first_sequence];
}
// In ReverseScanParams::factors, [chunks of the turn, H].
HL_DEVICE int64_t FactorsSlot(const ReverseScanParams& params, int head, int chunk) {
  return int64_t{1} * ChunkOfTurn(params, chunk) * params.grads.forward.num_heads + head;
}
// In ReverseScanParams::states and ::adjoints, [chunks of the turn, H, slices of K and V].
HL_DEVICE int64_t StateSlot(const ReverseScanParams& params, int part, int head, int chunk) {
  return FactorsSlot(params, head, chunk) * params.shape.num_parts() + part;
}

// The slices that a head's blocks of 64 x 64 are.
HL_EVERYWHERE constexpr SegmentShape StateBlocks(const DecayAttentionArgs& args,
                                                 SegmentShape shape) {
  shape.num_key_slices = args.head_dim_k / kStateBlock;
  shape.num_slices = args.head_dim_v / kStateBlock;
  return shape;
}
// A block's part of all states, which are [kK, kV] of the gradients' slices, that heads fill.
struct StateBlock {
  bf16* first;  // of the chunk `first_chunk`
  int first_chunk, row_stride;
  int64_t chunk_stride;
};
HL_DEVICE StateBlock BlockOf(const ReverseScanParams& params, void* states, const Place& place) {
  const DecayAttentionArgs& args = params.grads.forward;
  const SegmentShape& shape = params.shape;
  const int k = args.head_dim_k / shape.num_key_slices, v = args.head_dim_v / shape.num_slices;
  const int row = place.key_slice * kStateBlock, column = place.slice * kStateBlock;
  const int first_chunk = args.sequence_begin[shape.first_sequence];
  const int64_t slot =
      StateSlot(params, row / k * shape.num_slices + column / v, place.head, first_chunk);
  return {static_cast<bf16*>(states) + slot * (k * v) + row % k * v + column % v, first_chunk, v,
          int64_t{1} * args.num_heads * shape.num_parts() * (k * v)};
}

// Lanes of four neighbours trade: of word j of lane i, word i of lane j.
HL_DEVICE void TransposeQuad(uint32_t (&words)[4]) {
  const bool odd = LaneId() % 2 != 0, upper = LaneId() % 4 / 2 != 0;
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, odd ? words[n] : words[n + 1], 1);
    words[n] = odd ? got : words[n];
    words[n + 1] = odd ? words[n + 1] : got;
  }
  // Now of even lanes words n, n + 1 are tile n's, their own and the neighbour's; of odd ones tile
  // n + 1's.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, upper ? words[n] : words[n + 2], 2);
    words[n] = upper ? got : words[n];
    words[n + 2] = upper ? words[n + 2] : got;
  }
}
// Row g (half 1: g + 8) of four neighbouring accumulators: in lane t, 8 columns from 8 t on.
HL_DEVICE uint4 RowOfQuad(const float (*d)[4], int half) {
  uint32_t words[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) words[n] = PackBf16(d[n][2 * half], d[n][2 * half + 1]);
  TransposeQuad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace halflife::kernels::decay
