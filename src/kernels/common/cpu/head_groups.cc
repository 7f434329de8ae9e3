#include "kernels/common/cpu/head_groups.h"

#include <omp.h>

namespace halflife::kernels::cpu {

HeadGroups::HeadGroups(const HeadItems& items, int block_chunks, bool worth)
    : items_(items), block_chunks_(block_chunks) {
  const int64_t threads = std::max(1, omp_get_max_threads());
  for (int heads = items.num_heads; worth && heads > 1 && heads_per_group_ == 1; --heads) {
    const int64_t groups = items.num_items / heads;
    if (items.num_heads % heads == 0 && (groups % threads == 0 || groups >= 8 * threads))
      heads_per_group_ = heads;
  }
  if (heads_per_group_ == 1) block_chunks_ = kUnblocked;
}

int64_t HeadGroups::Item(int64_t group, int i) const {
  return (group / items_.kinds * heads_per_group_ + i) * items_.kinds + group % items_.kinds;
}

std::vector<ChunkBlock> HeadGroups::Blocks(int begin, int end, bool descending) const {
  std::vector<ChunkBlock> blocks;
  int at = begin;
  do {
    const int block_end = end - at > block_chunks_ ? at + block_chunks_ : end;
    blocks.push_back({.begin = at, .end = block_end, .first = false, .last = false});
    at = block_end;
  } while (at < end);
  if (descending) std::reverse(blocks.begin(), blocks.end());
  blocks.front().first = blocks.back().last = true;
  return blocks;
}

}  // namespace halflife::kernels::cpu
