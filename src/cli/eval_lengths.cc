#include "cli/eval_lengths.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/model_source.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "eval/length_table.h"
#include "report/figure.h"

namespace halflife::cli {
namespace {

using nlohmann::ordered_json;

ordered_json AttentionJson(const eval::AttentionSummary& summary) {
  ordered_json json = {{"resolution", summary.resolution},
                       {"resolution_of_means", summary.resolution_of_means}};
  for (const double resolution : summary.resolution_by_layer)  // null: a layer without attention
    json["resolution_by_layer"].push_back(std::isnan(resolution) ? ordered_json()
                                                                 : ordered_json(resolution));
  for (const eval::AttentionBucket& bucket : summary.buckets)
    json["by_keys"].push_back({{"keys", bucket.first_keys},
                               {"queries", bucket.num_queries},
                               {"entropy", bucket.entropy},
                               {"relative_entropy", bucket.relative_entropy},
                               {"largest", bucket.largest}});
  return json;
}

ordered_json RowJson(const eval::LengthRow& row) {
  const eval::ValidationResult& result = row.result;
  ordered_json json = {{"method", row.method},
                       {"length", row.length},
                       {"tokens", result.num_targets},
                       {"loss", result.loss},
                       {"perplexity", result.perplexity()},
                       {"seconds", row.seconds},
                       {"tokens_per_s", static_cast<double>(result.num_targets) / row.seconds}};
  if (result.accuracy) json["accuracy"] = *result.accuracy;
  if (row.attention) json["attention"] = AttentionJson(*row.attention);
  for (const eval::PositionScore& bin : result.positions)
    json["positions"].push_back({{"begin", bin.begin},
                                 {"tokens", bin.num_targets},
                                 {"loss", bin.loss},
                                 {"perplexity", std::exp(bin.loss)}});
  return json;
}

// What --out holds: the facts that its rows belong to, and the rows.
class LengthFile {
 public:
  // `path` may be empty: nothing is read or written.
  LengthFile(std::filesystem::path path, ordered_json facts)
      : path_(std::move(path)), json_(std::move(facts)) {
    const ordered_json wanted = json_;
    json_["rows"] = ordered_json::array();
    if (path_.empty() || !std::filesystem::exists(path_)) return;
    const ordered_json met =
        ordered_json::parse(ReadFile(path_, ExitCode::kUsage), nullptr, /*exceptions=*/false);
    HL_CHECK_AS(ExitCode::kUsage, met.is_object() && met.contains("rows"), path_.string(),
                " is no table of lengths; another --out would work");
    for (const auto& [key, value] : wanted.items())
      HL_CHECK_AS(ExitCode::kUsage, met.contains(key) && met.at(key) == value, path_.string(),
                  " holds rows of another ", key, ": ",
                  met.contains(key) ? met.at(key).dump() : "none", ", here ", value.dump(),
                  "; another --out would work");
    json_ = met;
  }
  const ordered_json& json() const { return json_; }
  bool Has(const std::string& method, int64_t length) const {
    return std::ranges::any_of(json_["rows"], [&](const ordered_json& row) {
      return row["method"] == method && row["length"] == length;
    });
  }
  void Add(const eval::LengthRow& row) {
    json_["rows"].push_back(RowJson(row));
    if (!path_.empty()) WriteOutput(path_, json_.dump(2) + "\n", ExitCode::kEnvironment);
  }

