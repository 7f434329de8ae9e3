#include "kernels/decay_attention/cuda/batch_tiles.h"

#include <algorithm>

#include "core/dtype.h"

namespace halflife::kernels::cuda {
namespace {

constexpr size_t kSmallWorkspace = size_t{512} << 20, kLargeWorkspace = size_t{2} << 30;

// The smallest number of batch tiles whose workspace is within `limit`; otherwise one tile per row.
int BatchTilesWithin(size_t limit, int batch,
                     const std::function<size_t(int batch_tiles)>& bytes_of) {
  int low = 1, high = batch;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (bytes_of(middle) <= limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

size_t TensorBytes(const DecayAttentionArgs& args) {
  const size_t keys = args.head_dim_k, values = args.head_dim_v;
  const size_t decays = !IsPerToken(args.decay_kind) ? 0
                        : IsPerChannel(args.decay_kind)
                            ? sizeof(float) * args.num_decay_heads * keys
                            : sizeof(float) * args.num_decay_heads;
  const size_t of_token = SizeOf(args.q.dtype) * (keys * (args.num_q_heads + args.num_k_heads) +
                                                  values * (args.num_v_heads + args.num_heads)) +
                          decays;
  return of_token * args.batch * args.seq_len;
}
size_t WorkspaceLimit(const DecayAttentionArgs& args) {
  return std::max(kLargeWorkspace, 3 * TensorBytes(args));
}

int ChooseNumBatchTiles(const DecayAttentionArgs& args, const BatchTileBlocks& blocks,
                        const std::function<size_t(int batch_tiles)>& bytes_of) {
  if (args.num_sequences != args.batch || args.batch <= 1) return 1;
  const int64_t full = 2 * blocks.slots - blocks.slots / 4;
  const int64_t rows = (full + blocks.blocks_per_row - 1) / blocks.blocks_per_row;
  const int busy = static_cast<int>(std::max<int64_t>(1, args.batch / rows));
  const int wanted = std::min(busy, BatchTilesWithin(kSmallWorkspace, args.batch, bytes_of));
  return std::max(wanted, BatchTilesWithin(WorkspaceLimit(args), args.batch, bytes_of));
}

}  // namespace halflife::kernels::cuda
