// A list schedule: computes when each of a list of operations runs. Some share a lane, and some
// wait for others. A lane is a resource that works independently, such as a device's compute or a
// group's communication.
#pragma once

#include <vector>

namespace halflife::train {

struct TimelineOperation {
  int lane = 0;  // Counted from 0.
  double seconds = 0;
  std::vector<int> after = {};  // Earlier operations of the list that must end first.
};

struct TimelineRules {
  // Operations of this lane slow down by this fraction while another lane works, because the copies
  // and sums of collectives use units and memory of compute. Overlapping operations must be earlier
  // in the list, as a program issues them.
  int taxed_lane = 0;
  double tax = 0;
};

struct Interval {
  double begin = 0, end = 0;
};
struct Timeline {
  std::vector<Interval> intervals;  // Indexed by operation.
  // Indexed by operation: the operation whose end determined its begin, either one of its `after`
  // or the previous one of its lane. -1: it began at 0.
  std::vector<int> begun_after;
  double taxed_seconds = 0;  // Total time that the slowdown added.
};

// Schedules the operations. A lane executes its operations in list order, each as soon as the lane
// is free and its `after` operations have ended. Throws Error kInternal if `after` names the
// operation itself or a later one.
Timeline Schedule(const std::vector<TimelineOperation>& operations, const TimelineRules& rules);

// The time that an operation waited while its lane was free, latest part first: intervals of other
// operations, each of which began where the next one in the list ends. Empty if it did not wait.
struct Waited {
  int operation = 0;
  double seconds = 0;
};
std::vector<Waited> WaitsOf(int operation, const std::vector<TimelineOperation>& operations,
                            const Timeline& timeline);

}  // namespace halflife::train
