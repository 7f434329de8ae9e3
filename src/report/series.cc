#include "report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace halflife::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Bucket Merge(const Point* begin, const Point* end) {
  Bucket bucket{.mean = 0, .low = kNaN, .high = kNaN, .num_points = end - begin};
  for (const Point* point = begin; point != end; ++point) {
    bucket.x += point->x;
    if (!std::isfinite(point->y)) {
      ++bucket.num_nonfinite;
      continue;
    }
    bucket.mean += point->y;
    bucket.low = std::fmin(bucket.low, point->y);
    bucket.high = std::fmax(bucket.high, point->y);
  }
  bucket.x /= static_cast<double>(bucket.num_points);
  const int64_t finite = bucket.num_points - bucket.num_nonfinite;
  bucket.mean = finite == 0 ? kNaN : bucket.mean / static_cast<double>(finite);
  return bucket;
}

std::vector<double> FiniteValues(const Series& points) {
  std::vector<double> values;
  for (const Point& point : points) {
    if (std::isfinite(point.y)) values.push_back(point.y);
  }
  return values;
}

}  // namespace

std::vector<Bucket> Reduce(const Series& points, double begin, double end, Scale scale,
                           int num_buckets) {
  std::vector<Bucket> buckets;
  const auto place = [scale](double x) { return scale == Scale::kLog ? std::log(x) : x; };
  const double width = (place(end) - place(begin)) / num_buckets;
  const bool each = points.size() <= 2 * static_cast<size_t>(num_buckets) || !(width > 0);
  const auto index = [&](const Point& point) {
    return static_cast<int64_t>((place(point.x) - place(begin)) / width);
  };
  for (size_t first = 0; first < points.size();) {
    size_t last = first + 1;
    while (!each && last < points.size() && index(points[last]) == index(points[first])) ++last;
    buckets.push_back(Merge(&points[first], &points[first] + (last - first)));
    first = last;
  }
  return buckets;
}

std::optional<Point> Lowest(const Series& points) {
  std::optional<Point> lowest;
  for (const Point& point : points) {
    if (std::isfinite(point.y) && (!lowest || point.y < lowest->y)) lowest = point;
  }
  return lowest;
}

std::optional<double> Highest(const Series& points) {
  const std::vector<double> values = FiniteValues(points);
  if (values.empty()) return std::nullopt;
  return *std::max_element(values.begin(), values.end());
}

std::optional<double> Median(const Series& points) {
  std::vector<double> values = FiniteValues(points);
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> Sum(const Series& points) {
  const std::vector<double> values = FiniteValues(points);
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

std::optional<double> MeanOfLast(const Series& points, size_t count) {
  const size_t skip = points.size() > count ? points.size() - count : 0;
  const Series last(points.begin() + static_cast<std::ptrdiff_t>(skip), points.end());
  const std::optional<double> sum = Sum(last);
  if (!sum) return std::nullopt;
  return *sum / static_cast<double>(FiniteValues(last).size());
}

}  // namespace halflife::report
