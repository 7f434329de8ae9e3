#include "cli/eval_modes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/eval_file.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "eval/length_table.h"
#include "eval/validation.h"

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

// Returns the key of a row. Files from versions without protocols contain segments, and their rows
// do not name them.
ordered_json KeyOf(const std::string& method, const std::string& protocol, int64_t length) {
  ordered_json key = {{"method", method}};
  if (protocol != "segments") key["protocol"] = protocol;
  key["length"] = length;
  return key;
}

ordered_json RowJson(const eval::LengthRow& row) {
  const eval::ValidationResult& result = row.result;
  ordered_json json = KeyOf(row.method, row.protocol, row.length);
  json["tokens"] = result.num_targets;
  json["loss"] = result.loss;
  json["perplexity"] = result.perplexity();
  json["seconds"] = row.seconds;
  json["tokens_per_s"] = static_cast<double>(result.num_targets) / row.seconds;
  if (result.accuracy) json["accuracy"] = *result.accuracy;
  if (result.classes) json["classes"] = ClassScoresJson(*result.classes);
  if (row.attention) json["attention"] = AttentionJson(*row.attention);
  if (result.half_context)
    json["half_context"] = {{"tokens", result.half_context->num_targets},
                            {"share", static_cast<double>(result.half_context->num_targets) /
                                          static_cast<double>(result.num_targets)},
                            {"loss", result.half_context->loss}};
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

constexpr CsvColumn kLengthColumns[] = {{"model", "/model"},
                                        {"train_len", "/train_len"},
                                        {"method", "/method"},
                                        {"length", "/length"},
                                        {"tokens", "/tokens"},
                                        {"loss", "/loss"},
                                        {"perplexity", "/perplexity"},
                                        {"accuracy", "/accuracy"},
                                        {"mcc", "/classes/mcc"},
                                        {"f1_macro", "/classes/f1_macro"},
                                        {"auroc", "/classes/auroc"},
                                        {"tokens_per_s", "/tokens_per_s"},
                                        {"protocol", "/protocol", "segments"},
                                        {"token_seen_tokens", "/recall/token_seen/tokens"},
                                        {"token_seen_loss", "/recall/token_seen/loss"},
                                        {"token_new_tokens", "/recall/token_new/tokens"},
                                        {"token_new_loss", "/recall/token_new/loss"},
                                        {"bigram_seen_tokens", "/recall/bigram_seen/tokens"},
                                        {"bigram_seen_loss", "/recall/bigram_seen/loss"},
                                        {"bigram_new_tokens", "/recall/bigram_new/tokens"},
                                        {"bigram_new_loss", "/recall/bigram_new/loss"},
                                        {"windows_scored", "/windows_scored"},
                                        {"windows_available", "/windows_available"},
                                        {"half_context_share", "/half_context/share"},
                                        {"half_context_loss", "/half_context/loss"}};

// Rows of the methods, protocols and lengths that the options select, in that order. The file may
// hold others.
class AskedRows {
 public:
  AskedRows(const EvalFile& file, const EvalOptions& options)
      : file_(file), lengths_(options.lengths) {
    for (const std::string& method : options.methods)
      for (const std::string& protocol : options.protocols) lines_.push_back({method, protocol});
  }
  struct Line {
    std::string method, protocol;
    std::string name() const { return protocol == "segments" ? method : method + ", " + protocol; }
  };
  const std::vector<Line>& lines() const { return lines_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  ordered_json Row(const Line& line, int64_t length) const {
    return file_.RowOf(KeyOf(line.method, line.protocol, length));
  }
  ordered_json json() const {
    ordered_json json = file_.json();
    json["rows"] = ordered_json::array();
    for (const Line& line : lines_)
      for (const int64_t length : lengths_) json["rows"].push_back(Row(line, length));
    return json;
  }

 private:
  const EvalFile& file_;
  std::vector<Line> lines_;
  std::vector<int64_t> lengths_;
};

// Returns a table with one line per method and protocol, and one cell `value(row)` per length.
// Returns "" if `value` has no result for one of the rows.
std::string Section(const AskedRows& rows, const std::string& title,
                    const std::function<std::optional<std::string>(const ordered_json&)>& value) {
  size_t width = 12;
  for (const AskedRows::Line& line : rows.lines()) width = std::max(width, line.name().size() + 2);
  std::string text;
  for (const AskedRows::Line& line : rows.lines()) {
    text += Padded(line.name(), width);
    for (const int64_t length : rows.lengths()) {
      const std::optional<std::string> cell = value(rows.Row(line, length));
      if (!cell) return "";
      text += Padded(*cell, 10);
    }
    text += "\n";
  }
  std::string head = Concat(title, "\n", Padded("", width));
  for (const int64_t length : rows.lengths()) head += Padded(Concat(length), 10);
  return head + "\n" + text;
}
// Formats a measure. A value that is not finite (null in a file) is shown as "-".
std::string Number(const ordered_json& value, int digits) {
  return value.is_number() && std::isfinite(value.get<double>())
             ? Fixed(value.get<double>(), digits)
             : "-";
}
// "scored 16 of 64 windows, 25.0 % of the split, each of 2048 tokens"
std::string ChoiceText(const ordered_json& facts) {
  return Concat(eval::DescribeChoice(facts.at("windows_scored"), facts.at("windows_available")),
                ", each of ", facts.at("longest").dump(), " tokens\n");
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
  return ChoiceText(rows.json()) +
         Section(rows, Concat("perplexity by tokens of a row; trained on ", train_len),
                 [](const ordered_json& row) -> Cell { return Number(row["perplexity"], 3); }) +
         Section(rows,
                 "context >= half: share of targets with at least half of the length before "
                 "them in their document",
                 [](const ordered_json& row) -> Cell {
                   if (!row.contains("half_context")) return std::nullopt;
                   return Number(row["half_context"]["share"], 3);
                 }) +
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

ordered_json FactsOf(const eval::LengthTable& table, const infer::LoadedModel& loaded,
                     const data::TokenView& tokens, const SharedFact& tokens_fact) {
  const int64_t longest = std::ranges::max(table.lengths);
  const int64_t available = data::NumWindows(tokens, longest);
  ordered_json facts = {
      {"model", loaded.path.string()},
      {"weights", WeightsFact(loaded).value},
      {"text", tokens_fact.value},
      {"train_len", table.train_len},
      {"longest", longest},
      {"windows_scored", eval::ChooseWindows(table.num_windows, available).size()},
      {"windows_available", available},
      {"bin", table.bin}};
  if (table.attention) facts["attention"] = true;  // no keys of files from before
  if (table.recall) facts["recall"] = true;
  return facts;
}

// Warns if the mean document length is below half of the longest length. The state resets at each
// document, so longer rows then give most tokens no more context.
void WarnOfShortDocuments(const data::TokenView& tokens, int64_t longest) {
  // A labelled row is whole at its only length.
  if (tokens.row_len > 0 || !tokens.reset_at_documents) return;
  const double mean = data::MeanDocumentTokens(tokens.info);
  if (mean >= static_cast<double>(longest) / 2) return;
  HL_WARN("eval", "the documents of ", tokens.name, " have ", Fixed(mean, 0),
          " tokens on average, less than half of the longest length, ", longest,
          ". The model's state resets at each document, so longer rows give most tokens no more "
          "context (see \"context >= half\"). Use longer documents, such as those of `halflife "
          "prepare --documents file`, or a model trained with data.reset_at_documents=false.");
}

}  // namespace

ExitCode EvaluateLengths(const EvalOptions& options, const infer::LoadedModel& loaded,
                         const data::TokenView& tokens, const SharedFact& tokens_fact,
                         dist::RankContext& context) {
  const eval::LengthTable table = {.train_len = loaded.state.data.seq_len,
                                   .lengths = options.lengths,
                                   .num_windows = options.windows,
                                   .batch_tokens = BatchTokens(options, loaded),
                                   .bin = options.bin,
                                   .recall = options.recall,
                                   .attention = options.attention};
  eval::RequireLengths(*loaded.model, table);
  const std::vector<eval::LengthMethod> methods =
      eval::LengthMethod::ParseAll(options.methods, *loaded.model,
                                   {.train_len = table.train_len, .length = table.lengths.front()});
  std::vector<eval::Protocol> protocols;
  for (const std::string& text : options.protocols) {
    protocols.push_back(eval::Protocol::Parse(text));
    for (const int64_t length : table.lengths) protocols.back().RequireFits(*loaded.model, length);
  }

  const bool writes = context.rank() == 0;
  if (writes) WarnOfShortDocuments(tokens, std::ranges::max(table.lengths));
  EvalFile file({.json = writes ? options.out : "", .csv = writes ? options.csv : ""},
                FactsOf(table, loaded, tokens, tokens_fact), kLengthColumns);
  std::vector<ordered_json> keys;
  for (const std::string& method : options.methods)
    for (const std::string& protocol : options.protocols)
      for (const int64_t length : table.lengths) keys.push_back(KeyOf(method, protocol, length));
  const std::vector<bool> there = RowsThere(file, keys, context);
  size_t number = 0;
  for (const eval::LengthMethod& method : methods)
    for (const eval::Protocol& protocol : protocols)
      for (const int64_t length : table.lengths)
        if (!there[number++])
          file.Add(RowJson(eval::ScoreLength(*loaded.model, tokens, table, method, protocol, length,
                                             context.control())));
  if (!writes) return ExitCode::kFinished;
  const AskedRows asked(file, options);
  PrintEvaluation(file, options, asked.json(), TableText(asked, table.train_len));
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
