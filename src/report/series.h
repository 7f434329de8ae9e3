// A curve, and its reduction to what a plot of a given width can show.
//
//   const std::vector<Bucket> shown =
//       Reduce(points, /*begin=*/0, /*end=*/100000, Scale::kLinear, /*num_buckets=*/200);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace halflife::report {

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

}  // namespace halflife::report
