#include "train/record/rank_times.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace halflife::train {

std::optional<ComparedTimes> RankTimes::Add(double busy_seconds) {
  if (control_.size() == 1) return std::nullopt;
  sum_s_ += busy_seconds;
  if (++count_ < kEvery) return std::nullopt;
  double own = std::exchange(sum_s_, 0) / std::exchange(count_, 0);
  std::vector<double> all(control_.size());
  control_
      .AllGather(Ref(&own, 1), Ref(all.data(), static_cast<int64_t>(all.size())), {"rank_times", 0},
                 nullptr)
      .WaitHost();
  const auto slowest = std::max_element(all.begin(), all.end());
  ComparedTimes compared = {.max_s = *slowest, .slowest = static_cast<int>(slowest - all.begin())};
  std::sort(all.begin(), all.end());
  compared.min_s = all.front();
  compared.median_s = all[(all.size() - 1) / 2];
  const bool slow = compared.max_s > kSlow * compared.median_s;
  const bool again = slow && compared.slowest == last_slow_;
  times_in_a_row_ = again ? times_in_a_row_ + 1 : slow ? 1 : 0;
  last_slow_ = slow ? compared.slowest : -1;
  compared.times_in_a_row = times_in_a_row_;
  return compared;
}

}  // namespace halflife::train
