#include "train/plan/timeline.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::train {
namespace {

// The times at which the other lanes work, as disjoint intervals in ascending order.
class Busy {
 public:
  void Add(Interval added) {
    if (added.end <= added.begin) return;
    auto first = std::ranges::lower_bound(intervals_, added.begin, {}, &Interval::end);
    auto last = first;
    for (; last != intervals_.end() && last->begin <= added.end; ++last) {
      added.begin = std::min(added.begin, last->begin);
      added.end = std::max(added.end, last->end);
    }
    intervals_.insert(intervals_.erase(first, last), added);
  }

  // Returns when `seconds` of work that begin at `begin` end, if they run slower by `tax` while
  // other lanes work.
  double EndOf(double begin, double seconds, double tax) const {
    double now = begin, left = seconds;
    auto next = std::ranges::upper_bound(intervals_, begin, {}, &Interval::end);
    for (; next != intervals_.end() && left > 0; ++next) {
      const double alone = std::max(0.0, next->begin - now);
      if (left <= alone) break;
      now += alone, left -= alone;
      const double overlapped = std::min(left, (next->end - now) / (1 + tax));
      now += overlapped * (1 + tax), left -= overlapped;
    }
    return now + left;
  }

 private:
  std::vector<Interval> intervals_;
};

}  // namespace

Timeline Schedule(const std::vector<TimelineOperation>& operations, const TimelineRules& rules) {
  Timeline timeline;
  std::vector<int> last_of;  // The latest operation of each lane.
  Busy others;
  for (int index = 0; index < static_cast<int>(operations.size()); ++index) {
    const TimelineOperation& operation = operations[index];
    const auto lane = static_cast<size_t>(operation.lane);
    last_of.resize(std::max(last_of.size(), lane + 1), -1);
    int cause = last_of[lane];
    double begin = cause < 0 ? 0 : timeline.intervals[cause].end;
    for (const int before : operation.after) {
      HL_CHECK(before >= 0 && before < index, "operation ", index, " comes after ", before);
      const double end = timeline.intervals[before].end;
      if (cause < 0 || end > begin) begin = end, cause = before;
    }
    const bool taxed = operation.lane == rules.taxed_lane;
    const double end =
        taxed ? others.EndOf(begin, operation.seconds, rules.tax) : begin + operation.seconds;
    if (taxed) timeline.taxed_seconds += end - begin - operation.seconds;
    if (!taxed) others.Add({begin, end});
    timeline.intervals.push_back({begin, end});
    timeline.begun_after.push_back(cause);
    last_of[lane] = index;
  }
  return timeline;
}

std::vector<Waited> WaitsOf(int operation, const std::vector<TimelineOperation>& operations,
                            const Timeline& timeline) {
  const int lane = operations[operation].lane;
  double free = 0;  // The time from which the lane was free.
  for (int before = operation - 1; before >= 0; --before) {
    if (operations[before].lane != lane) continue;
    free = timeline.intervals[before].end;
    break;
  }
  std::vector<Waited> waits;
  double until = timeline.intervals[operation].begin;
  for (int cause = timeline.begun_after[operation]; cause >= 0 && until > free;
       cause = timeline.begun_after[cause]) {
    const double begin = std::max(free, timeline.intervals[cause].begin);
    waits.push_back({cause, until - begin});
    until = begin;
  }
  return waits;
}

}  // namespace halflife::train
