#include "dist/split_members.h"

#include <algorithm>
#include <tuple>

namespace halflife::dist {

std::vector<int> MembersOf(std::span<const SplitPlace> all, int color) {
  std::vector<int> members;
  if (color < 0) return members;
  for (int i = 0; i < static_cast<int>(all.size()); ++i) {
    if (all[i].color == color) members.push_back(i);
  }
  std::ranges::sort(members, {}, [&](int i) { return std::tuple(all[i].key, all[i].rank); });
  return members;
}

int IndexOf(std::span<const int> members, int member) {
  const auto at = std::ranges::find(members, member);
  return at == members.end() ? 0 : static_cast<int>(at - members.begin());
}

}  // namespace halflife::dist
