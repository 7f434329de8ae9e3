// The parts of a state [K, V] that a block of a scan may own, and the shared memory that it needs.
// The kernels use these numbers, and the plan checks them against the device. C++17, no CUDA.
//
// A head that is wider than a block is cut into slices of K and of V, one block each. Every sum
// over K or V in a scan then becomes a sum over slices. A slice of V has its own columns of out, dv
// and the states; a slice of K has its own channels of dq, dk and the states. Everything that both
// kinds of slices contribute to (scores, their gradients, gradients of decays and of key scales) is
// linear in either.
#pragma once

#include <cstdint>

namespace halflife::kernels::decay {

constexpr int kChunk = 64;       // C
constexpr int kTile = 16;        // tokens per step with per-channel decays
constexpr int kMeanTokens = 64;  // tokens whose values one warp sums

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

constexpr int kBlockIndexBytes = 64;  // BlockIndex

// The block of fp32 operands, K x V: with two terms, no larger block fits sm_80's shared memory.
constexpr int kTwoTermsBlock = 64;

// Tokens of out that are staged at once. With all tokens of a chunk, blocks of 128 x 64 would
// exceed 99 KiB.
constexpr int kOutTokens = 32;

// Forward: two stages of q, k, v; scores; a stage of out; the normaliser's sums of keys (always
// included).
// With two terms (tiles.cuh), there is one stage of twice the size.
constexpr int ChunkScanBytes(int k, int v, int terms = 1) {
  return 2 * kChunk * (2 * k + v) * 2 + terms * kChunk * kChunk * 2 + kOutTokens * v * 2 +
         2 * kDecayTablesBytes + (k + 3 * v) * 4;
}
// Per-channel decays, in tiles of 16 tokens. ChannelStageBytes: one stage of a tile's operands (two
// matrices, scores in rows of 48 bytes, G). ChannelOperandBytes: the operands in global memory,
// with log2 of G (channel_operands.cuh). ChannelProductElements: the fp32 products of a tile and a
// slice of V from which the gradients are computed.
constexpr int ChannelStageBytes(int k, int terms = 1) {
  return terms * (2 * kTile * k * 2 + kTile * (kTile + 8) * 2) + k * 4;
}
constexpr int ChannelOperandBytes(int k, int terms = 1) {
  return ChannelStageBytes(k, terms) + k * 4;
}
constexpr int ChannelProductElements(int k) { return (2 * kTile + 1) * k; }
constexpr int kTileStages = 4;        // tiles in flight or in use by a scan
constexpr int kStagedTileBytes = 64;  // StagedTile
constexpr int ChannelScanBytes(int k, int v, int terms = 1) {
  return kTileStages * (ChannelStageBytes(k, terms) + terms * kTile * v * 2 + kStagedTileBytes) +
         kTile * v * 2 + (k + kTile) * 4;
}
constexpr int ChannelOperandsSharedBytes(int k, int terms = 1) {
  return terms * (4 * kTile * k * 2 + kTile * (kTile + 8) * 2) + 2 * kTile * k * 4 + 2 * kTile * 4;
}
constexpr int ChannelGradientsSharedBytes(int k, int terms = 1) {
  return terms * (2 * kTile * k * 2 + 2 * kTile * 128 * 2) + kTile * k * 4 +
         2 * kTile * (k + 4) * 4 + k / 16 * kTile * kTile * 4 + ChannelGradSumsBytes(k);
}
// The wgmma scan: stages of q, k, v and tables; two stages of scores; a stage of out.
constexpr int kWarpgroupStages = 3;
constexpr int kPairTablesBytes = kDecayTablesBytes + kChunk * 8 * 4;  // PairTables
constexpr int WarpgroupScanBytes(int k, int v) {
  return kWarpgroupStages * (kChunk * (2 * k + v) * 2 + kPairTablesBytes) +
         2 * kChunk * kChunk * 2 + kOutTokens * v * 2;
}
// Per-channel decays in chunks of 64 tokens, for the wgmma scan. Operands of a chunk and head: q,
// k; log decays, then decays; the two operands that decay within blocks of 8 tokens; scores; the
// sums of these blocks; scales of tokens. The scan: stages of queries, keys, scores, v and G; a
// stage of out.
constexpr int ChannelChunkOperandsSharedBytes(int k) {
  return 4 * kChunk * k * 2 + kChunk * k * 4 + kChunk * kChunk * 2 + kChunk / 8 * k * 4 +
         2 * kChunk * 4;
}
constexpr int ChannelWarpgroupScanBytes(int k, int v) {
  return kWarpgroupStages * (kChunk * (2 * k + v + kChunk) * 2 + k * 4) + kOutTokens * v * 2;
}
// Shared memory for the gradients of chunks with per-channel decays. An arena, which later passes
// reuse, holds two stages of v, dout and 64 columns of R, and keys and scores. D, D of tiles in
// fp32 and its transpose, ChunkGradVectors and ChunkOfHead follow.
constexpr int ChannelChunkGradArenaBytes(int k) {
  return 2 * (2 * kChunk + k) * 64 * 2 + kChunk * (k + kChunk) * 2;
}
constexpr int kChunkOfHeadBytes = 184;  // ChunkOfHead
constexpr int ChannelChunkGradVectorsBytes(int k) {
  return (2 * kChunk + (3 * (kChunk / kTile) + 1) * k) * 4;
}
constexpr int ChannelChunkGradientsSharedBytes(int k) {
  return ChannelChunkGradArenaBytes(k) + kChunk * kChunk * 2 + 2 * kChunk * kTile * 4 +
         ChannelChunkGradVectorsBytes(k) + kChunkOfHeadBytes;
}
// States by wgmma: stages of x, y and the factors of one direction (of tokens, or G and its log2).
constexpr int kStateBlock = 64, kStateStages = 4;
constexpr int kStateBlocksPerSm = 3;                      // as many as fit sm_90's shared memory
constexpr int kChunkFactorsBytes = (2 * kChunk + 4) * 4;  // ChunkFactors
constexpr int StateStageFactors(bool per_channel) {
  return per_channel ? 2 * kStateBlock : kChunk + 4;
}
constexpr int WarpgroupStatesBytes(bool per_channel) {
  return kStateStages * (2 * kChunk * kStateBlock * 2 + StateStageFactors(per_channel) * 4) +
         kBlockIndexBytes;
}
// The wgmma backward, one chunk and slice of K per block: q, k; `v` columns of v and dout; 64
// columns of R and S; gradients of scores; tables and sums.
constexpr int kChunkGradSumsBytes = (8 * kChunk + 4) * 4;  // ChunkGradSums
constexpr int WarpgroupGradBytes(int k, int v) {
  return 2 * kChunk * (k + v) * 2 + 2 * k * kStateBlock * 2 + kChunk * kChunk * 2 +
         kPairTablesBytes + kChunkGradSumsBytes;
}
// Backward: stages of q, k, v, dout; R; scores and their gradients; a stage of outputs.
constexpr int ReverseScanBytes(int k, int v, int stages, int terms = 1) {
  return terms * (stages * kChunk * 2 * (k + v) * 2 + k * v * 2 + 2 * kChunk * kChunk * 2) +
         kChunk * k * 2 + 2 * kDecayTablesBytes + GradSumsBytes(k / 16) + kBlockIndexBytes;
}
constexpr int ChannelReverseScanBytes(int k, int v, int terms = 1) {
  return kTileStages *
             (ChannelStageBytes(k, terms) + terms * 2 * kTile * v * 2 + kStagedTileBytes) +
         terms * k * v * 2 + k / 16 * kTile * 16 * 2 + kBlockIndexBytes;
}
// The states of segments: two stages of k and v, or of q and dout; with two terms, one stage.
constexpr int StateScanBytes(int k, int v) {
  return 2 * kChunk * (k + v) * 2 + 2 * kDecayTablesBytes;
}
constexpr int ChannelStateScanBytes(int k, int v, int terms = 1) {
  return kTileStages * (terms * kTile * (k + v) * 2 + 2 * k * 4 + kStagedTileBytes);
}

// Returns the number of blocks per multiprocessor as far as registers allow: the kernels are
// compiled for it.
constexpr int ScanBlocksPerSm(int k, int v, int terms = 1) {
  return v > 64 ? 1 : k > 64 || terms > 1 ? 2 : 3;
}
// A block of 64 x 64 has one warpgroup for products, and two such blocks hide each other's latency.
constexpr int WarpgroupScanBlocksPerSm(int k, int v) { return k * v > 64 * 64 ? 1 : 2; }
// A block of 128 x 64 would use shared memory for one block per multiprocessor, and two blocks of
// the mma.sync scan are faster.
constexpr bool HasFastWarpgroupScan(int k, int v) { return v == 128 || k * v == 64 * 64; }
constexpr int ChannelScanBlocksPerSm(int v) { return v > 64 ? 1 : 2; }
// As many as fit into sm_90's shared memory.
constexpr int WarpgroupGradBlocksPerSm(int k, int v) { return k * v > 64 * 64 ? 2 : 3; }
constexpr int ReverseScanBlocksPerSm(int k) { return k > 64 ? 1 : 2; }

// Returns true if there is a device on which one stage of the reverse scan's tiles fits and two do
// not.
constexpr bool WantsOneStage(int k, int v) {
  for (const int64_t limit : kSharedMemoryOf)
    if (ReverseScanBytes(k, v, 1) <= limit && ReverseScanBytes(k, v, 2) > limit) return true;
  return false;
}

}  // namespace halflife::kernels::decay
