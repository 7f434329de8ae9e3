// The schedule of the CUDA kernels: chunks that run in parallel, and the blocks whose chunk totals
// are summed in between. A pure function of the runs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/host_device.h"
#include "kernels/focus_pool/focus_pool_args.h"

namespace halflife::kernels {

// The partition of a run of tokens, the same on CPU and CUDA. Time is divided into blocks of
// `window` tokens, starting with the run's first, and blocks are divided into chunks. The window of
// a token is then the union of three parts:
//
//   the end of the chunk at the same position in the previous block         (suffix within a chunk)
//   the rest of that block, and its own block up to its own chunk           (outer: chunks' totals)
//   its own chunk up to itself                                              (prefix within a chunk)
//
// The three sums need no subtraction, and their cost per token does not depend on the window. A
// narrow window is summed directly. The backward is the same in reversed time. C++17.
constexpr int kFocusChunk = 64;  // maximum tokens of a chunk
// The widest window that is summed directly: at about this width, that costs as much as two scans.
constexpr int kFocusNarrow = 4;

HL_EVERYWHERE constexpr bool IsNarrow(int64_t window) {
  return window > 0 && window <= kFocusNarrow;
}
// Returns the number of chunks in a block of `block` tokens.
HL_EVERYWHERE constexpr int64_t FocusChunks(int64_t block) {
  return (block + kFocusChunk - 1) / kFocusChunk;
}

struct FocusPlanConfig {
  int64_t window = 0;
  bool has_tail = false;
  // Reversed time. If the gradients of the tail are requested, its tokens follow those of the run.
  bool backward = false;
};
struct FocusPlan {
  std::vector<FocusChunk> chunks;
  std::vector<FocusBlock> blocks;
};
FocusPlan MakeFocusPlan(const std::vector<FocusRun>& runs, const FocusPlanConfig& config);

}  // namespace halflife::kernels
