// Curves and number lines: the reduction of a curve to what a plot can show, and an axis in pixels
// with ticks at round numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace halflife::report {

// A curve, and its reduction to what a plot of a given width can show.
//
//   const std::vector<Bucket> shown =
//       Reduce(points, /*begin=*/0, /*end=*/100000, Scale::kLinear, /*num_buckets=*/200);
struct Point {
  // A y that is NaN or infinite means that the run recorded a non-finite number.
  double x = 0, y = 0;
};
using Series = std::vector<Point>;  // x ascends strictly.

enum class Scale { kLinear, kLog };

// Neighbouring points combined: their mean, and their extremes, which a reduction must not hide.
struct Bucket {
  double x = 0;                        // Mean x of the points.
  double mean = 0, low = 0, high = 0;  // Finite values only. NaN if there are none.
  int64_t num_points = 0;
  int64_t num_nonfinite = 0;
};

// Returns every point unchanged if there are at most 2 x num_buckets points. Otherwise, divides
// [begin, end] into equal intervals on the given scale and returns one bucket per interval, without
// the empty ones.
std::vector<Bucket> Reduce(const Series& points, double begin, double end, Scale scale,
                           int num_buckets);

// These functions use only finite values and return nullopt if there are none.
std::optional<Point> Lowest(const Series& points);
std::optional<double> Median(const Series& points);
std::optional<double> Sum(const Series& points);
std::optional<double> MeanOfLast(const Series& points, size_t count);
std::optional<double> Highest(const Series& points);

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
