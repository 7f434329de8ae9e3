#pragma once

#include <algorithm>
#include <vector>

namespace halflife {

// Returns the median of one or more values: of an even number, the mean of the two middle ones.
inline double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

}  // namespace halflife
