// The report: a self-contained HTML page. It fetches nothing (its Content-Security-Policy forbids
// it) and is readable without scripts.
//
//   const std::string page =
//       RenderPage({.runs = {ReadRun("runs/a"), ReadRun("runs/b")},
//                   .evaluations = {ReadEvaluation("runs/a/lengths.json")}},
//                  "2026-01-31 17:05 UTC");
#pragma once

#include <string>
#include <vector>

#include "report/evaluation.h"
#include "report/plot.h"
#include "report/run_record.h"
#include "report/table.h"

namespace halflife::report {

// A group of the report's charts.
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

// The contents of a page about a sweep, which may have more runs than a chart can show.
struct SweepRecord {
  std::string name;
  std::string metric;                 // The metric in the plots by axis.
  std::vector<PlotSpec> figure = {};  // Plots with one legend: the curves of the first plot.
  std::vector<PlotSpec> by_axis = {};
  std::vector<Table> tables = {};
  std::vector<RunRecord> runs = {};  // Runs whose curves are drawn.
  std::string runs_note = {};        // Names the selected runs of the sweep. Empty: all.
};

struct PageContent {
  std::vector<SweepRecord> sweeps = {};
  std::vector<RunRecord> runs = {};  // Runs with equal names are identified by their paths.
  std::vector<Evaluation> evaluations = {};
};

// `content` must have at least one sweep, run or evaluation. `made` is the page's footer, which
// says when and by what the page was made.
std::string RenderPage(PageContent content, const std::string& made);

}  // namespace halflife::report
