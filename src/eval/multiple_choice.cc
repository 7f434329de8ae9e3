#include "eval/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "eval/scorer.h"

namespace halflife::eval {
namespace {

ChoiceQuestion ReadQuestion(const std::string& line, const std::string& where) {
  nlohmann::json json;
  if (JsonNesting(line) <= kMaxJsonNesting)
    json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto require = [&](bool ok, const char* what) {
    HL_CHECK_AS(ExitCode::kData, ok, where, ": ", what,
                ". Write for example {\"context\": \"The sky is\", \"choices\": [\"blue\", "
                "\"green\"], \"answer\": 0}");
  };
  const auto text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  require(json.is_object(), "not a JSON object");
  require(text("context"), "no text \"context\"");
  require(json.contains("choices") && json["choices"].is_array() && json["choices"].size() >= 2 &&
              std::ranges::all_of(json["choices"],
                                  [](const auto& choice) {
                                    return choice.is_string() &&
                                           !choice.template get<std::string>().empty();
                                  }),
          "no list \"choices\" of two or more texts");
  require(json.contains("answer") && json["answer"].is_number_integer() && json["answer"] >= 0 &&
              json["answer"] < json["choices"].size(),
          "no \"answer\", the number of a choice from 0");
  require(!json.contains("delimiter") || text("delimiter"), "\"delimiter\" is not a text");
  return {.context = json["context"],
          .choices = json["choices"],
          .answer = json["answer"],
          .delimiter = json.value("delimiter", " ")};
}

// Returns the number of characters, like Python's len().
double NumCharacters(const std::string& utf8) {
  return static_cast<double>(
      std::ranges::count_if(utf8, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// Returns the standard error of the mean of `count` values of 0 and 1, from the sample's deviation.
double StandardError(double mean, int64_t count) {
  return count < 2 ? 0 : std::sqrt(mean * (1 - mean) / static_cast<double>(count - 1));
}

}  // namespace

std::vector<ChoiceQuestion> ReadQuestions(const std::string& file) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  std::istringstream lines(ReadFile(file, ExitCode::kData, kMaxBytes));
  std::vector<ChoiceQuestion> questions;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    questions.push_back(ReadQuestion(line, Concat(file, ":", number)));
  }
  HL_CHECK_AS(ExitCode::kData, !questions.empty(), file,
              " has no questions. Write one JSON object per line.");
  return questions;
}

EncodedPair EncodePair(const data::Tokenizer& tokenizer, std::string context,
                       std::string continuation) {
  const size_t end = context.find_last_not_of(" \t\n\r\f\v") + 1;
  continuation = context.substr(end) + continuation;
  context.resize(end);
  constexpr auto kParse = data::SpecialTokens::kParse;
  EncodedPair pair = {.ids = tokenizer.EncodeText(context + continuation, kParse),
                      .num_context = tokenizer.EncodeText(context, kParse).size()};
  if (pair.num_context == 0) {
    const data::SpecialIds special = tokenizer.special_ids();
    pair.ids.insert(pair.ids.begin(), special.bos >= 0 ? special.bos : special.eos);
    pair.num_context = 1;
  }
  HL_CHECK_AS(ExitCode::kData, pair.num_context < pair.ids.size(), "the choice '", continuation,
              "' after the context '", context,
              "' has no tokens of its own. Use choices that the tokenizer does not drop.");
  return pair;
}

void EncodedPair::KeepLast(size_t count) {
  if (ids.size() <= count) return;
  const size_t dropped = ids.size() - count;
  HL_CHECK_AS(ExitCode::kData, dropped < num_context, "a choice has ", ids.size() - num_context,
              " tokens, more than the model's ", count - 1,
              " positions. Use shorter choices or a model with more positions.");
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(dropped));
  num_context -= dropped;
}

ChoiceScores JudgeChoices(std::span<const ChoiceQuestion> questions,
                          std::span<const std::vector<double>> log_probs) {
  int64_t num_right = 0, num_right_norm = 0;
  for (size_t q = 0; q < questions.size(); ++q) {
    std::vector<double> per_character = log_probs[q];
    for (size_t c = 0; c < per_character.size(); ++c)
      per_character[c] /= NumCharacters(questions[q].choices[c]);
    const auto best = [](const std::vector<double>& values) {
      return std::ranges::max_element(values) - values.begin();
    };
    num_right += best(log_probs[q]) == questions[q].answer;
    num_right_norm += best(per_character) == questions[q].answer;
  }
  const auto count = std::ssize(questions);
  const double acc = static_cast<double>(num_right) / static_cast<double>(count);
  const double norm = static_cast<double>(num_right_norm) / static_cast<double>(count);
  return {.num_questions = count,
          .acc = acc,
          .acc_norm = norm,
          .acc_stderr = StandardError(acc, count),
          .acc_norm_stderr = StandardError(norm, count)};
}

ChoiceScores ScoreChoices(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
                          std::span<const ChoiceQuestion> questions, const ScoreConfig& config) {
  std::vector<EncodedPair> pairs;
  std::vector<size_t> lengths;
  std::vector<std::vector<double>> log_probs;
  std::vector<double*> targets;  // The log-probability to set, for each pair.
  for (const ChoiceQuestion& question : questions) {
    log_probs.emplace_back(question.choices.size(), 0);
    for (size_t c = 0; c < question.choices.size(); ++c) {
      pairs.push_back(
          EncodePair(tokenizer, question.context, question.delimiter + question.choices[c]));
      // The last token is scored, but not read.
      if (model.max_positions() > 0)
        pairs.back().KeepLast(static_cast<size_t>(model.max_positions()) + 1);
      lengths.push_back(pairs.back().ids.size());
    }
  }
  for (std::vector<double>& of_question : log_probs)
    for (double& value : of_question) targets.push_back(&value);
  for (const std::vector<size_t>& batch : ScoreBatches(lengths, config)) {
    std::vector<std::span<const int32_t>> rows;
    for (const size_t i : batch) rows.emplace_back(pairs[i].ids);
    const std::vector<std::vector<float>> scores = ScoreBatch(model, rows, config);
    for (size_t row = 0; row < batch.size(); ++row) {
      const EncodedPair& pair = pairs[batch[row]];
      // scores[t] is of ids[t + 1].
      for (size_t t = pair.num_context; t < pair.ids.size(); ++t)
        *targets[batch[row]] += scores[row][t - 1];
    }
  }
  return JudgeChoices(questions, log_probs);
}

}  // namespace halflife::eval
