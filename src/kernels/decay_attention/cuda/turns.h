// In how many turns decay attention on CUDA takes the rows of a batch, so that its workspace,
// mostly fp32 sums that wait for their reduction, stays small beside the tensors of the call. A
// function of shape and device alone: what memory is free decides nothing. Host code.
//
//   const auto bytes_of = [&](int turns) {
//     plan.backward_turns = turns;
//     return cuda::BackwardWorkspaceBytes(args, plan);
//   };
//   plan.backward_turns = cuda::ChooseTurns(args, {.blocks_of_row = 32, .slots = 132}, bytes_of);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

// Bytes of q, k, v and out and of decays a token, which a step keeps of every layer.
size_t TensorBytes(const DecayAttentionArgs& args);
// What a workspace is kept within, segments' states aside, as far as turns of a row each allow:
// 2 GiB, or three times TensorBytes. A row by itself takes up to seven times its own, as 99 KiB of
// shared memory cut K 256 and V 512 with a normaliser; more where many heads share q, k or v.
size_t WorkspaceLimit(const DecayAttentionArgs& args);

// How many blocks a row of the batch is, and how many run at once.
struct TurnBlocks {
  int64_t blocks_of_row, slots;
};
// From 1, for sequences that are packed, to a turn for each row. As many as bring the workspace to
// 512 MiB, while a turn is still two rounds of the device's blocks, or an eighth less; more where
// only that keeps it within the limit. `bytes_of(turns)`: the workspace, which falls with them.
int ChooseTurns(const DecayAttentionArgs& args, const TurnBlocks& blocks,
                const std::function<size_t(int turns)>& bytes_of);

}  // namespace halflife::kernels::cuda
