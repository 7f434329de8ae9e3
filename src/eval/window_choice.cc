#include "eval/window_choice.h"

#include <algorithm>
#include <numeric>

#include "core/concat.h"
#include "core/human.h"
#include "data/token_source.h"

namespace halflife::eval {

std::vector<int64_t> ChooseWindows(int64_t num_windows, int64_t available) {
  // A seed that no run uses for its training order, which is a permutation of the same family.
  constexpr uint64_t kSeed = 0x76616c6964617465;
  const bool all = num_windows == 0 || num_windows >= available;
  std::vector<int64_t> windows(static_cast<size_t>(all ? available : num_windows));
  std::iota(windows.begin(), windows.end(), 0);
  if (all) return windows;
  for (int64_t& window : windows)
    window = static_cast<int64_t>(data::PermuteIndex(
        static_cast<uint64_t>(window), static_cast<uint64_t>(available), kSeed, /*epoch=*/0));
  std::ranges::sort(windows);
  return windows;
}

std::string DescribeChoice(int64_t num_scored, int64_t available) {
  if (num_scored == available) return Concat("scored all ", Counted(available, "window"));
  const double percent = 100 * static_cast<double>(num_scored) / static_cast<double>(available);
  return Concat("scored ", num_scored, " of ", Counted(available, "window"), ", ",
                Fixed(percent, percent < 1 ? 3 : 1), " % of the split");
}

}  // namespace halflife::eval
