// Which metrics of a run say how well it did, and the best value that it reached.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace halflife::sweep {

std::vector<std::string> KnownMetrics();
bool IsKnownMetric(const std::string& name);
bool HigherIsBetter(const std::string& name);

// The best of all that the run has measured, and its first step; nullopt where there is no finite
// one. Speeds have their median, which is not that of a step.
std::optional<report::Point> BestOf(const report::RunRecord& run, const std::string& metric);

}  // namespace halflife::sweep
