#include "cli/eval_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "report/evaluation.h"
#include "report/plot.h"
#include "report/table.h"

namespace halflife::cli {
namespace {

using Json = EvalFile::Json;

// The keys that identify a row.
constexpr const char* kKeys[] = {"method", "protocol", "length", "depth"};

std::string CsvText(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "";
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
}

}  // namespace

EvalFile::EvalFile(EvalPaths paths, const Json& facts, std::span<const CsvColumn> columns)
    : paths_(std::move(paths)),
      // Parsed back, so that the values equal those read from a file.
      json_(std::make_unique<Json>(Json::parse(JsonText(facts)))),
      columns_(columns) {
  const Json wanted = *json_;
  (*json_)["rows"] = Json::array();
  if (paths_.json.empty() || IsStandardOutput(paths_.json) || !std::filesystem::exists(paths_.json))
    return;
  const std::string text = ReadFile(paths_.json, ExitCode::kUsage);
  Json met;
  if (JsonNesting(text) <= kMaxJsonNesting) met = Json::parse(text, nullptr, /*exceptions=*/false);
  const bool is_table =
      met.is_object() && met.contains("rows") && met.at("rows").is_array() &&
      std::ranges::all_of(met.at("rows"), [](const Json& row) { return row.is_object(); });
  HL_CHECK_AS(ExitCode::kUsage, is_table, paths_.json.string(),
              " is not a table of lengths. Use another --out.");
  for (const auto& [key, value] : wanted.items())
    HL_CHECK_AS(ExitCode::kUsage, met.contains(key) && met.at(key) == value, paths_.json.string(),
                " holds rows of another ", key, ": ",
                met.contains(key) ? met.at(key).dump() : "none", ", here ", value.dump(),
                ". Use another --out.");
  for (const auto& [key, value] : met.items())
    HL_CHECK_AS(ExitCode::kUsage, key == "rows" || wanted.contains(key), paths_.json.string(),
                " holds rows with ", key,
                ", which this call does not write. Use the same "
                "options, or another --out.");
  *json_ = met;
}

EvalFile::~EvalFile() = default;

bool EvalFile::Has(const Json& key) const { return !RowOf(key).is_null(); }

Json EvalFile::RowOf(const Json& key) const {
  for (const Json& row : (*json_)["rows"]) {
    const auto same = [&](const char* name) {
      return row.value(name, Json()) == key.value(name, Json());
    };
    if (std::ranges::all_of(kKeys, same)) return row;
  }
  return {};
}

void EvalFile::Add(Json row) {
  (*json_)["rows"].push_back(std::move(row));
  // Standard output is only written at the end.
  if (!IsStandardOutput(paths_.json)) WriteJson();
  if (!IsStandardOutput(paths_.csv)) WriteCsv();
}

void EvalFile::Finish() const {
  if (IsStandardOutput(paths_.json)) WriteJson();
  WriteCsv();
}

void EvalFile::WriteJson() const {
  if (!paths_.json.empty())
    WriteOutput(paths_.json, JsonText(*json_, 2) + "\n", ExitCode::kEnvironment);
}

void EvalFile::WriteCsv() const {
  if (paths_.csv.empty()) return;
  report::Table table;
  for (const CsvColumn& column : columns_) table.header.emplace_back(column.name);
  for (const Json& row : (*json_)["rows"]) {
    std::vector<std::string> fields;
    for (const CsvColumn& column : columns_) {
      const Json::json_pointer path(column.path);
      fields.push_back(
          CsvText(row.contains(path) ? row.at(path) : json_->value(path, Json(column.otherwise))));
    }
    table.rows.push_back(std::move(fields));
  }
  WriteOutput(paths_.csv, report::Csv(table), ExitCode::kEnvironment);
}

std::vector<bool> RowsThere(const EvalFile& file, const std::vector<Json>& keys,
                            dist::RankContext& context) {
  std::vector<double> there;
  for (const Json& key : keys) there.push_back(context.rank() == 0 && file.Has(key) ? 1 : 0);
  context.control()
      .AllReduce(Ref(there.data(), static_cast<int64_t>(there.size())), dist::ReduceOp::kSum,
                 {"rows_there", 0}, nullptr)
      .WaitHost();
  return {there.begin(), there.end()};
}

void PrintEvaluation(const EvalFile& file, const EvalOptions& options, const Json& drawn,
                     const std::string& text) {
  file.Finish();
  if (!options.figure.empty()) {
    const auto plots = report::ChartsByLength({report::ParseEvaluation(drawn.dump(), "--out")});
    WriteOutput(options.figure, report::RenderFigure(plots), ExitCode::kEnvironment);
  }
  MessageStream({options.out, options.csv, options.figure})
      << (options.json ? file.json().dump(2) + "\n" : text) << std::flush;
}

std::ostream& MessageStream(std::initializer_list<std::filesystem::path> files) {
  return std::ranges::any_of(files, IsStandardOutput) ? std::cerr : std::cout;
}

nlohmann::ordered_json ClassScoresJson(const eval::ClassScores& scores) {
  nlohmann::ordered_json out = {
      {"documents", scores.num_documents}, {"mcc", scores.mcc}, {"f1_macro", scores.f1_macro}};
  if (scores.f1) out["f1"] = *scores.f1;
  if (scores.auroc) out["auroc"] = *scores.auroc;
  out["confusion"] = scores.confusion;
  return out;
}

}  // namespace halflife::cli
