// What `halflife eval --lengths` wrote about models, by the length of the texts: files of `--out`,
// finished or not, as curves of several models in one picture.
//
//   const std::vector<Evaluation> evaluations = {ReadEvaluation("a.json"),
//                                                ReadEvaluation("b.json")};
//   const std::string picture = RenderFigure(ChartsByLength(evaluations));
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "report/plot.h"
#include "report/table.h"

namespace halflife::report {

struct EvaluationRow {
  std::string method;                    // and the protocol, where that is not segments
  int64_t length = 0;                    // tokens of a row
  std::map<std::string, double> values;  // by the paths of their JSON: "/perplexity"
};

struct Evaluation {
  std::string name;   // of the file
  std::string model;  // the name of its run
  int64_t train_len = 0;
  std::vector<EvaluationRow> rows;
};

// Error kUsage names what is no such file.
Evaluation ParseEvaluation(const std::string& text, const std::string& name);
Evaluation ReadEvaluation(const std::filesystem::path& path);

// A plot for each measure that any row has (perplexity, accuracy), a curve for each model and
// method: all plots have the same curves, of which some may be empty. Empty without rows.
std::vector<PlotSpec> ChartsByLength(const std::vector<Evaluation>& evaluations);
// The numbers of the plots, a table for each.
std::vector<Table> TablesByLength(const std::vector<Evaluation>& evaluations);

}  // namespace halflife::report
