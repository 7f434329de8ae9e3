// When each of a list of operations runs, where some share a lane, and some wait for others: a list
// schedule. Lanes stand for what works by itself: a device's compute, a group's communication.
//
//   const Timeline timeline = Schedule({{.lane = 0, .seconds = 2},
//                                       {.lane = 1, .seconds = 3, .after = {0}},
//                                       {.lane = 0, .seconds = 1, .after = {1}}}, {});
//   timeline.intervals[2].begin;   // 5
#pragma once

#include <vector>

namespace halflife::train {

struct TimelineOperation {
  int lane = 0;  // from 0
  double seconds = 0;
  std::vector<int> after = {};  // operations before it in the list that have to end first
};

struct TimelineRules {
  // An operation of this lane runs slower by this part of itself while another lane works: copies
  // and sums of collectives take compute's units and memory. What works beside it comes before it
  // in the list, as what a program issues does.
  int taxed_lane = 0;
  double tax = 0;
};

struct Interval {
  double begin = 0, end = 0;
};
struct Timeline {
  std::vector<Interval> intervals;  // by operation
  // By operation: the one at whose end it began, one of those it comes `after` or its lane's before
  // it; -1: it began at 0.
  std::vector<int> begun_after;
  double taxed_seconds = 0;  // that the tax added in all
};

// A lane takes its operations in the list's order, each as soon as the lane is free and what it
// comes `after` has ended. Error kInternal where that names itself or a later one.
Timeline Schedule(const std::vector<TimelineOperation>& operations, const TimelineRules& rules);

// What an operation waited for while its lane was free, latest first: stretches of other
// operations, each of which began where the next one in the list ends. Empty: it did not wait.
struct Waited {
  int operation = 0;
  double seconds = 0;
};
std::vector<Waited> WaitsOf(int operation, const std::vector<TimelineOperation>& operations,
                            const Timeline& timeline);

}  // namespace halflife::train
