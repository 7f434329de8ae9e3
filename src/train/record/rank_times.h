// How long each rank computes a step, waiting for others left out: every so many steps the ranks
// compare, so that a slow one gets a name. A slow rank makes all others wait, and their steps as
// long as its own.
//
//   RankTimes times(context.control());
//   if (const auto compared = times.Add(busy_seconds)) metrics.Ranks(step, *compared);
#pragma once

#include <optional>

#include "dist/communicator.h"

namespace halflife::train {

struct ComparedTimes {
  double min_s = 0, median_s = 0, max_s = 0;  // mean seconds of a step, over ranks
  int slowest = 0;                            // the rank of max_s
  // The same rank was the slowest, and this much above the median, in that many comparisons in a
  // row.
  int times_in_a_row = 0;
};

class RankTimes {
 public:
  static constexpr int kEvery = 16;         // steps
  static constexpr double kSlow = 1.1;      // of the median
  static constexpr int kWorthAWarning = 3;  // times in a row

  explicit RankTimes(dist::Communicator& control) : control_(control) {}  // borrowed

  // Collective, the comparison at every kEvery-th call; nullopt at others, and for a world of one.
  std::optional<ComparedTimes> Add(double busy_seconds);

 private:
  dist::Communicator& control_;
  int count_ = 0;
  double sum_s_ = 0;
  int last_slow_ = -1, times_in_a_row_ = 0;
};

}  // namespace halflife::train
