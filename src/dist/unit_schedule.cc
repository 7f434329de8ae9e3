#include "dist/unit_schedule.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::dist {

UnitSchedule::UnitSchedule(int num_units, int prefetch)
    : num_units_(num_units), prefetch_(prefetch), unit_in_(prefetch + 2, -1) {
  HL_CHECK(num_units >= 3 && prefetch >= 0, num_units, " units with a prefetch of ", prefetch);
}

int UnitSchedule::SlotOf(int unit) const {
  return is_edge(unit) ? prefetch_ + 1 : (unit - 1) % (prefetch_ + 1);
}

void UnitSchedule::Invalidate() { std::ranges::fill(unit_in_, -1); }

std::vector<UnitSchedule::Gather> UnitSchedule::Plan(int unit, int direction, int last) {
  HL_CHECK(0 <= unit && unit < num_units_, "unit ", unit, " of ", num_units_);
  const int farthest = prefetch_ == 0 ? 0 : prefetch_ + 1;
  std::vector<Gather> gathers;
  for (int distance = 0; distance <= farthest; ++distance) {
    const int next = unit + direction * distance;
    if ((last - next) * direction < 0 || (distance > prefetch_ && !is_edge(next))) break;
    const int slot = SlotOf(next), present = unit_in_[slot];
    if (present == next) continue;
    // A unit that is read earlier keeps its slot (the embedding, in a model of few layers).
    const int read_after = (present - unit) * direction;
    if (present >= 0 && 0 <= read_after && read_after < distance) break;
    gathers.push_back({.unit = next, .slot = slot, .released = present});
    unit_in_[slot] = next;
  }
  return gathers;
}

}  // namespace halflife::dist
