// The layout of the CUDA kernels' workspace: offsets in bytes, each a multiple of 256. B and
// `sequences` refer to the largest batch tile (decay_attention_partition.h), because all batch
// tiles use the same memory; exceptions are marked "all". Host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

// The states that the segments of a sequence pass to each other, indexed [sequences, H,
// num_segments]. Empty if there is only one segment.
struct SegmentLayout {
  // [.., K, V] fp32: first the segment's own state, then the state it starts from
  size_t states = 0;
  size_t log_transition = 0;  // [..(, K with per-channel decays)]
  // By warpgroups: for the chunks of the batch tile. The gradients of chunks also use them.
  size_t factors = 0;
};
// The values minus their mean, and the states derived from them (mean_subtraction.h).
struct ValueMeanLayout {
  size_t sums = 0;            // fp32 [NumMeanPieces, B, Hv, V]
  size_t mean = 0;            // fp32 [B, Hv, V]
  size_t values = 0;          // [B, T, Hv, V], as v
  size_t dfinal_norm = 0;     // fp32 [sequences, H, K]
  size_t dinitial_state = 0;  // fp32 [sequences, H, K, V]: used if the caller requests none
};
// The normaliser's regions. Its sums of keys are the state of a scan with v replaced by a column of
// ones.
struct NormaliserLayout {
  size_t one = 0;  // the column of ones: a single number, as v
  // fp32 [slices of K, B, T, H]: forward with several slices, the sums of keys; backward,
  // dL/d(ones)
  size_t sums = 0;
  SegmentLayout segments;  // forward: segments of that scan
  size_t factor = 0;       // backward, fp32 [B, T, H]: the upstream gradient of the ones
  ValueMeanLayout value_mean;
};
struct ForwardLayout {
  SegmentLayout segments;
  size_t operands = 0;  // per-channel decays: for the tiles or chunks of the batch tile
  size_t out = 0;       // with several slices of K, their fp32 sums [slices, B, T, H, V]
  NormaliserLayout normaliser;
  size_t bytes = 0;
};
// The number of slices over which a gradient is summed. 1: it is written directly to its tensor,
// unless heads share it.
struct GradientSlices {
  // for dq and dk: one per slice of V, or one per scan if a kernel sums over V (per-channel decays,
  // and the gradients with wgmma)
  int keys = 1;
  int values = 1;  // for dv: one per slice of K
  int tokens = 1;  // for gradients with one number per token and head
  int decays = 1;  // for dlog_decay
};
struct BackwardLayout {
  SegmentLayout segments;
  // Per-channel decays: the operands of the batch tile's tiles (with wgmma: of its chunks), and the
  // products of mma.sync scans, [slices of V].
  size_t operands = 0, products = 0;
  // bf16 states. group: those within a group of chunks, one set per block, as fragments. states and
  // adjoints: with wgmma, S and R of all chunks of the batch tile.
  size_t group = 0, states = 0, adjoints = 0;
  // fp32 gradients per slice or, for shared heads, per output head. They are summed in the order of
  // the heads and, within a head, in the order of the slices.
  GradientSlices slices;
  size_t dq = 0, dk = 0;  // [slices, B, T, H, K]
  size_t dv = 0;          // [slices, B, T, H, V]
  size_t dlog_decay = 0;  // [slices, B, T, H(, K)]
  size_t dlambda = 0;     // for a constant decay: [slices] of DecaySums
  size_t dkey_scale = 0;  // [slices, B, T, H]
  NormaliserLayout normaliser;
  // For the SIMT kernels, whose dlambda is [all sequences, H, slices(, K)].
  size_t simt_states = 0;  // all rows: [num_chunks, H, K, V (+ 1)]
  size_t dnorm = 0;        // all rows: [B, T, H]
  size_t bytes = 0;
};
// The partial sums of a constant decay's gradient for one slice: [num_sequences, H, pieces, width].
// The pieces are segments of sequences; or, with wgmma, chunks of the whole batch; or, with
// mma.sync with per-channel decays, tiles of the whole batch.
struct DecaySums {
  int num_sequences, pieces, width;
  int pieces_of_chunk;  // 0: the pieces are segments

  size_t count(int num_heads) const {
    return size_t{1} * num_sequences * num_heads * pieces * width;
  }
};
DecaySums DecaySumsOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
int NumMeanPieces(const DecayAttentionArgs& args);  // number of partial sums per mean
ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// The layouts of Summarise and BackwardSummarise.
ForwardLayout MakeSummaryLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeReverseSummaryLayout(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan);

size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// With wgmma, the maximum of both backward kernels, because ScanBackward can fall back to the other
// one.
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// bf16 [num_chunks / every + num_sequences, H, K, V]; for fp32 operands, two terms of that. With
// the normaliser, two terms of that, followed by the same for z. 0 on the SIMT route, which
// recomputes states.
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// Returns the offset in elements of z in the checkpoints.
size_t NormCheckpoints(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

template <typename T>
T* At(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

// Returns the address at which row 0 of the whole batch would be, given a region that holds only
// the rows or sequences of one batch tile. Kernels index by absolute row, so the pointer is shifted
// back by `before` elements.
template <typename T>
T* ShiftToBatchStart(void* workspace, size_t offset, int64_t before) {
  const int64_t first = static_cast<int64_t>(offset) - before * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + first);
}

// ---- batch tiles ----

// Chooses the number of batch tiles for decay attention on CUDA. The rows of a batch tile share one
// workspace, which mostly contains fp32 sums before their reduction; processing the batch in tiles
// keeps it small relative to the tensors of the call. The choice depends only on shape and device,
// not on free memory.

// Returns the bytes of q, k, v, out and per-token decays, which a step keeps for every layer.
size_t TensorBytes(const DecayAttentionArgs& args);
// Returns the limit of a workspace, without the states of segments: 2 GiB, or three times
// TensorBytes if that is larger. Exceptions: (1) A single row may need up to seven times its own
// tensors (for example K 256, V 512 and a normaliser with 99 KiB of shared memory), and more if
// many heads share q, k or v. (2) Plans assume rows of one document each. Short documents make more
// chunks.
size_t WorkspaceLimit(const DecayAttentionArgs& args);
// Returns the number of chunks of rows that are one document each, which is the number that plans
// assume.
int NumChunksOfRows(const DecayAttentionArgs& args);
// Returns true if a workspace of `bytes` exceeds the limit and has chunks that plans do not assume.
bool DocumentsExceedWorkspaceLimit(const DecayAttentionArgs& args, size_t bytes);

// The number of blocks per row of the batch, and the number that run at once.
struct BatchTileBlocks {
  int64_t blocks_per_row, slots;
};
// Between 1 (always for packed sequences) and one tile per row. Increases the number until the
// workspace is at most 512 MiB, as long as each tile still fills the device's blocks about twice
// (up to an eighth less), and further only to keep the workspace within WorkspaceLimit.
// `bytes_of(n)` is the workspace with n tiles, which must decrease with n.
int ChooseNumBatchTiles(const DecayAttentionArgs& args, const BatchTileBlocks& blocks,
                        const std::function<size_t(int batch_tiles)>& bytes_of);

}  // namespace halflife::kernels::cuda
