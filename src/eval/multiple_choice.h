// Multiple choice: which of several continuations of a context is the most likely one. Accuracies
// as lm-evaluation-harness defines acc and acc_norm (lm_eval/api/task.py, output type
// multiple_choice). Contexts begin with bos if texts of the tokenizer do (Tokenizer::EncodeText).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/eval_options.h"
#include "model/language_model.h"

namespace halflife::eval {

struct ChoiceQuestion {
  std::string context;
  std::vector<std::string> choices;  // At least 2.
  int64_t answer = 0;                // The number of the right choice, from 0.
  std::string delimiter = " ";       // Between the context and a choice.
};

// Reads JSON lines: {"context": "...", "choices": ["...", "..."], "answer": 0}, and optionally
// "delimiter". Throws Error kData, naming the line, for anything else.
std::vector<ChoiceQuestion> ReadQuestions(const std::string& file);

// The ids of a context and its continuation. Both are encoded together, and the context alone. The
// rest of the ids is the continuation. Spaces at the end of the context belong to the continuation.
// In place of an empty context is bos, or eos if the tokenizer has no bos.
struct EncodedPair {
  std::vector<int32_t> ids;
  size_t num_context = 0;  // At least 1.

  // Removes ids of the context from the front until at most `count` are left. Throws Error kData if
  // the continuation is too long.
  void KeepLast(size_t count);
};
// Throws Error kData if the continuation has no ids.
EncodedPair EncodePair(const data::Tokenizer& tokenizer, std::string context,
                       std::string continuation);

struct ChoiceScores {
  int64_t num_questions = 0;
  // Shares of questions whose right choice has the largest log-probability, and the largest
  // log-probability per character of the choice. A tie counts for the first choice.
  double acc = 0, acc_norm = 0;
  double acc_stderr = 0, acc_norm_stderr = 0;  // Standard errors of the means over questions.
};
// `log_probs` has the log-probability of each choice of each question.
ChoiceScores JudgeChoices(std::span<const ChoiceQuestion> questions,
                          std::span<const std::vector<double>> log_probs);

// Scores all questions with the model.
ChoiceScores ScoreChoices(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
                          std::span<const ChoiceQuestion> questions, const ScoreConfig& config);

}  // namespace halflife::eval