 private:
  std::filesystem::path path_;
  ordered_json json_;
};

// Rank 0 knows which rows are there; all must skip the same.
std::vector<double> RowsToSkip(const LengthFile& file,
                               const std::vector<eval::LengthMethod>& methods,
                               const std::vector<int64_t>& lengths, dist::RankContext& context) {
  std::vector<double> skips;
  for (const eval::LengthMethod& method : methods)
    for (const int64_t length : lengths)
      skips.push_back(context.rank() == 0 && file.Has(method.text(), length) ? 1 : 0);
  context.control()
      .AllReduce(Ref(skips.data(), static_cast<int64_t>(skips.size())), dist::ReduceOp::kSum,
                 {"rows_to_skip", 0}, nullptr)
      .WaitHost();
  return skips;
}

// Rows of the methods and lengths that were asked for, in that order; the file may hold others.
std::vector<ordered_json> RowsAsked(const ordered_json& json,
                                    const std::vector<std::string>& methods,
                                    const std::vector<int64_t>& lengths) {
  std::vector<ordered_json> rows;
  for (const std::string& method : methods)
    for (const int64_t length : lengths)
      for (const ordered_json& row : json["rows"])
        if (row["method"] == method && row["length"] == length) rows.push_back(row);
  return rows;
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}
// A line a method of what `value` gives of each row; "" where it gives nothing.
std::string Section(const ordered_json& json, const std::vector<std::string>& methods,
                    const std::vector<int64_t>& lengths, const std::string& title,
                    const std::function<std::optional<std::string>(const ordered_json&)>& value) {
  size_t width = 12;
  for (const std::string& method : methods) width = std::max(width, method.size() + 2);
  std::string text;
  for (const std::string& method : methods) {
    text += Padded(method, width);
    for (const ordered_json& row : RowsAsked(json, {method}, lengths)) {
      const std::optional<std::string> cell = value(row);
      if (!cell) return "";
      text += Padded(*cell, 10);
    }
    text += "\n";
  }
  std::string head = Concat(title, "\n", Padded("", width));
  for (const int64_t length : lengths) head += Padded(Concat(length), 10);
  return head + "\n" + text;
}
std::string TableText(const ordered_json& json, const std::vector<std::string>& methods,
                      const std::vector<int64_t>& lengths) {
  using Cell = std::optional<std::string>;
  const auto of_attention = [](const ordered_json& row, const char* key) -> Cell {
    if (!row.contains("attention")) return std::nullopt;
    const ordered_json& attention = row["attention"];
    if (std::string(key) == "resolution") return Fixed(attention[key].get<double>(), 4);
    const ordered_json& buckets = attention["by_keys"];  // the one that most queries are in
    const auto most = std::ranges::max_element(
        buckets, {}, [](const ordered_json& bucket) { return bucket["queries"].get<int64_t>(); });
    return Fixed((*most)[key].get<double>(), 3);
  };
  return Section(
             json, methods, lengths,
             Concat("perplexity by tokens of a row; trained on ", json["train_len"].get<int64_t>()),
             [](const ordered_json& row) -> Cell {
               return Fixed(row["perplexity"].get<double>(), 3);
             }) +
         Section(json, methods, lengths, "accuracy",
                 [](const ordered_json& row) -> Cell {
                   if (!row.contains("accuracy")) return std::nullopt;
                   return Fixed(row["accuracy"].get<double>(), 4);
                 }) +
         Section(json, methods, lengths, "attention resolution",
                 [&](const ordered_json& row) { return of_attention(row, "resolution"); }) +
         Section(json, methods, lengths,
                 "entropy of attention, nats, of queries that see as many keys as most do",
                 [&](const ordered_json& row) { return of_attention(row, "entropy"); });
}

std::string CsvText(const ordered_json& json, const std::vector<ordered_json>& rows) {
  std::string text = "model,train_len,method,length,tokens,loss,perplexity,accuracy,tokens_per_s\n";
  for (const ordered_json& row : rows)
    text += Concat(json["model"].dump(), ",", json["train_len"].dump(), ",", row["method"].dump(),
                   ",", row["length"].dump(), ",", row["tokens"].dump(), ",", row["loss"].dump(),
                   ",", row["perplexity"].dump(), ",",
                   row.contains("accuracy") ? row["accuracy"].dump() : "", ",",
                   row["tokens_per_s"].dump(), "\n");
  return text;
}

std::string FigureText(const ordered_json& json, const std::vector<std::string>& methods,
                       const std::vector<int64_t>& lengths) {
  report::PlotSpec plot = {.title = "perplexity by tokens of a row",
                           .note = Concat("trained on rows of ", json["train_len"].dump()),
                           .x_name = "tokens",
                           .x_scale = report::Scale::kLog,
                           .y_scale = report::Scale::kLog,
                           .markers = true};
  for (const int64_t length : lengths) plot.x_ticks.push_back(static_cast<double>(length));
  for (size_t i = 0; i < methods.size(); ++i) {
    report::Curve curve = {.name = methods[i], .style = static_cast<int>(i) % report::kNumStyles};
    for (const ordered_json& row : RowsAsked(json, {methods[i]}, lengths))
      curve.points.push_back({row["length"].get<double>(), row["perplexity"].get<double>()});
    plot.curves.push_back(std::move(curve));
  }
  return report::RenderFigure({plot});
}

}  // namespace

ExitCode EvaluateLengths(const EvalOptions& options, const infer::LoadedModel& loaded,
                         const data::TokenView& tokens, const SharedFact& tokens_fact,
                         dist::RankContext& context) {
  const eval::LengthTable table = {.train_len = loaded.state.data.seq_len,
                                   .lengths = options.lengths,
                                   .num_stretches = options.windows,
                                   .batch_tokens = options.batch * loaded.state.data.seq_len,
                                   .bin = options.bin,
                                   .attention = options.attention};
  eval::RequireLengths(*loaded.model, table);
  std::vector<eval::LengthMethod> methods;
  for (const std::string& method : options.methods)
    methods.push_back(eval::LengthMethod::Parse(method));
  for (const eval::LengthMethod& method : methods)  // before hours of others
    method.AppliedTo(*loaded.model, {.train_len = table.train_len, .length = table.lengths[0]});

  ordered_json facts = {{"model", loaded.path.string()},
                        {"weights", WeightsFact(loaded).value},
                        {"text", tokens_fact.value},
                        {"train_len", table.train_len},
                        {"longest", std::ranges::max(table.lengths)},
                        {"windows", table.num_stretches},
                        {"bin", table.bin}};
  if (table.attention) facts["attention"] = true;  // no key of files from before
  LengthFile file(context.rank() == 0 ? options.out : "", std::move(facts));
  const std::vector<double> skips = RowsToSkip(file, methods, table.lengths, context);
  size_t number = 0;
  for (const eval::LengthMethod& method : methods) {
    for (const int64_t length : table.lengths) {
      if (skips[number++] > 0) continue;
      const eval::LengthRow row =
          eval::ScoreLength(*loaded.model, tokens, table, method, length, context.control());
      if (context.rank() == 0) file.Add(row);
    }
  }
  if (context.rank() != 0) return ExitCode::kFinished;
  const std::vector<ordered_json> rows = RowsAsked(file.json(), options.methods, options.lengths);
  if (!options.csv.empty())
    WriteOutput(options.csv, CsvText(file.json(), rows), ExitCode::kEnvironment);
  if (!options.figure.empty())
    WriteOutput(options.figure, FigureText(file.json(), options.methods, options.lengths),
                ExitCode::kEnvironment);
  std::cout << (options.json ? file.json().dump(2) + "\n"
                             : TableText(file.json(), options.methods, options.lengths))
            << std::flush;
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
