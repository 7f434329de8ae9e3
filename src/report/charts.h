// Which charts the report draws, of which metrics.
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

// Curve i of every plot shows runs[i] and has style i. x counts tokens where the runs' steps differ
// in size, and in two charts of the loss the time that training took. Charts of metrics that no run
// has are left out, but for the loss. There is at least one run.
std::vector<ChartGroup> Charts(const std::vector<RunRecord>& runs);

// Only what was learned: the groups of the loss and of the accuracy.
std::vector<ChartGroup> LearningCharts(const std::vector<RunRecord>& runs);

}  // namespace halflife::report
