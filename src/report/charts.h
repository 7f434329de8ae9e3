// The charts of the report: which metrics they show, and in which groups.
#pragma once

#include <string>
#include <vector>

#include "report/plot.h"
#include "report/run_record.h"

namespace halflife::report {

struct ChartGroup {
  std::string title;
  std::vector<PlotSpec> plots;
};

// Returns all charts. Curve i of every plot shows runs[i] with style i. x counts tokens if the
// runs' steps differ in size; two loss charts show the time of training instead. Charts of metrics
// that no run has are omitted, except for the loss. `runs` must not be empty.
std::vector<ChartGroup> Charts(const std::vector<RunRecord>& runs);

// Returns only the groups of the loss and of the accuracy.
std::vector<ChartGroup> LearningCharts(const std::vector<RunRecord>& runs);

}  // namespace halflife::report
