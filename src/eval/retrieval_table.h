// How many needles a model finds, by the length of the haystack and the depth they are hidden at.
// Samples are dealt over ranks and summed in their order, so that the world size changes nothing
// beyond the model's own rounding.
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
  int64_t batch = 8;  // prompts of one forward
  // An answer is all targets of a prompt, as a passkey's digits are; else each target is one.
  bool one_answer = true;
};
// Means over all samples.
struct RetrievalScore {
  double accuracy = 0;        // the share of answers of which every token is the likeliest
  double token_accuracy = 0;  // of their tokens
  double loss = 0;            // -ln p of such a token
  int64_t num_answers = 0, num_tokens = 0;
};

// Who answers: inputs and targets [B, T] int64, each row one document, -> what each target is
// worth.
using AnswerScorer =
    std::function<model::TokenScores(const at::Tensor& inputs, const at::Tensor& targets)>;
// Error kUsage where the model does not answer in order: a passkey is asked for by its next tokens,
// of pairs a model of labelled rows can tell the label, too.
void RequireAnswers(const model::LanguageModel& model, bool labels_will_do);
// `model` is borrowed. It sees targets alone in its loss, so next-token models and those of
// labelled rows answer alike.
AnswerScorer ScorerOf(const model::LanguageModel& model);

// `prompt` makes the prompt of a sample; all have one length. Collective over `control`.
RetrievalScore ScoreRetrieval(const RetrievalTable& table,
                              const std::function<Prompt(uint64_t sample)>& prompt,
                              const AnswerScorer& scorer, dist::Communicator& control);

}  // namespace halflife::eval
