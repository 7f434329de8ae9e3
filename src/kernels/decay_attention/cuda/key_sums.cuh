// Device steps of a normalised forward, out = n / (d + eps). d is what n would be for values of 1:
// it uses the weights of n and its own state, the decayed sum z [K] of the keys so far.
//
//   d_r = incoming_r q_r z + sum_{s <= r} scores_rs
//   z' = transition z + sum_s c_s outgoing_s k_s
//
// z is fp32 in shared memory. It is read until the scores of a chunk are complete, and written
// after. The scores are summed as rounded for the products with values, so that d has the same
// rounding errors as n. Every slice of V computes the same d; the first slice stores it, and z.
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

// Loads 8 elements of a tile whose terms are `distance` elements apart.
template <int kTerms>
HL_DEVICE void LoadUnit(float (&x)[8], const bf16* unit, int distance) {
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    const uint4 packed = *reinterpret_cast<const uint4*>(unit + term * distance);
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = term == 0 ? UnpackLo(pairs[i]) : x[2 * i] + UnpackLo(pairs[i]);
      x[2 * i + 1] = term == 0 ? UnpackHi(pairs[i]) : x[2 * i + 1] + UnpackHi(pairs[i]);
    }
  }
}

// The channels of z that a block handles.
struct KeySumChannels {
  int first, count;  // the block's existing channels of K
  bool keeps;        // whether the block stores the results
};
template <int kK>
HL_DEVICE KeySumChannels MakeKeySumChannels(const DecayAttentionArgs& args,
                                            const BlockIndex& block_index) {
  const int first = block_index.key_slice * kK;
  return {first, min(kK, args.head_dim_k - first), block_index.slice == 0};
}

// z of channel c at the start of a segment.
HL_DEVICE float FirstKeySum(const KeySums& sums, const DecayAttentionArgs& args,
                            const BlockIndex& block_index, const KeySumChannels& at, int c) {
  if (sums.initial == nullptr || c >= at.count) return 0;
  return sums.initial[block_index.piece * args.head_dim_k + at.first + c];
}
HL_DEVICE void StoreFinalKeySum(const KeySums& sums, const DecayAttentionArgs& args,
                                const BlockIndex& block_index, const KeySumChannels& at, int c,
                                float sum) {
  if (sums.final != nullptr && block_index.stops && at.keeps && c < at.count)
    sums.final[block_index.state * args.head_dim_k + at.first + c] = sum;
}
// Stores z before chunk `index` if a group starts there: as a bf16 and its remainder, as in
// SaveCheckpoint.
HL_DEVICE void SaveKeySum(const ChunkScanParams& params, const BlockIndex& block_index,
                          const KeySumChannels& at, int index, int c, float sum) {
  const DecayAttentionArgs& args = params.args;
  const int every = params.checkpoint_every;
  bf16* const checkpoints = static_cast<bf16*>(params.key_sums.checkpoints);
  if (checkpoints == nullptr || !at.keeps || c >= at.count ||
      (index - block_index.first) % every != 0)
    return;
  const int64_t slot = CheckpointSlot(block_index.sequence, block_index.first, index, every);
  const int64_t slots = NumCheckpointSlots(args.num_chunks, args.num_sequences, every);
  bf16* const target =
      checkpoints + (slot * args.num_heads + block_index.head) * args.head_dim_k + at.first + c;
  const bf16 rounded = ToBf16(sum);
  target[0] = rounded;
  target[slots * args.num_heads * args.head_dim_k] = ToBf16(sum - ToFloat(rounded));
}
// Stores d (plus eps) of a token, for the sum over slices of K or for the backward.
HL_DEVICE void KeepDivisor(const ChunkScanParams& params, const ChunkEntry& chunk,
                           const BlockIndex& block_index, const KeySumChannels& at, int token,
                           float divisor) {
  const DecayAttentionArgs& args = params.args;
  if (params.key_sums.sums == nullptr || !at.keeps || token >= chunk.length) return;
  const int64_t rows = int64_t{1} * args.batch * args.seq_len * args.num_heads;
  params.key_sums
      .sums[block_index.key_slice * rows + FlatRow(args, chunk, token, block_index.head)] = divisor;
}

