// Chooses the number of batch tiles for decay attention on CUDA. The rows of a batch tile share one
// workspace, which mostly contains fp32 sums before their reduction; processing the batch in tiles
// keeps it small relative to the tensors of the call. The choice depends only on shape and device,
// not on free memory. Host code.
//
//   const auto bytes_of = [&](int batch_tiles) {
//     plan.backward_batch_tiles = batch_tiles;
//     return cuda::BackwardWorkspaceBytes(args, plan);
//   };
//   plan.backward_batch_tiles =
//       cuda::ChooseNumBatchTiles(args, {.blocks_per_row = 32, .slots = 132}, bytes_of);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

// The bytes of q, k, v, out and per-token decays, which a step keeps for every layer.
size_t TensorBytes(const DecayAttentionArgs& args);
// The limit for a workspace, without the states of segments, as far as one row per tile allows: 2
// GiB, or three times TensorBytes. A single row needs up to seven times its own tensors, for
// example if 99 KiB of shared memory split K 256 and V 512 with a normaliser, and more if many
// heads share q, k or v.
size_t WorkspaceLimit(const DecayAttentionArgs& args);

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
