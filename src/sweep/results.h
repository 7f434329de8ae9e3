// What the runs of a sweep came to: a row each, and summed up over repetitions.
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
  std::optional<report::Point> best;  // of the summary's metric: step and value
  int64_t steps = 0;                  // trained
  std::optional<int64_t> num_parameters;
  std::optional<double> tokens_per_s;  // median over steps
};
// `run` is null where there is none yet.
TrialResult ResultOf(const Summary& summary, const Trial& trial, const TrialStatus& status,
                     const report::RunRecord* run);

// Fills in what the run's recipe says.
using ReadRun = std::function<report::RunRecord(const std::filesystem::path&)>;
TrialResult ReadResult(const Summary& summary, const SweepFolder& folder, const Trial& trial,
                       const ReadRun& read_run);
// Of the whole grid, in its order.
std::vector<TrialResult> ReadResults(const SweepConfig& sweep, const SweepFolder& folder,
                                     const ReadRun& read_run);

// One point of the summary: the repetitions of one combination of the axes that are neither `over`
// nor `best_of`, at the label of the latter whose mean is best.
struct Group {
  std::vector<std::string> labels;  // of these axes, in order
  std::string best_label;           // empty without best_of
  int num_runs = 0;                 // with a value; failed and unfinished ones without are left out
  double mean = 0, deviation = 0;   // of the sample, n - 1; 0 for one run
  double low = 0, high = 0;
};
// Groups without a value are left out.
std::vector<Group> SumUp(const SweepConfig& sweep, const std::vector<TrialResult>& results);
std::vector<std::string> GroupAxes(const SweepConfig& sweep);  // that `labels` are of

// How measured numbers are written.
enum class Digits {
  kAll,  // as few as read back as the same number: for programs
  kFour  // at most four: for people
};

// For programs: a row for each run, with all that is known of it.
report::Table ResultsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results);
// For people: a row for each run, with its labels, state, metric, speed and time.
report::Table RunsTable(const SweepConfig& sweep, const std::vector<TrialResult>& results);
// Why runs failed: a row for each that did.
report::Table FailuresTable(const std::vector<TrialResult>& results);
// A row for each group.
report::Table SummaryTable(const SweepConfig& sweep, const std::vector<Group>& groups,
                           Digits digits);

// A plot for each label of the panels, a curve for each of the lines: means with their deviation.
// Axes without a role make curves of their own. Empty where the summary asks for no figure.
std::vector<report::PlotSpec> Figure(const SweepConfig& sweep, const std::vector<Group>& groups);

// A plot of the metric for each axis of at least two points: a cloud of all runs, and the best run
// at each point. If all labels of an axis are numbers, the plot has them to scale (logarithmic if
// the largest is at least ten times the smallest); else they are categories.
std::vector<report::PlotSpec> PlotsByAxis(const SweepConfig& sweep,
                                          const std::vector<TrialResult>& results);

// The indices of at most `most` runs that have trained, in the order of the grid: those with the
// best metric, then those without one.
std::vector<size_t> BestRuns(const SweepConfig& sweep, const std::vector<TrialResult>& results,
                             size_t most);

}  // namespace halflife::sweep
