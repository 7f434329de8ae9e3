// The report: one HTML page that fetches nothing (its Content-Security-Policy forbids it) and needs
// no script to be read.
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

// What a page shows of a sweep, which may have more runs than a chart can show.
struct SweepRecord {
  std::string name;
  std::string metric;                 // that the plots by axis show
  std::vector<PlotSpec> figure = {};  // plots with one legend: the first plot's curves
  std::vector<PlotSpec> by_axis = {};
  std::vector<Table> tables = {};
  std::vector<RunRecord> runs = {};  // whose curves are drawn
  std::string runs_note = {};        // which of the sweep's runs these are; empty: all
};

struct PageContent {
  std::vector<SweepRecord> sweeps = {};
  std::vector<RunRecord> runs = {};  // runs of one name are told apart by their paths
  std::vector<Evaluation> evaluations = {};
};

// There is at least one sweep, run or evaluation. `made`: the page's foot, which says when the page
// was made, and by what.
std::string RenderPage(PageContent content, const std::string& made);

}  // namespace halflife::report
