// The schedule of the CUDA kernels: chunks that run in parallel, and the blocks whose chunk totals
// are summed in between. A pure function of the runs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/focus_pool/focus_pool_args.h"

namespace halflife::kernels {

struct FocusPlanConfig {
  int64_t window = 0;
  bool has_tail = false;
  // Reversed time. If the gradients of the tail are wanted, its tokens follow those of the run.
  bool backward = false;
};
struct FocusPlan {
  std::vector<FocusChunk> chunks;
  std::vector<FocusBlock> blocks;
};
FocusPlan MakeFocusPlan(const std::vector<FocusRun>& runs, const FocusPlanConfig& config);

}  // namespace halflife::kernels