// ---- chunks of 64 tokens, one decay factor per token ----

template <typename Config>
struct KeySumsShared {
  static constexpr int kScores = Config::kWarps / 4;          // warps that share rows of scores
  static constexpr int kQueries = Config::kThreads / kChunk;  // threads that share a token
  float* state;                                               // z [kK]
  float* parts;  // [kScores + kQueries][64]: the terms of d
};

// incoming_r q_r z: kQueries threads share a token, each with a part of K.
template <typename Config>
HL_DEVICE void SumQueries(const KeySumsShared<Config>& sums, const bf16* q,
                          const DecayTables& tables, bool resets) {
  using Shared = KeySumsShared<Config>;
  constexpr int kUnits = Config::kK / 8 / Shared::kQueries;
  const int row = static_cast<int>(threadIdx.x) % kChunk;
  const int part = static_cast<int>(threadIdx.x) / kChunk;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < kUnits; ++i) {
    const int c = (part * kUnits + i) * 8;
    float queries[8];
    LoadUnit<Config::kTerms>(queries, q + TileOffset<Config::kK>(row, c), kChunk * Config::kK);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(queries[j], sums.state[c + j], sum);
  }
  sums.parts[(Shared::kScores + part) * kChunk + row] = resets ? 0.0f : tables.incoming[row] * sum;
}

// d of a token: the sum of all parts.
template <typename Config>
HL_DEVICE float SumParts(const KeySumsShared<Config>& sums, int row) {
  using Shared = KeySumsShared<Config>;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < Shared::kScores + Shared::kQueries; ++part)
    sum += sums.parts[part * kChunk + row];
  return sum;
}

// out^T / (d + eps), if a block has all of K. Each lane computes the divisors of two tokens.
template <typename Config>
HL_DEVICE void Divide(float (&out)[kChunk / 8][4], const KeySumsShared<Config>& sums,
                      const ChunkScanParams& params, const ChunkEntry& chunk,
                      const BlockIndex& block_index, const KeySumChannels& at) {
  const int lane = FreshLaneId();
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = lane + 32 * half;
    const float divisor = SumParts<Config>(sums, token) + params.key_sums.eps;
    if (WarpId() == 0) KeepDivisor(params, chunk, block_index, at, token, divisor);
    factors[half] = params.key_sums.divides ? 1.0f / divisor : 1.0f;
  }
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const int column = n % 4 * 8 + lane % 4 * 2;
    const float f0 = __shfl_sync(kFullWarp, factors[n / 4], column);
    const float f1 = __shfl_sync(kFullWarp, factors[n / 4], column + 1);
    out[n][0] *= f0;
    out[n][1] *= f1;
    out[n][2] *= f0;
    out[n][3] *= f1;
  }
}

// Updates z for the warp's channels. Each lane handles a unit of 8 channels and some of the rows.
template <typename Config>
HL_DEVICE void AdvanceKeySums(const KeySumsShared<Config>& sums, const bf16* k,
                              const DecayTables& tables, bool resets) {
  constexpr int kUnits = Config::kK / 8 / Config::kWarps;
  constexpr int kLanes = 32 / kUnits;  // lanes that share a unit
  static_assert(kUnits > 0 && kLanes >= 8);
  const int lane = FreshLaneId();
  const int first = (WarpId() * kUnits + lane / kLanes) * 8;
  float x[8] = {};
#pragma unroll 1
  for (int row = lane % kLanes; row < kChunk; row += kLanes) {
    float keys[8];
    LoadUnit<Config::kTerms>(keys, k + TileOffset<Config::kK>(row, first), kChunk * Config::kK);
    const float factor = tables.outgoing_scaled[row];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = fmaf(factor, keys[j], x[j]);
  }
  float sum = SumOverLanes(x);
#pragma unroll
  for (int offset = 8; offset < kLanes; offset *= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  if (lane % kLanes >= 8) return;
  float& state = sums.state[first + lane % 8];
  state = resets ? sum : fmaf(tables.transition, state, sum);
}

}  // namespace halflife::kernels::decay
