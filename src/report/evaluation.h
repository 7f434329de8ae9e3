// Reads the evaluations by length that `halflife eval --lengths ... --out FILE` wrote, complete or
// not, and draws them as curves of several models in one picture.
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
  std::string method;                    // And the protocol, unless it is segments.
  int64_t length = 0;                    // Tokens of a row.
  std::map<std::string, double> values;  // By JSON pointer: "/perplexity".
};

struct Evaluation {
  std::string name;   // Name of the file.
  std::string model;  // Name of the model's run.
  int64_t train_len = 0;
  std::vector<EvaluationRow> rows;
};

// Throws kUsage if the text is not such an evaluation; the message contains `name`.
Evaluation ParseEvaluation(const std::string& text, const std::string& name);
Evaluation ReadEvaluation(const std::filesystem::path& path);

// Returns one plot per measure that any row has (perplexity, accuracy, ...), with one curve per
// model and method. All plots have the same curves; some may be empty. Empty if there are no rows.
std::vector<PlotSpec> ChartsByLength(const std::vector<Evaluation>& evaluations);
// Returns the numbers of these plots, one table per plot.
std::vector<Table> TablesByLength(const std::vector<Evaluation>& evaluations);

}  // namespace halflife::report
