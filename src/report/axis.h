// A number line in pixels, with ticks at round numbers.
#pragma once

#include <string>
#include <vector>

#include "report/series.h"

namespace halflife::report {

struct Tick {
  double value = 0;
  std::string label;  // Empty: a minor tick.
};

// Formats a number with 4 significant digits: 0.00025 -> "2.5e-4", 1500000 -> "1.5M".
std::string ShortNumber(double value);

// Returns about `wanted` multiples of 1, 2 or 5 x 10^k in [low, high]. All labels have the same
// format ("0.5", "1.0").
std::vector<Tick> LinearTicks(double low, double high, int wanted);
// Returns decades, or 1-2-5 steps for less than two decades, with minor ticks between them.
// Requires low > 0.
std::vector<Tick> LogTicks(double low, double high, int wanted);

class Axis {
 public:
  // Maps [low, high] to [first_pixel, last_pixel]. An empty range is widened. A logarithmic scale
  // requires low > 0.
  Axis(double low, double high, Scale scale, double first_pixel, double last_pixel);

  double low() const { return low_; }
  double high() const { return high_; }
  Scale scale() const { return scale_; }
  double Pixel(double value) const;
  std::vector<Tick> Ticks(int wanted) const;

 private:
  double low_, high_;
  Scale scale_;
  double first_pixel_, last_pixel_;
};

}  // namespace halflife::report
