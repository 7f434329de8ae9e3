#include "report/evaluation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "report/axis.h"

namespace halflife::report {
namespace {

namespace fs = std::filesystem;

struct Measure {
  const char* path;  // JSON pointer in a row of the file.
  const char* title;
  Scale scale;
};
constexpr Measure kMeasures[] = {
    {"/perplexity", "Perplexity by tokens of a row", Scale::kLog},
    {"/accuracy", "Accuracy by tokens of a row", Scale::kLinear},
    {"/retrieval_accuracy", "Answers found in a text, share, mean over depths", Scale::kLinear},
    {"/recall/token_seen/perplexity", "Perplexity of tokens seen before", Scale::kLog},
    {"/recall/token_new/perplexity", "Perplexity of tokens not seen before", Scale::kLog},
    {"/recall/bigram_seen/perplexity", "Perplexity of pairs of tokens seen before", Scale::kLog},
    {"/recall/bigram_new/perplexity", "Perplexity of pairs not seen before", Scale::kLog},
};

// Returns "first" for "runs/first/ckpt/step_000000000020".
std::string NameOfModel(const fs::path& given) {
  // A path such as "exports/llama/".
  const fs::path path = given.has_filename() ? given : given.parent_path();
  const fs::path folder = path.parent_path();
  return folder.filename() == "ckpt" ? folder.parent_path().filename().string()
                                     : path.filename().string();
}

EvaluationRow ReadRow(const nlohmann::json& json) {
  EvaluationRow row = {.method = json.at("method"), .length = json.at("length"), .values = {}};
  if (json.contains("protocol")) row.method += ", " + json.at("protocol").get<std::string>();
  for (const Measure& measure : kMeasures) {
    const nlohmann::json::json_pointer path(measure.path);
    if (json.contains(path) && json.at(path).is_number()) row.values[measure.path] = json.at(path);
  }
  return row;
}

// The source of a curve's numbers.
struct CurveSource {
  std::string name;
  const Evaluation* evaluation;
  std::string method;

  // Returns the mean of all rows per length. There are several rows if needles are hidden at
  // several depths. A length that has fewer rows than another is not finished and is omitted.
  Series Points(const Measure& measure) const {
    std::map<int64_t, std::vector<double>> values;
    for (const EvaluationRow& row : evaluation->rows) {
      const auto value = row.values.find(measure.path);
      if (row.method != method || value == row.values.end()) continue;
      values[row.length].push_back(value->second);
    }
    size_t most = 0;
    for (const auto& [length, of_length] : values) most = std::max(most, of_length.size());
    std::erase_if(values, [most](const auto& entry) { return entry.second.size() < most; });
    Series points;
    for (const auto& [length, of_length] : values)
      points.push_back(
          {static_cast<double>(length), std::accumulate(of_length.begin(), of_length.end(), 0.0) /
                                            static_cast<double>(of_length.size())});
    return points;
  }
};

// Renames curves with equal names (several files of one model, or models with the same name) after
// their files.
void NameApart(std::vector<CurveSource>& curves) {
  std::map<std::string, int> count;
  for (const CurveSource& curve : curves) ++count[curve.name];
  for (CurveSource& curve : curves)
    if (count[curve.name] > 1) curve.name = Concat(curve.evaluation->name, ", ", curve.method);
}

// Returns one curve per model and method. A name omits what all curves have in common.
std::vector<CurveSource> CurvesOf(const std::vector<Evaluation>& evaluations) {
  std::vector<CurveSource> curves;
  std::set<std::string> models, methods;
  for (const Evaluation& evaluation : evaluations) {
    for (const EvaluationRow& row : evaluation.rows) {
      const auto same = [&](const CurveSource& curve) {
        return curve.evaluation == &evaluation && curve.method == row.method;
      };
      if (std::ranges::any_of(curves, same)) continue;
      curves.push_back({.name = {}, .evaluation = &evaluation, .method = row.method});
      models.insert(evaluation.model);
      methods.insert(row.method);
    }
  }
  for (CurveSource& curve : curves) {
    const std::string& model = curve.evaluation->model;
    curve.name = methods.size() == 1  ? model
                 : models.size() == 1 ? curve.method
                                      : Concat(model, ", ", curve.method);
  }
  NameApart(curves);
  return curves;
}

// Returns "trained on rows of 128", with the lengths of all models.
std::string NoteOf(const std::vector<Evaluation>& evaluations) {
  std::set<int64_t> lengths;
  for (const Evaluation& evaluation : evaluations) lengths.insert(evaluation.train_len);
  return "trained on rows of " + Join(lengths, ", ");
}

std::set<int64_t> LengthsOf(const std::vector<Evaluation>& evaluations) {
  std::set<int64_t> lengths;
  for (const Evaluation& evaluation : evaluations)
    for (const EvaluationRow& row : evaluation.rows) lengths.insert(row.length);
  return lengths;
}

}  // namespace

Evaluation ParseEvaluation(const std::string& text, const std::string& name) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    Evaluation evaluation = {.name = name,
                             .model = NameOfModel(json.at("model").get<std::string>()),
                             .train_len = json.at("train_len"),
                             .rows = {}};
    for (const nlohmann::json& row : json.at("rows")) evaluation.rows.push_back(ReadRow(row));
    return evaluation;
  } catch (const nlohmann::json::exception&) {
    HL_FAIL(ExitCode::kUsage, name,
            " is not an evaluation by length. Use a file that `halflife eval --lengths N,... --out "
            "FILE` "
            "wrote.");
  }
}

Evaluation ReadEvaluation(const fs::path& path) {
  return ParseEvaluation(ReadFile(path, ExitCode::kUsage), path.string());
}

std::vector<PlotSpec> ChartsByLength(const std::vector<Evaluation>& evaluations) {
  const std::vector<CurveSource> curves = CurvesOf(evaluations);
  std::vector<PlotSpec> plots;
  for (const Measure& measure : kMeasures) {
    PlotSpec plot = {.title = measure.title,
                     .note = NoteOf(evaluations),
                     .x_name = "tokens",
                     .x_scale = Scale::kLog,
                     .y_scale = measure.scale,
                     .y_from_zero = measure.scale == Scale::kLinear,
                     .markers = true};
    bool any = false;
    for (const CurveSource& curve : curves) {
      plot.curves.push_back({.name = curve.name,
                             .style = static_cast<int>(plot.curves.size()),
                             .points = curve.Points(measure)});
      any = any || !plot.curves.back().points.empty();
    }
    for (const int64_t length : LengthsOf(evaluations))
      plot.x_ticks.push_back(static_cast<double>(length));
    if (any) plots.push_back(std::move(plot));
  }
  return plots;
}

std::vector<Table> TablesByLength(const std::vector<Evaluation>& evaluations) {
  std::vector<Table> tables;
  for (const PlotSpec& plot : ChartsByLength(evaluations)) {
    Table table = {.title = plot.title, .header = {""}, .rows = {}};
    for (const double length : plot.x_ticks)
      table.header.push_back(Concat(static_cast<int64_t>(length)));
    for (const Curve& curve : plot.curves) {
      std::vector<std::string> row = {curve.name};
      for (const double length : plot.x_ticks) {
        const auto point = std::ranges::find(curve.points, length, &Point::x);
        row.push_back(point == curve.points.end() ? "–" : ShortNumber(point->y));
      }
      table.rows.push_back(std::move(row));
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace halflife::report
