// The results of a sweep: one row per run, and summaries over repetitions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/plot.h"
#include "report/run_record.h"
#include "report/table.h"
#include "sweep/sweep_config.h"
#include "sweep/sweep_folder.h"

namespace halflife::sweep {

struct TrialResult {
  Trial trial;
  TrialStatus status;
  std::optional<report::Point> best;  // Best value of the summary's metric: step and value.
  int64_t steps = 0;                  // Trained steps.
  std::optional<int64_t> num_parameters;
  std::optional<double> tokens_per_s;  // Median over steps.
};
// `run` is null if the run does not exist yet.
TrialResult ResultOf(const Summary& summary, const Trial& trial, const TrialStatus& status,
                     const report::RunRecord* run);

// Reads a run and fills in the fields that depend on its recipe.
using ReadRun = std::function<report::RunRecord(const std::filesystem::path&)>;
TrialResult ReadResult(const Summary& summary, const SweepFolder& folder, const Trial& trial,
                       const ReadRun& read_run);
// Reads the results of all trials, in the order of the grid.
std::vector<TrialResult> ReadResults(const SweepConfig& sweep, const SweepFolder& folder,
                                     const ReadRun& read_run);

// One point of the summary: all runs with one combination of the axes other than `over` and
// `best_of`, at the label of `best_of` with the best mean.
struct Group {
  std::vector<std::string> labels;  // Labels of these axes, in order.
  std::string best_label;           // Empty without best_of.
  int num_runs = 0;  // Runs that have a value; failed and unfinished runs without one do not count.
  double mean = 0, deviation = 0;  // Sample standard deviation (n - 1). 0 for a single run.
  double low = 0, high = 0;
};
// Groups the results. Groups without a value are omitted.
std::vector<Group> SumUp(const SweepConfig& sweep, const std::vector<TrialResult>& results);
std::vector<std::string> GroupAxes(const SweepConfig& sweep);  // The axes of Group::labels.

// The precision of measured numbers in tables.
enum class Digits {
  kAll,  // As many digits as are needed to read back the same number; for programs.
  kFour  // At most four digits; for people.
};

// For programs: one row per run, with everything that is known about it.
report::Table ResultsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results);
// For people: one row per run, with its labels, state, metric, speed and time.
report::Table RunsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results);
// Returns one row per failed run, with the reason.
report::Table FailuresTable(const std::vector<TrialResult>& results);
// Returns one row per group.
report::Table SummaryTable(const SweepConfig& sweep, const std::vector<Group>& groups,
                           Digits digits);

// Returns one plot per panel label, with one curve per line label: means with their standard
// deviation. Axes without a role result in separate curves. Empty if the summary does not request a
// figure.
std::vector<report::PlotSpec> Figure(const SweepConfig& sweep, const std::vector<Group>& groups);

// Returns a plot of the metric for each axis with at least two points: a cloud of all runs, and the
// best run at each point. If all labels of an axis are numbers, x is numeric (logarithmic if the
// largest is at least ten times the smallest); otherwise the labels are categories.
std::vector<report::PlotSpec> PlotsByAxis(const SweepConfig& sweep,
                                          const std::vector<TrialResult>& results);

// Returns the indices of at most `most` runs that have trained, in the order of the grid. Runs with
// the best metric are preferred, then runs without one.
std::vector<size_t> BestRuns(const SweepConfig& sweep, const std::vector<TrialResult>& results,
                             size_t most);

}  // namespace halflife::sweep
