#include "kernels/focus_pool/focus_pool_plan.h"

#include <algorithm>

namespace halflife::kernels {
namespace {

// Divides leaves [begin, begin + length) of run `run` into chunks and returns their number.
int32_t CutBlock(int32_t run, int64_t begin, int64_t length, FocusPlan& plan) {
  for (int64_t first = 0; first < length; first += kFocusChunk)
    plan.chunks.push_back(
        {.first = begin + first,
         .run = run,
         .length = static_cast<int32_t>(std::min<int64_t>(kFocusChunk, length - first)),
         .opposite = 0,
         .has_rows = 1});
  return static_cast<int32_t>(FocusChunks(length));
}

// Adds the tail as the block before the first, without the first leaf of that block, which no
// window reaches.
FocusBlock CutTail(int32_t run, int64_t window, FocusPlan& plan) {
  const FocusBlock block = {.run = run,
                            .first_chunk = static_cast<int32_t>(plan.chunks.size()),
                            .num_chunks = CutBlock(run, -1, window, plan)};
  FocusChunk& first = plan.chunks[block.first_chunk];
  ++first.first, --first.length;
  for (int32_t i = 0; i < block.num_chunks; ++i) plan.chunks[block.first_chunk + i].has_rows = 0;
  return block;
}

}  // namespace

FocusPlan MakeFocusPlan(const std::vector<FocusRun>& runs, const FocusPlanConfig& config) {
  FocusPlan plan;
  const int64_t window = config.window;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto run = static_cast<int32_t>(i);
    const int64_t of_tail = config.has_tail && runs[i].sequence >= 0 ? window - 1 : 0;
    const int64_t halo = config.backward ? 0 : of_tail, count = runs[i].length + of_tail;
    if (IsNarrow(window)) {
      CutBlock(run, halo, count - halo, plan);
      continue;
    }
    const int64_t size = window == 0 ? count : window;
    FocusBlock before;  // none
    if (halo > 0) before = CutTail(run, window, plan);
    for (int64_t begin = halo; begin < count; begin += size) {
      FocusBlock block = {.run = run,
                          .first_chunk = static_cast<int32_t>(plan.chunks.size()),
                          .num_chunks = CutBlock(run, begin, std::min(size, count - begin), plan),
                          .first_before = before.first_chunk,
                          .num_before = before.num_chunks};
      for (int32_t c = 0; c < block.num_chunks && before.num_chunks > 0; ++c)
        plan.chunks[block.first_chunk + c].opposite =
            static_cast<int32_t>(std::min<int64_t>(kFocusChunk, window - c * kFocusChunk));
      plan.blocks.push_back(block);
      before = block;
    }
  }
  return plan;
}

}  // namespace halflife::kernels
