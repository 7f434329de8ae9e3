// How a run of tokens is cut, one rule for CPU and CUDA. Time is cut into blocks of `window`
// tokens from the run's first on, and blocks into chunks. The window of a token is then
//
//   the end of the chunk of the block before that stands opposite its own   (suffix within a chunk)
//   the rest of that block, and its own block up to its own chunk           (outer: chunks' totals)
//   its own chunk up to itself                                              (prefix within a chunk)
//
// three sums that no subtraction makes, at a cost per token that does not depend on the window. A
// narrow window is summed as it stands. The backward is the same in reversed time. C++17.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

namespace halflife::kernels {

constexpr int kFocusChunk = 64;  // tokens of a chunk, at most
// Widest window that is summed directly: about where that costs as much as two scans.
constexpr int kFocusNarrow = 4;

HL_EVERYWHERE constexpr bool IsNarrow(int64_t window) {
  return window > 0 && window <= kFocusNarrow;
}
// Chunks of a block of `block` tokens.
HL_EVERYWHERE constexpr int64_t FocusChunks(int64_t block) {
  return (block + kFocusChunk - 1) / kFocusChunk;
}

}  // namespace halflife::kernels
