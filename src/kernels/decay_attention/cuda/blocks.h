// What a block of a scan may own of a state [K, V], and the shared memory that it takes for it: for
// the kernels, which take it, and for the plan, which asks whether a device has it. C++17, no CUDA.
//
//   const int64_t bytes = decay::ReverseScanBytes(128, 128, /*stages=*/2);
//   const bool fits = bytes <= limits.shared_memory_bytes;
//
// Heads wider than a block are cut into slices of K and of V, a block each. All that a scan sums
// over K or V is a sum over slices: a slice of V has its own columns of out, dv and the states, a
// slice of K its own channels of dq, dk and the states, and what both sides share (scores and their
// gradients, gradients of decays and of key scales) is linear in either.
#pragma once

#include <cstdint>

namespace halflife::kernels::decay {

constexpr int kChunk = 64;       // C
constexpr int kTile = 16;        // tokens of a step with decays of channels
constexpr int kMeanTokens = 64;  // whose values one warp sums

constexpr int64_t kSharedMemoryOf[] = {99 << 10,    // sm_86, sm_89, sm_120
                                       163 << 10,   // sm_80
                                       227 << 10};  // sm_90, sm_100

constexpr int kDecayTablesBytes = (9 * kChunk + kChunk / 8 + 8) * 4;  // DecayTables
constexpr int GradSumsBytes(int warps) {                              // GradSums
  return (warps / 4 * kChunk + 5 * kChunk + 2 * warps * kChunk + warps + 8) * 4;
}
constexpr int ChannelGradSumsBytes(int k) {  // ChannelGradSums
  return (2 * kTile * kTile + 2 * kTile + k / 32 * kTile + 2 * k) * 4;
}

constexpr int kPlaceBytes = 64;  // Place

// Tokens of out that are staged at once: with all of a chunk, blocks of 128 x 64 would miss 99 KiB.
constexpr int kOutTokens = 32;

// Forward: two stages of q, k, v; scores; a stage of out; sums of keys, normalised or not.
constexpr int ChunkScanBytes(int k, int v) {
  return 2 * kChunk * (2 * k + v) * 2 + kChunk * kChunk * 2 + kOutTokens * v * 2 +
         2 * kDecayTablesBytes + (k + 3 * v) * 4;
}
// With decays of channels by tiles: a stage of a tile's operands, two of them, scores in rows of 48
// bytes, G; what they take in memory, with the logarithm of G (channel_operands.cuh); what a scan
// makes of a tile and a slice of V for its gradients, in fp32.
constexpr int ChannelStageBytes(int k) {
  return 2 * kTile * k * 2 + kTile * (kTile + 8) * 2 + k * 4;
}
constexpr int ChannelOperandBytes(int k) { return ChannelStageBytes(k) + k * 4; }
constexpr int ChannelProductElements(int k) { return (2 * kTile + 1) * k; }
constexpr int kTileStages = 4;        // tiles that are on their way to a scan, or there
constexpr int kStagedTileBytes = 64;  // StagedTile
constexpr int ChannelScanBytes(int k, int v) {
  return kTileStages * (ChannelStageBytes(k) + kTile * v * 2 + kStagedTileBytes) + kTile * v * 2 +
         (k + kTile) * 4;
}
constexpr int ChannelOperandsSharedBytes(int k) {
  return 4 * kTile * k * 2 + 2 * kTile * k * 4 + kTile * (kTile + 8) * 2 + 2 * kTile * 4;
}
constexpr int ChannelGradientsSharedBytes(int k) {
  return 2 * kTile * k * 2 + kTile * k * 4 + 2 * kTile * (k + 4) * 4 + 2 * kTile * 128 * 2 +
         k / 16 * kTile * kTile * 4 + ChannelGradSumsBytes(k);
}
// By warpgroups, of blocks of this many columns of V: stages of q, k, v and tables; two of scores;
// a stage of out.
constexpr int kWarpgroupColumns = 128, kWarpgroupStages = 3;
constexpr int WarpgroupScanBytes(int k) {
  return kWarpgroupStages * (kChunk * (2 * k + kWarpgroupColumns) * 2 + kDecayTablesBytes) +
         2 * kChunk * kChunk * 2 + kOutTokens * kWarpgroupColumns * 2;
}
// States of all chunks: stages of x, y and factors.
constexpr int kStateBlock = 64, kStateStages = 4;
constexpr int kChunkFactorsBytes = (2 * kChunk + 4) * 4;  // ChunkFactors
constexpr int kChunkStatesBytes =
    kStateStages * (2 * kChunk * kStateBlock * 2 + kChunkFactorsBytes) + kPlaceBytes;
// Backward by warpgroups, a chunk a block: q, k, v, dout; a state; gradients of scores; tables and
// sums.
constexpr int kChunkGradSumsBytes = (8 * kChunk + 4) * 4;  // ChunkGradSums
constexpr int WarpgroupGradBytes(int k, int v) {
  return 2 * kChunk * (k + v) * 2 + k * v * 2 + kChunk * kChunk * 2 + kDecayTablesBytes +
         kChunkGradSumsBytes;
}
// Backward: stages of q, k, v, dout; R; scores and their gradients; a stage of outputs.
constexpr int ReverseScanBytes(int k, int v, int stages) {
  return stages * kChunk * 2 * (k + v) * 2 + k * v * 2 + 2 * kChunk * kChunk * 2 + kChunk * k * 2 +
         2 * kDecayTablesBytes + GradSumsBytes(k / 16) + kPlaceBytes;
}
constexpr int ChannelReverseScanBytes(int k, int v) {
  return kTileStages * (ChannelStageBytes(k) + 2 * kTile * v * 2 + kStagedTileBytes) + k * v * 2 +
         k / 16 * kTile * 16 * 2 + kPlaceBytes;
}
// States of segments: two stages of k and v, or of q and dout.
constexpr int StateScanBytes(int k, int v) {
  return 2 * kChunk * (k + v) * 2 + 2 * kDecayTablesBytes;
}
constexpr int ChannelStateScanBytes(int k, int v) {
  return kTileStages * (kTile * (k + v) * 2 + 2 * k * 4 + kStagedTileBytes);
}

// Blocks that share a multiprocessor, as far as registers go: what the kernels are compiled for.
constexpr int ScanBlocksPerSm(int k, int v) { return v > 64 ? 1 : k > 64 ? 2 : 3; }
constexpr int ChannelScanBlocksPerSm(int v) { return v > 64 ? 1 : 2; }
// As many as fit sm_90's shared memory, but of 64 x 64 a fourth, whose registers would spill.
constexpr int WarpgroupGradBlocksPerSm(int k, int v) { return k * v > 64 * 64 ? 2 : 3; }
constexpr int ReverseScanBlocksPerSm(int k) { return k > 64 ? 1 : 2; }

// Whether there is a device on which the reverse scan's tiles fit in one stage, but not in two.
constexpr bool WantsOneStage(int k, int v) {
  for (const int64_t limit : kSharedMemoryOf)
    if (ReverseScanBytes(k, v, 1) <= limit && ReverseScanBytes(k, v, 2) > limit) return true;
  return false;
}

}  // namespace halflife::kernels::decay
