#include "sweep/metric.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace halflife::sweep {
namespace {

struct Metric {
  const char* name;
  bool higher_is_better;
  bool median;  // Uses the median of all steps, because single steps are noisy.
};
constexpr Metric kMetrics[] = {{"val_loss", false, false},
                               {"val_accuracy", true, false},
                               {"val_bits_per_byte", false, false},
                               {"tokens_per_s", true, true}};

const Metric* Find(const std::string& name) {
  const auto* found =
      std::ranges::find_if(kMetrics, [&](const Metric& metric) { return name == metric.name; });
  return found == std::end(kMetrics) ? nullptr : found;
}

const Metric& Known(const std::string& name) {
  const Metric* metric = Find(name);
  HL_CHECK_AS(ExitCode::kInternal, metric != nullptr, "unknown metric ", name);
  return *metric;
}

}  // namespace

std::vector<std::string> KnownMetrics() {
  std::vector<std::string> names;
  for (const Metric& metric : kMetrics) names.emplace_back(metric.name);
  return names;
}

bool IsKnownMetric(const std::string& name) { return Find(name) != nullptr; }

bool HigherIsBetter(const std::string& name) { return Known(name).higher_is_better; }

std::optional<report::Point> BestOf(const report::RunRecord& run, const std::string& name) {
  const Metric& metric = Known(name);
  const report::Series& series = run.metric(name);
  if (metric.median) {
    const auto median = report::Median(series);
    if (!median) return std::nullopt;
    return report::Point{series.back().x, *median};
  }
  std::optional<report::Point> best;
  for (const report::Point& point : series) {
    if (!std::isfinite(point.y)) continue;
    if (!best || (metric.higher_is_better ? point.y > best->y : point.y < best->y)) best = point;
  }
  return best;
}

}  // namespace halflife::sweep
