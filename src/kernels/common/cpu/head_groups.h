// Cache blocking for scans of long rows: several heads advance together, one block of chunks
// at a time. The heads of a token are adjacent in memory. If one head ran to the end of
// the row first, it would read a small part of each page and cache line, and the next head would
// have to fetch them again. With 8 heads of 64 channels in fp32, that takes 1.13 to 1.2 times the
// time of decay attention from 16,384 tokens on.
//
// The work items are [num_sequences, H, kinds]. A thread gets the items of a group of heads of one
// sequence and kind. The results do not depend on the grouping or the block size, because a head
// passes exactly its state from one block to the next.
//
//   const HeadGroups groups({num_heads, num_items, /*kinds=*/1}, block_chunks, rows_are_long);
//   Parallel("a kernel", groups.count(), bytes, [&](int64_t group, void* scratch) {
//     for (const ChunkBlock& block : groups.Blocks(begin, end, /*descending=*/false))
//       for (int i = 0; i < groups.heads_per_group(); ++i)
//         Scan(groups.Item(group, i), block, scratch);
//   });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace halflife::kernels::cpu {

// Target size, over all heads, of a block's operands and outputs in the forward; a backward touches
// twice as much. A block must stay in the last-level cache until the last head has processed it.
constexpr int64_t kBlockBytes = 8 << 20;
// Returns the chunks per block, a multiple of `multiple`, given the bytes of one token over all
// heads.
constexpr int ChunksPerBlock(int64_t token_bytes, int chunk_size, int multiple) {
  const int64_t bytes = token_bytes * chunk_size * multiple;
  return static_cast<int>(std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, bytes))) *
         multiple;
}
constexpr int kUnblocked = 1 << 30;  // chunks: no blocking, each head runs to the row's end

struct ChunkBlock {
  int begin, end;    // chunk indices
  bool first, last;  // first and last in the order of the scan
};

struct HeadItems {
  int num_heads = 1;
  int64_t num_items = 0;
  int kinds = 1;  // items per head: its segments, or the passes of a backward
};

class HeadGroups {
 public:
  // Groups as many heads as leave every thread the same amount of work; one head per group if
  // `worth` is false.
  HeadGroups(const HeadItems& items, int block_chunks, bool worth);
  int heads_per_group() const { return heads_per_group_; }
  int64_t count() const { return items_.num_items / heads_per_group_; }
  int64_t Item(int64_t group, int i) const;  // returns the i-th item of a group
  // Returns the blocks of chunks [begin, end), at least one; a single block if each group has one
  // head. If `descending`, they run from the end to the beginning.
  std::vector<ChunkBlock> Blocks(int begin, int end, bool descending) const;

 private:
  HeadItems items_;
  int block_chunks_;
  int heads_per_group_ = 1;
};

// The data that the heads of a group pass from block to block: a state and a norm per head, stored
// after a thread's scratch memory.
class Carries {
 public:
  // `norm_bytes` may be 0.
  Carries(size_t scratch_bytes, size_t state_bytes, size_t norm_bytes)
      : offset_((scratch_bytes + 63) / 64 * 64),
        state_bytes_(state_bytes),
        norm_bytes_(norm_bytes) {}
  size_t bytes(int heads) const { return offset_ + static_cast<size_t>(heads) * bytes_per_head(); }
  void* State(void* scratch, int head) const {
    return static_cast<std::byte*>(scratch) + offset_ +
           static_cast<size_t>(head) * bytes_per_head();
  }
  void* Norm(void* scratch, int head) const {  // null if norm_bytes is 0
    return norm_bytes_ == 0 ? nullptr
                            : static_cast<std::byte*>(State(scratch, head)) + state_bytes_;
  }

 private:
  size_t bytes_per_head() const { return state_bytes_ + norm_bytes_; }
  size_t offset_, state_bytes_, norm_bytes_;
};

}  // namespace halflife::kernels::cpu
