// How many needles a model finds, by the length of the haystack and the depth at which they are
// hidden. Samples are distributed over ranks and summed in their order, so that results do not
// depend on the world size, except for the model's own rounding.
//
//   const RetrievalTable table = {.num_samples = 20};
//   const RetrievalScore score = ScoreRetrieval(table, prompts, ScorerOf(model), control);
#pragma once

#include <cstdint>
#include <functional>

#include "dist/communicator.h"
#include "eval/retrieval.h"
#include "model/language_model.h"

namespace halflife::eval {

struct RetrievalTable {
  int64_t num_samples = 20;
  int64_t batch = 8;  // Prompts per forward pass.
  // True: all targets of a prompt form one answer, like the digits of a passkey. False: each target
  // is an answer.
  bool one_answer = true;
};
// Means over all samples.
struct RetrievalScore {
  double accuracy = 0;        // Share of answers whose tokens are all the most likely ones.
  double token_accuracy = 0;  // Share of answer tokens that are the most likely ones.
  double loss = 0;            // Mean -ln p of an answer token.
  int64_t num_answers = 0, num_tokens = 0;
};

// Scores the targets of prompts: inputs and targets [B, T] int64, where each row is one document.
using AnswerScorer =
    std::function<model::TokenScores(const at::Tensor& inputs, const at::Tensor& targets)>;
// Throws kUsage if the model's objective does not fit. A passkey needs next-token prediction. For
// pairs of keys and values (`labels_will_do`), a model that predicts labels of the dataset also
// works.
void RequireAnswers(const model::LanguageModel& model, bool labels_will_do);
// Returns a scorer that borrows `model`. Targets are used only in the loss, so next-token models
// and models of labelled rows can be scored in the same way.
AnswerScorer ScorerOf(const model::LanguageModel& model);

// `prompt` makes the prompt of a sample; all prompts must have the same length. Collective over
// `control`.
RetrievalScore ScoreRetrieval(const RetrievalTable& table,
                              const std::function<Prompt(uint64_t sample)>& prompt,
                              const AnswerScorer& scorer, dist::Communicator& control);

}  // namespace halflife::eval
