// The memory that a thread works in, made before its loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/focus_pool/focus_pool_args.h"
#include "kernels/focus_pool/focus_pool_partition.h"

namespace halflife::kernels::cpu {

// What a head keeps from chunk to chunk of a run of up to `longest` tokens.
template <typename T>
struct FocusHeadScratch {
  using Compute = FocusCompute<T>;
  FocusHeadScratch(const FocusPoolShape<T>& shape, int64_t longest)
      : key(LeavesOf(shape, longest)), mass(key.size()), scale(key.size()), carry(shape.dim) {
    // A second block, or a tail in the place of one before the first.
    const bool has_blocks = shape.window > 0 && !IsNarrow(shape.window) &&
                            (longest > shape.window || shape.tail_log_weight != nullptr);
    const int64_t chunks = has_blocks ? FocusChunks(shape.window) + 1 : 0;
    for (Totals& totals : blocks) {
      totals.log_scale.resize(chunks);
      totals.mass.resize(chunks);
      totals.sum.resize(chunks * shape.dim);
    }
  }

  std::vector<Compute> key, mass, scale;  // of leaves, those of the tail included
  std::vector<Compute> carry;
  struct Totals {
    std::vector<Compute> log_scale, mass, sum;
  };
  Totals blocks[2];  // of the chunks of the block before and of the block at hand

 private:
  static int64_t LeavesOf(const FocusPoolShape<T>& shape, int64_t longest) {
    return longest + (shape.tail_log_weight == nullptr ? 0 : shape.window - 1);
  }
};

// What one chunk at a time uses, whichever head it is of.
template <typename T>
struct FocusChunkScratch {
  using Compute = FocusCompute<T>;
  explicit FocusChunkScratch(int64_t dim)
      : none(dim), suffix((kFocusChunk + 1) * dim), prefix(dim), outer(dim) {}

  std::vector<T> none;          // zeros in place of what a masked leaf holds
  std::vector<Compute> suffix;  // a row for each leaf of a chunk, and zeros
  std::vector<Compute> prefix, outer;
};

template <typename T>
struct FocusScratch {
  FocusScratch(const FocusPoolShape<T>& shape, int64_t num_heads, int64_t longest)
      : chunk(shape.dim), heads(num_heads, FocusHeadScratch<T>(shape, longest)) {}

  FocusChunkScratch<T> chunk;
  std::vector<FocusHeadScratch<T>> heads;
};

}  // namespace halflife::kernels::cpu
