// The metrics that measure how well a run did, and the best value that a run reached.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace halflife::sweep {

std::vector<std::string> KnownMetrics();
bool IsKnownMetric(const std::string& name);
bool HigherIsBetter(const std::string& name);

// Returns the best value of the run and the first step that reached it, or nullopt if there is no
// finite value. For speeds, returns the median and the last step.
std::optional<report::Point> BestOf(const report::RunRecord& run, const std::string& metric);

}  // namespace halflife::sweep
