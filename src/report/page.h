// The report: one HTML page that fetches nothing (its Content-Security-Policy forbids it) and needs
// no script to be read.
//
//   const std::string page =
//       RenderPage({ReadRun("runs/a"), ReadRun("runs/b")}, {ReadEvaluation("runs/a/lengths.json")},
//                  "2026-01-31 17:05 UTC");
#pragma once

#include <string>
#include <vector>

#include "report/evaluation.h"
#include "report/plot.h"
#include "report/run_record.h"
#include "report/table.h"

namespace halflife::report {

// `made` tells at the foot of the page when it was made, and by what. There is at least one run or
// evaluation; runs of one name go by their paths.
std::string RenderPage(std::vector<RunRecord> runs, const std::vector<Evaluation>& evaluations,
                       const std::string& made);

// A page about many runs that no chart of curves could hold: what they came to, drawn and in
// tables.
std::string RenderOverview(const std::string& title, const std::vector<PlotSpec>& plots,
                           const std::vector<Table>& tables, const std::string& made);

}  // namespace halflife::report
