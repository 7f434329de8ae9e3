// Needle-in-a-haystack tests: a fact is placed at some depth of a text and asked for at the end of
// the text. The result shows how far back a model can look, and how reliably. Prompts are a
// function of (seed, sample): all lengths and depths of a sample hide the same needle in the same
// text.
//
//   const Haystack haystack(tokens, /*seed=*/0);
//   const std::vector<int32_t> text = haystack.Text(sample, 1024);
//   const Needle needle = PasskeyNeedle(tokenizer, /*seed=*/0, sample);
//   const Prompt prompt = Hide(needle, text, /*length=*/1024, /*depth=*/0.5);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/token_source.h"
#include "data/tokenizer.h"
#include "dist/communicator.h"
#include "model/language_model.h"

namespace halflife::eval {

// A fact at a place of its own in the text, from 0 (beginning) to 1 (end).
struct ScatteredFact {
  std::vector<int32_t> tokens;
  double place = 0;
};
struct Needle {
  std::vector<int32_t> begin;  // Ids in front of the text: bos, if texts begin with it.
  std::vector<int32_t> fact;   // The fact, placed within the text. Empty: only `others`.
  std::vector<int32_t> asked;  // The question, at the end of the text.
  // [asked.size()]: the next token if it is part of an answer, else data::kNoTarget.
  std::vector<int32_t> targets;
  std::vector<ScatteredFact> others = {};
  // Places of `others`: 0 is the depth of the prompt instead of the beginning of the text.
  bool others_follow = false;
  int64_t size() const;
};

// Returns the needle " The pass key is 71432. Remember it." with the question " What is the pass
// key? The pass key is 7143". The targets are the five digits in turn (Mohtashami and Jaggi, 2023,
// shortened). The key has the same tokens in both places, because each piece is tokenized
// separately. Throws kUsage if the tokenizer has no token for a digit.
Needle PasskeyNeedle(const data::Tokenizer& tokenizer, uint64_t seed, uint64_t sample);

struct MqarNeedles {
  int64_t vocab_size = 0;         // V
  std::vector<int32_t> ordinary;  // Tokens that represent text, in ascending order.
  int64_t num_pairs = 4;          // K
};
// Returns the haystack form of MQAR (Arora et al., 2023): pairs k v k v ..., and at the end all
// keys again in another order, each of which asks for its value. Keys are from [0, V/2) and values
// from [V/2, V), as in the rows of `prepare --synthetic mqar`; none of them occurs in the haystack.
// Throws kUsage if too few tokens remain.
Needle MqarNeedle(const MqarNeedles& config, std::span<const int32_t> haystack, uint64_t seed,
                  uint64_t sample);

// Tasks of RULER (Hsieh et al., 2024) in shortened sentences. Numbers have five digits.
// kMultiKey hides `count` words, each with a number, and asks for the number of one. Its sentence
// is at the depth of the prompt, and the others are anywhere.
// kMultiValue hides `count` numbers of one word, and asks for all of them, in their order.
// kVariables hides two chains of `count` variables: " VAR QXA = 44310." and " VAR BCD = VAR QXA.",
// and asks for the variables that have the number of the first chain, in their order.
enum class RulerTask : uint8_t { kMultiKey, kMultiValue, kVariables };
// Makes the needle of a task. The first sentence of the answer is at the depth of the prompt, and
// later ones of kMultiValue and kVariables are between that depth and the end. Throws kUsage for
// more than 32 words or 13 variables, and if the tokenizer has no token for a character of an
// answer.
Needle RulerNeedle(RulerTask task, const data::Tokenizer& tokenizer, int64_t count, uint64_t seed,
                   uint64_t sample);

// One row for the model: a single document. Both vectors have [length] elements.
struct Prompt {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;  // data::kNoTarget for tokens that are not scored.
};
// Returns a prompt of `length` tokens: the haystack, truncated to the room that the needle leaves,
// with the needle's fact inserted after floor(depth * room) of its tokens, and each other fact at
// its place. Throws kUsage if `length` is too short for the needle.
Prompt Hide(const Needle& needle, std::span<const int32_t> haystack, int64_t length, double depth);

// An endless text: the tokens of a split without those that end or begin documents, repeated from
// the start when they end.
class Haystack {
 public:
  // `tokens` is borrowed. `bos_id`: -1 if documents do not begin with bos. Throws kUsage for
  // labelled rows, and kData if there is no text.
  Haystack(const data::TokenView& tokens, uint64_t seed, int32_t bos_id = -1);
  // Returns `count` tokens, starting at a random place that depends on the sample.
  std::vector<int32_t> Text(uint64_t sample, int64_t count) const;

 private:
  const data::TokenView& tokens_;
  uint64_t seed_;
  int32_t bos_id_;
};

// How many needles a model finds, by the length of the haystack and the depth at which they are
// hidden. Samples are distributed over ranks and summed in their order, so that results do not
// depend on the world size, except for the model's own rounding.
//
//   const RetrievalTable table = {.num_samples = 20};
//   const RetrievalScore score = ScoreRetrieval(table, prompts, ScorerOf(model), control);
struct RetrievalTable {
  int64_t num_samples = 20;
  int64_t batch = 8;  // Prompts per forward pass.
  // True: consecutive targets form one answer, like the digits of a passkey. False: each target is
  // an answer.
  bool joined_answers = true;
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
