// The memory that a thread works in, made before its loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/focus_pool/args.h"
#include "kernels/focus_pool/partition.h"

namespace halflife::kernels::cpu {

// For runs of up to `longest` tokens.
template <typename T>
struct FocusScratch {
  using Compute = FocusCompute<T>;
  FocusScratch(const FocusPoolShape<T>& shape, int64_t longest)
      : key(LeavesOf(shape, longest)),
        mass(key.size()),
        scale(key.size()),
        none(shape.dim),
        suffix((kFocusChunk + 1) * shape.dim),
        prefix(shape.dim),
        carry(shape.dim),
        outer(shape.dim) {
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

  // Leaves of one run and head, those of the tail included.
  std::vector<Compute> key, mass, scale;
  std::vector<T> none;          // zeros in place of what a masked leaf holds
  std::vector<Compute> suffix;  // a row for each leaf of a chunk, and zeros
  std::vector<Compute> prefix, carry, outer;
  struct Totals {
    std::vector<Compute> log_scale, mass, sum;
  };
  Totals blocks[2];  // of the chunks of the block before and of the block at hand

 private:
  static int64_t LeavesOf(const FocusPoolShape<T>& shape, int64_t longest) {
    return longest + (shape.tail_log_weight == nullptr ? 0 : shape.window - 1);
  }
};

}  // namespace halflife::kernels::cpu
