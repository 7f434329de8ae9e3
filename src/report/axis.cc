#include "report/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/concat.h"
#include "core/human.h"
#include "core/median.h"

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
  return halflife::Median(std::move(values));
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

namespace {

struct Unit {
  double factor;
  const char* suffix;
};
// Units are used from five integer digits on: "2000" is easier to read than "2k", but "20k" is
// easier to read than "20000".
Unit UnitOf(double largest) {
  if (largest >= 1e12) return {1e12, "T"};
  if (largest >= 1e9) return {1e9, "B"};
  if (largest >= 1e6) return {1e6, "M"};
  if (largest >= 1e4) return {1e3, "k"};
  return {1, ""};
}

// Returns the smallest 1, 2 or 5 x 10^k that is at least `raw`.
double RoundStep(double raw) {
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * decade >= raw * (1 - 1e-9)) return digit * decade;
  }
  return 10 * decade;
}

std::string WithoutTrailingZeros(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

int ExponentOf(double value) {
  return static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-12));
}

// Formats a number like 2.5e-4.
std::string Scientific(double value, int decimals) {
  const int exponent = ExponentOf(value);
  const std::string digits = Fixed(value / std::pow(10, exponent), std::max(0, decimals));
  return Concat(digits, "e", exponent);
}

}  // namespace

std::string ShortNumber(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "not finite";
  if (size == 0) return "0";
  if (size < 1e-3) {
    const std::string digits = Scientific(value, 3);
    const size_t e = digits.find('e');
    return WithoutTrailingZeros(digits.substr(0, e)) + digits.substr(e);
  }
  const Unit unit = UnitOf(size);
  const double scaled = value / unit.factor;
  const int decimals = std::max(0, 3 - ExponentOf(scaled));
  return WithoutTrailingZeros(Fixed(scaled, decimals)) + unit.suffix;
}

std::vector<Tick> LinearTicks(double low, double high, int wanted) {
  const double step = RoundStep((high - low) / wanted);
  const double largest = std::max(std::abs(low), std::abs(high));
  const Unit unit = UnitOf(largest);
  const int decimals = std::max(0, -ExponentOf(step / unit.factor));
  const bool scientific = decimals > 3 && largest < 1e-2;
  std::vector<Tick> ticks;
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    std::string label = i == 0       ? "0"
                        : scientific ? Scientific(value, ExponentOf(value) - ExponentOf(step))
                                     : Fixed(value / unit.factor, decimals) + unit.suffix;
    ticks.push_back({value, std::move(label)});
  }
  return ticks;
}

std::vector<Tick> LogTicks(double low, double high, int wanted) {
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  const bool decades_only = high / low >= 100;
  const int stride = std::max(1, (last - first) / std::max(1, wanted));
  std::vector<Tick> ticks;
  for (int decade = first; decade <= last; ++decade) {
    for (int digit = 1; digit <= 9; ++digit) {
      const double value = digit * std::pow(10, decade);
      if (value < low * (1 - 1e-9) || value > high * (1 + 1e-9)) continue;
      const bool named =
          digit == 1 ? (decade - first) % stride == 0 : !decades_only && (digit == 2 || digit == 5);
      if (!named && stride > 1) continue;
      ticks.push_back({value, named ? ShortNumber(value) : ""});
    }
  }
  const auto num_named = std::count_if(ticks.begin(), ticks.end(),
                                       [](const Tick& tick) { return !tick.label.empty(); });
  return num_named >= 2 ? ticks : LinearTicks(low, high, wanted);
}

Axis::Axis(double low, double high, Scale scale, double first_pixel, double last_pixel)
    : low_(low), high_(high), scale_(scale), first_pixel_(first_pixel), last_pixel_(last_pixel) {
  if (high_ > low_) return;
  const double middle = low_;
  const double margin = middle == 0 ? 1 : std::abs(middle) / 10;
  low_ = middle - margin;
  high_ = middle + margin;
}

double Axis::Pixel(double value) const {
  const double part = scale_ == Scale::kLog ? std::log(value / low_) / std::log(high_ / low_)
                                            : (value - low_) / (high_ - low_);
  return first_pixel_ + part * (last_pixel_ - first_pixel_);
}

std::vector<Tick> Axis::Ticks(int wanted) const {
  return scale_ == Scale::kLog ? LogTicks(low_, high_, wanted) : LinearTicks(low_, high_, wanted);
}

}  // namespace halflife::report
