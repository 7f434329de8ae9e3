// How long each rank computes per step, excluding waits for other ranks. The ranks compare their
// times regularly, so that a slow rank can be named: all others wait for it, and their steps take
// as long.
//
//   RankTimes times(context.control());
//   if (const auto compared = times.Add(busy_seconds)) metrics.Ranks(step, *compared);
#pragma once

#include <optional>

#include "dist/communicator.h"

namespace halflife::train {

struct ComparedTimes {
  double min_s = 0, median_s = 0, max_s = 0;  // Mean seconds per step, over ranks.
  int slowest = 0;                            // The rank of max_s.
  // Number of consecutive comparisons in which this rank was the slowest and exceeded kSlow.
  int times_in_a_row = 0;
};

class RankTimes {
 public:
  static constexpr int kEvery = 16;         // Steps between comparisons.
  static constexpr double kSlow = 1.1;      // Relative to the median.
  static constexpr int kWorthAWarning = 3;  // Consecutive comparisons.

  explicit RankTimes(dist::Communicator& control) : control_(control) {}  // Borrowed.

  // Collective. Compares at every kEvery-th call. Returns nullopt at other calls, and if the world
  // has one rank.
  std::optional<ComparedTimes> Add(double busy_seconds);

 private:
  dist::Communicator& control_;
  int count_ = 0;
  double sum_s_ = 0;
  int last_slow_ = -1, times_in_a_row_ = 0;
};

}  // namespace halflife::train
