// The functions that are compiled once per instruction set and called by focus_pool.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/focus_pool/focus_pool_args.h"
#include "kernels/focus_pool/focus_pool_plan.h"

namespace halflife::kernels::cpu {

// The scratch memory of a thread, allocated before its loops.
// The values that a head keeps from chunk to chunk, for runs of up to `longest` tokens.
template <typename T>
struct FocusHeadScratch {
  using Compute = FocusCompute<T>;
  FocusHeadScratch(const FocusPoolShape<T>& shape, int64_t longest)
      : key(LeavesOf(shape, longest)), mass(key.size()), scale(key.size()), carry(shape.dim) {
    // There is a second block, or a tail that acts as the block before the first.
    const bool has_blocks = shape.window > 0 && !IsNarrow(shape.window) &&
                            (longest > shape.window || shape.tail_log_weight != nullptr);
    const int64_t chunks = has_blocks ? FocusChunks(shape.window) + 1 : 0;
    for (Totals& totals : blocks) {
      totals.log_scale.resize(chunks);
      totals.mass.resize(chunks);
      totals.sum.resize(chunks * shape.dim);
    }
  }

  std::vector<Compute> key, mass, scale;  // per leaf, including those of the tail
  std::vector<Compute> carry;
  struct Totals {
    std::vector<Compute> log_scale, mass, sum;
  };
  Totals blocks[2];  // chunk totals of the previous block and of the current one

 private:
  static int64_t LeavesOf(const FocusPoolShape<T>& shape, int64_t longest) {
    return longest + (shape.tail_log_weight == nullptr ? 0 : shape.window - 1);
  }
};

// The memory that processing one chunk needs, shared by all heads.
template <typename T>
struct FocusChunkScratch {
  using Compute = FocusCompute<T>;
  explicit FocusChunkScratch(int64_t dim)
      : none(dim), suffix((kFocusChunk + 1) * dim), prefix(dim), outer(dim) {}

  std::vector<T> none;          // zeros, used in place of the row of a masked leaf
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

// The work of one thread: heads [first_head, end_head) of one run.
template <typename T>
struct FocusItem {
  const FocusPoolShape<T>& shape;
  const FocusPoolResults<T>& results;  // the backward reads out, row_max and row_sum
  FocusRun run;
  int64_t first_head, end_head;
  FocusScratch<T>& scratch;  // for at least as many heads
};

template <typename T>
struct FocusKernels {
  void (*forward)(const FocusItem<T>& item);
  void (*backward)(const FocusItem<T>& item, const FocusPoolGrads<T>& grads);
};
using AllFocusKernels = std::tuple<FocusKernels<float>, FocusKernels<Bf16>, FocusKernels<double>>;
HL_PER_INSTRUCTION_SET(extern const AllFocusKernels kFocusKernels;)

}  // namespace halflife::kernels::cpu
