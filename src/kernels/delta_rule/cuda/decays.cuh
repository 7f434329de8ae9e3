// The decays of a chunk. Every weight is exp of a sum of log decays over exactly its range, never a
// difference of running sums or a quotient. So -inf needs no special case, and a decay near 1 keeps
// its bits. Sums are in units of log2.
//
// For decays per token (and none), tables of a chunk give every weight:
//
//   FillDecayTables(tables, args, chunk, head);  // all threads; contains barriers
//   scores *= tables.Weight(r, s);               // w_rs, s <= r
//
// For decays per channel, the chunk's log decays are a matrix in shared memory, and each use sums
// them along the rows of a channel.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/delta_rule/cuda/products.cuh"
#include "kernels/delta_rule/cuda/workspace.h"

namespace halflife::kernels::delta {

constexpr int kTile = 16;  // tokens; sums restart at tiles, so that chains are short
constexpr int kTiles = kChunk / kTile;

// The decays of one chunk and value head, with one decay per token.
struct DecayTables {
  float log2_decay[kChunk];
  float prefix[kChunk];            // sum over tokens [start of r's tile, r]
  float suffix[kChunk];            // sum over tokens (s, end of s's tile]
  float between[kTiles * kTiles];  // [i, j]: sum over the tiles between j and i
  float near[kChunk * kTile];      // [r, s % 16]: w_rs of tokens in one tile
  float entry[kChunk];             // P
  float exit[kChunk];              // Q
  float through;                   // Gamma
  float padding[3];

  // exp(sum over (s, r]), s <= r.
  HL_DEVICE float Weight(int r, int s) const {
    const int i = r / kTile, j = s / kTile;
    if (i == j) return near[r * kTile + s % kTile];
    return Exp2Approx(prefix[r] + between[i * kTiles + j] + suffix[s]);
  }
};

// Returns the row's log decay of a token, or of a token and channel, in units of log2.
HL_DEVICE float Log2DecayAt(const DeltaRuleArgs& args, const ChunkEntry& chunk, int token, int head,
                            int channel) {
  const TensorView& view = args.log_decay;
  if (view.data == nullptr) return 0;
  return kLog2E * static_cast<const float*>(
                      view.data)[chunk.row * view.stride_b + (chunk.token + token) * view.stride_t +
                                 head * view.stride_h + channel];
}

// Called by all threads of a block of at least 64. The last step is a barrier.
HL_DEVICE void FillDecayTables(DecayTables& tables, const DeltaRuleArgs& args,
                               const ChunkEntry& chunk, int head) {
  const int r = static_cast<int>(threadIdx.x), tile = r / kTile;
  if (r < kChunk)
    tables.log2_decay[r] = r < chunk.length ? Log2DecayAt(args, chunk, r, head, 0) : 0.0f;
  __syncthreads();
  if (r < kChunk) {
    float sum = 0;
#pragma unroll 1
    for (int s = r; s >= tile * kTile; --s) {
      tables.near[r * kTile + s % kTile] = Exp2Approx(sum);
      sum += tables.log2_decay[s];
    }
    tables.prefix[r] = sum;
    sum = 0;
#pragma unroll 1
    for (int s = r + 1; s < (tile + 1) * kTile; ++s) sum += tables.log2_decay[s];
    tables.suffix[r] = sum;
  }
  __syncthreads();
  if (r < kChunk) {
    float before = 0, after = 0;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float total = tables.prefix[m * kTile + kTile - 1];
      if (m < tile) before += total;
      if (m > tile) after += total;
    }
    tables.entry[r] = Exp2Approx(before + tables.prefix[r]);
    tables.exit[r] = Exp2Approx(tables.suffix[r] + after);
    if (r == kChunk - 1) tables.through = tables.entry[r];
    if (r < kTiles * kTiles) {
      float between = 0;
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        if (r % kTiles < m && m < r / kTiles) between += tables.prefix[m * kTile + kTile - 1];
      tables.between[r] = between;
    }
  }
  __syncthreads();
}

// Loads a chunk's log decays per channel, in units of log2: zeros past the chunk's end and in the
// padding. A barrier is required before they are read.
template <int kThreads, int kK>
HL_DEVICE void LoadLog2Decays(Matrix<float, kK> log2_decay, const DeltaRuleArgs& args,
                              const ChunkEntry& chunk, int head) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kK; i += kThreads) {
    const int row = i / kK, channel = i % kK;
    log2_decay.At(row, channel) = row < chunk.length && channel < args.head_dim_k
                                      ? Log2DecayAt(args, chunk, row, head, channel)
                                      : 0.0f;
  }
}

}  // namespace halflife::kernels::delta
