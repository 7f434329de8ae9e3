// Shared by the kernels for Hopper's warpgroups, in addition to kernels/common/cuda/
// warpgroup_tiles.cuh: the weights of pairs of tokens, products of pairs, and the maps of a batch
// tile's rows.
#pragma once

#include "kernels/common/cuda/warpgroup_tiles.cuh"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

// ---- weights of pairs: exp(sum of log decays over (s, r]) for the key s and the query r ----

// DecayTables, and the weights of pairs within one base block, where prefix and suffix do not
// apply.
struct PairTables : DecayTables {
  float near_weights[kChunk][kBaseBlock];  // [r, s % 8]; 0 for s > r
};
static_assert(sizeof(PairTables) == kPairTablesBytes);

// Called by the warp that has filled the other tables. The sums have the order of PairWeights.
HL_DEVICE void FillNearWeights(PairTables& tables) {
#pragma unroll 1
  for (int r = LaneId(); r < kChunk; r += 32) {
    const int own = r % kBaseBlock;
    const float4* const block =
        reinterpret_cast<const float4*>(tables.log2_decay + r / kBaseBlock * kBaseBlock);
    const float4 low = block[0], high = block[1];
    const float decay[kBaseBlock] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float weights[kBaseBlock];
#pragma unroll
    for (int s = 0; s < kBaseBlock; s += 2) {
      float sum = 0;
#pragma unroll
      for (int m = s + 2; m < kBaseBlock; ++m)
        if (m <= own) sum += decay[m];
      weights[s + 1] = s + 1 <= own ? Exp2Approx(sum) : 0.0f;
      if (s + 1 <= own) sum += decay[s + 1];
      weights[s] = s <= own ? Exp2Approx(sum) : 0.0f;
    }
    auto* const row = reinterpret_cast<float4*>(tables.near_weights[r]);
    row[0] = make_float4(weights[0], weights[1], weights[2], weights[3]);
    row[1] = make_float4(weights[4], weights[5], weights[6], weights[7]);
  }
}

// Returns the weight of a pair, and 0 if the key's base block is after the query's. The blocks are
// those of r and s. Pass blocks that are the same in all lanes of a warp, so that the branches are
// uniform.
HL_DEVICE float PairWeight(const PairTables& tables, int r, int query_block, int s, int key_block) {
  if (key_block > query_block) return 0;
  if (key_block == query_block) return tables.near_weights[r][s - key_block * kBaseBlock];
  const float between = tables.between[query_block * (kChunk / kBaseBlock) + key_block];
  return Exp2Approx(tables.suffix[s] + (tables.prefix[r] + between));
}

#if HL_HAS_WGMMA

// acc += x y^T: x and y are tiles [64, kDim] of the chunk, in pieces.
template <int kDim>
HL_DEVICE void BeginPairs(float (&acc)[kChunk / 8][4], const bf16* x, const bf16* y) {
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j) {
    const int piece = j / 4 * kPieceElements, bytes = 32 * (j % 4);
    WgmmaM64N64K16(TileOf(acc), AdvanceTile(TileDescriptor(x + piece), bytes),
                   AdvanceTile(TileDescriptor(y + piece), bytes));
  }
}

#endif  // HL_HAS_WGMMA

// Returns the map of a tensor's rows up to the last row of a batch tile.
inline RowsMap MapOfRows(const TensorView& view, const DecayAttentionArgs& args,
                         const SegmentShape& shape, int heads, int dim, const char* name) {
  return tiles::MapOfRows(view, shape.first_sequence + args.batch, args.seq_len, heads, dim, name);
}

}  // namespace halflife::kernels::decay
