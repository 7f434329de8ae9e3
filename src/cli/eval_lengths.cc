#include "cli/eval_lengths.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/eval_file.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "eval/length_table.h"
#include "report/evaluation.h"
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
  for (const eval::RecallScore& score : result.recall)  // null: there are no such tokens
    json["recall"][score.name] = {
        {"tokens", score.num_targets}, {"loss", score.loss}, {"perplexity", std::exp(score.loss)}};
  for (const eval::PositionScore& bin : result.positions)
    json["positions"].push_back({{"begin", bin.begin},
                                 {"tokens", bin.num_targets},
                                 {"loss", bin.loss},
                                 {"perplexity", std::exp(bin.loss)}});
  return json;
}

ordered_json KeyOf(const std::string& method, int64_t length) {
  return {{"method", method}, {"length", length}};
}

constexpr CsvColumn kColumns[] = {
    {"model", "/model"},           {"train_len", "/train_len"}, {"method", "/method"},
    {"length", "/length"},         {"tokens", "/tokens"},       {"loss", "/loss"},
    {"perplexity", "/perplexity"}, {"accuracy", "/accuracy"},   {"tokens_per_s", "/tokens_per_s"}};

// Rows of the methods and lengths that were asked for, in that order; the file may hold others.
class AskedRows {
 public:
  AskedRows(const EvalFile& file, const EvalOptions& options)
      : file_(file), methods_(options.methods), lengths_(options.lengths) {}
  const std::vector<std::string>& methods() const { return methods_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  ordered_json Row(const std::string& method, int64_t length) const {
    return file_.RowOf(KeyOf(method, length));
  }
  ordered_json json() const {
    ordered_json json = file_.json();
    json["rows"] = ordered_json::array();
    for (const std::string& method : methods_)
      for (const int64_t length : lengths_) json["rows"].push_back(Row(method, length));
    return json;
  }

 private:
  const EvalFile& file_;
  std::vector<std::string> methods_;
  std::vector<int64_t> lengths_;
};

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}
// A line a method of what `value` gives of each row; "" where it gives nothing.
std::string Section(const AskedRows& rows, const std::string& title,
                    const std::function<std::optional<std::string>(const ordered_json&)>& value) {
  size_t width = 12;
  for (const std::string& method : rows.methods()) width = std::max(width, method.size() + 2);
  std::string text;
  for (const std::string& method : rows.methods()) {
    text += Padded(method, width);
    for (const int64_t length : rows.lengths()) {
      const std::optional<std::string> cell = value(rows.Row(method, length));
      if (!cell) return "";
      text += Padded(*cell, 10);
    }
    text += "\n";
  }
  std::string head = Concat(title, "\n", Padded("", width));
  for (const int64_t length : rows.lengths()) head += Padded(Concat(length), 10);
  return head + "\n" + text;
}
// A measure that is not finite is "-", in a file null.
std::string Number(const ordered_json& value, int digits) {
  return value.is_number() && std::isfinite(value.get<double>())
             ? Fixed(value.get<double>(), digits)
             : "-";
}
std::string TableText(const AskedRows& rows, int64_t train_len) {
  using Cell = std::optional<std::string>;
  const auto of_attention = [](const ordered_json& row, const char* key) -> Cell {
    if (!row.contains("attention")) return std::nullopt;
    const ordered_json& attention = row["attention"];
    if (std::string(key) == "resolution") return Number(attention[key], 4);
    const ordered_json& buckets = attention["by_keys"];  // the one that most queries are in
    const auto most = std::ranges::max_element(
        buckets, {}, [](const ordered_json& bucket) { return bucket["queries"].get<int64_t>(); });
    return Number((*most)[key], 3);
  };
  const auto recall = [&](const char* title, const char* name) {
    return Section(rows, title, [name](const ordered_json& row) -> Cell {
      if (!row.contains("recall")) return std::nullopt;
      return Number(row["recall"][name]["perplexity"], 3);
    });
  };
  return Section(rows, Concat("perplexity by tokens of a row; trained on ", train_len),
                 [](const ordered_json& row) -> Cell { return Number(row["perplexity"], 3); }) +
         Section(rows, "accuracy",
                 [](const ordered_json& row) -> Cell {
                   if (!row.contains("accuracy")) return std::nullopt;
                   return Number(row["accuracy"], 4);
                 }) +
         recall("perplexity of tokens that their document has held before", "token_seen") +
         recall("perplexity of new tokens", "token_new") +
         recall("perplexity of pairs of tokens that it has held before", "bigram_seen") +
         recall("perplexity of new pairs", "bigram_new") +
         Section(rows, "attention resolution",
                 [&](const ordered_json& row) { return of_attention(row, "resolution"); }) +
         Section(rows, "entropy of attention, nats, of queries that see as many keys as most do",
                 [&](const ordered_json& row) { return of_attention(row, "entropy"); });
}

std::string FigureText(const AskedRows& rows) {
  return report::RenderFigure(
      report::ChartsByLength({report::ParseEvaluation(rows.json().dump(), "--out")}));
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
                                   .recall = options.recall,
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
  if (table.attention) facts["attention"] = true;  // no keys of files from before
  if (table.recall) facts["recall"] = true;
  const bool writes = context.rank() == 0;
  EvalFile file({.json = writes ? options.out : "", .csv = writes ? options.csv : ""},
                std::move(facts), kColumns);
  std::vector<ordered_json> keys;
  for (const std::string& method : options.methods)
    for (const int64_t length : table.lengths) keys.push_back(KeyOf(method, length));
  const std::vector<bool> there = RowsThere(file, keys, context);
  size_t number = 0;
  for (const eval::LengthMethod& method : methods) {
    for (const int64_t length : table.lengths) {
      if (there[number++]) continue;
      const eval::LengthRow row =
          eval::ScoreLength(*loaded.model, tokens, table, method, length, context.control());
      file.Add(RowJson(row));
    }
  }
  if (!writes) return ExitCode::kFinished;
  file.WriteCsv();
  const AskedRows asked(file, options);
  if (!options.figure.empty())
    WriteOutput(options.figure, FigureText(asked), ExitCode::kEnvironment);
  std::cout << (options.json ? file.json().dump(2) + "\n" : TableText(asked, table.train_len))
            << std::flush;
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
