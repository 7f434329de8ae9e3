// Chooses the windows of a split to score if not all are scored. The sample is spread over the
// whole split, so that a validation of few windows covers every source of mixed text.
//
//   const std::vector<int64_t> windows = ChooseWindows(/*num_windows=*/16, /*available=*/1024);
//   DescribeChoice(16, 1024);  // "scored 16 of 1024 windows, 1.6 % of the split"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halflife::eval {

// Returns the numbers of the windows to score, in ascending order: the first num_windows of a fixed
// permutation of [0, available). The choice depends only on these two numbers, so that every
// validation, run and world size scores the same windows. Chooses all windows if num_windows is 0
// or at least `available`.
std::vector<int64_t> ChooseWindows(int64_t num_windows, int64_t available);

std::string DescribeChoice(int64_t num_scored, int64_t available);

}  // namespace halflife::eval
