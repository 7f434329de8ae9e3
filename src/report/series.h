// A curve and what a plot of a given width can honestly show of it.
//
//   const std::vector<Bucket> shown =
//       Reduce(points, /*begin=*/0, /*end=*/100000, Scale::kLinear, /*num_buckets=*/200);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace halflife::report {

struct Point {
  double x = 0, y = 0;  // y NaN or infinite: the run met a non-finite number there
};
using Series = std::vector<Point>;  // x ascends strictly

enum class Scale { kLinear, kLog };

// Neighbouring points as one: it has their mean, and the extremes, which no reduction may hide.
struct Bucket {
  double x = 0;                        // mean of the points'
  double mean = 0, low = 0, high = 0;  // of the finite values; NaN where there is none
  int64_t num_points = 0;
  int64_t num_nonfinite = 0;
};

// Returns every point as it is where there are at most 2 x num_buckets of them, else equal
// intervals of [begin, end] on the given scale, without the empty ones.
std::vector<Bucket> Reduce(const Series& points, double begin, double end, Scale scale,
                           int num_buckets);

// These look at the finite values; nullopt where there is none.
std::optional<Point> Lowest(const Series& points);
std::optional<double> Median(const Series& points);
std::optional<double> Sum(const Series& points);
std::optional<double> MeanOfLast(const Series& points, size_t count);
std::optional<double> Highest(const Series& points);

}  // namespace halflife::report
