#include "eval/retrieval.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/random_words.h"

namespace halflife::eval {
namespace {

using Tokens = std::vector<int32_t>;

// The purpose of a random draw, used as the `layer` of its key. The values differ from those of the
// rows of `prepare --synthetic mqar`.
enum class Stream : uint32_t {
  kPlace = 16,
  kDigits = 17,
  kKeys = 18,
  kValues = 19,
  kOrder = 20,
  kFacts = 21,
};

data::RandomWords Words(uint64_t seed, Stream stream, uint64_t sample) {
  return {MakeRandomKey(seed, RandomPurpose::kSynthetic, static_cast<uint32_t>(stream)), sample};
}

// Returns `count` of the candidates in random order: the first steps of a Fisher-Yates shuffle.
Tokens Drawn(Tokens candidates, int64_t count, data::RandomWords words) {
  const std::ptrdiff_t size = std::ssize(candidates);
  for (std::ptrdiff_t i = 0; i < count; ++i)
    std::swap(candidates[static_cast<size_t>(i)],
              candidates[static_cast<size_t>(i + words.Below(static_cast<uint32_t>(i), size - i))]);
  candidates.resize(static_cast<size_t>(count));
  return candidates;
}

void Append(const Tokens& from, Tokens& to) { to.insert(to.end(), from.begin(), from.end()); }

// Returns the five digits of number `number` of a sample.
std::string Digits(uint64_t seed, uint64_t sample, uint32_t number = 0) {
  constexpr uint32_t kDigits = 5;
  data::RandomWords words = Words(seed, Stream::kDigits, sample);
  std::string digits;
  for (uint32_t i = 0; i < kDigits; ++i)
    digits += static_cast<char>('0' + words.Below(kDigits * number + i, 10));
  return digits;
}

// Returns the tokens of an answer, which is tokenized separately in every place.
Tokens EncodeAnswer(const data::Tokenizer& tokenizer, const std::string& task,
                    const std::string& answer) {
  Tokens ids = tokenizer.Encode(answer);
  const int32_t unk = tokenizer.special_ids().unk;
  HL_CHECK_AS(ExitCode::kUsage, !ids.empty() && (unk < 0 || !std::ranges::count(ids, unk)),
              "--retrieval ", task, ": the tokenizer has no tokens for ", answer,
              ". Use --retrieval mqar, which needs no words.");
  return ids;
}

// Ends a needle with a question and its answers, whose tokens are the targets.
void Ask(const Tokens& question, const std::vector<Tokens>& answers, const Tokens& separator,
         Needle& needle) {
  const auto add = [&](const Tokens& ids, bool targets) {
    for (const int32_t id : ids) {
      if (targets) needle.targets.back() = id;
      needle.asked.push_back(id);
      needle.targets.push_back(data::kNoTarget);
    }
  };
  add(question, false);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i > 0) add(separator, false);
    add(answers[i], true);
  }
  needle.asked.pop_back();  // Nothing follows the last token.
  needle.targets.pop_back();
}

// Returns `count` places, the first of which is 0, in ascending order.
std::vector<double> AscendingPlaces(int64_t count, data::RandomWords words, uint32_t first_word) {
  std::vector<double> places(static_cast<size_t>(count), 0);
  for (int64_t i = 1; i < count; ++i)
    places[static_cast<size_t>(i)] = words(first_word + static_cast<uint32_t>(i)) * 0x1p-32;
  std::ranges::sort(places);
  return places;
}

constexpr const char* kWords[] = {
    "river",  "stone",    "cloud",  "maple",  "tiger",  "violin", "anchor", "candle",
    "desert", "eagle",    "forest", "garden", "honey",  "island", "jacket", "kettle",
    "lemon",  "mirror",   "needle", "ocean",  "pepper", "quartz", "rabbit", "saddle",
    "temple", "umbrella", "valley", "window", "yellow", "zebra",  "bridge", "copper"};

// Names of 2 count variables, with different first letters.
std::vector<std::string> VariableNames(int64_t count, uint64_t seed, uint64_t sample) {
  Tokens letters(26);
  std::iota(letters.begin(), letters.end(), 'A');
  data::RandomWords words = Words(seed, Stream::kValues, sample);
  std::vector<std::string> names;
  for (const int32_t first : Drawn(letters, 2 * count, Words(seed, Stream::kKeys, sample))) {
    const auto number = static_cast<uint32_t>(2 * names.size());
    names.push_back({static_cast<char>(first), static_cast<char>('A' + words.Below(number, 26)),
                     static_cast<char>('A' + words.Below(number + 1, 26))});
  }
  return names;
}

// Makes a needle of words with numbers, for kMultiKey or kMultiValue.
Needle NumbersNeedle(bool one_word, const data::Tokenizer& tokenizer, int64_t count, uint64_t seed,
                     uint64_t sample) {
  constexpr int64_t kNumWords = std::size(kWords);
  HL_CHECK_AS(ExitCode::kUsage, count <= kNumWords, "--pairs ", count, ": there are ", kNumWords,
              " words with numbers. Use at most ", kNumWords, ".");
  Tokens order(static_cast<size_t>(kNumWords));
  std::iota(order.begin(), order.end(), 0);
  order = Drawn(order, count, Words(seed, Stream::kKeys, sample));
  data::RandomWords anywhere = Words(seed, Stream::kFacts, sample);
  const std::vector<double> ascending = AscendingPlaces(count, anywhere, 0);
  Needle needle = {.others_follow = one_word};
  std::vector<Tokens> answers;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const Tokens number = EncodeAnswer(tokenizer, one_word ? "multi_value" : "multi_key",
                                       Digits(seed, sample, static_cast<uint32_t>(i)));
    Tokens fact =
        tokenizer.Encode(Concat(" A magic number of ", kWords[order[one_word ? 0 : at]], " is "));
    Append(number, fact);
    Append(tokenizer.Encode("."), fact);
    if (one_word || i == 0) answers.push_back(number);
    if (one_word)
      needle.others.push_back({fact, ascending[at]});
    else if (i == 0)
      needle.fact = fact;
    else
      needle.others.push_back({fact, anywhere(static_cast<uint32_t>(i)) * 0x1p-32});
  }
  const char* word = kWords[order[0]];
  Ask(tokenizer.Encode(one_word ? Concat(" Which are the magic numbers of ", word, "? They are ")
                                : Concat(" What is the magic number of ", word, "? It is ")),
      answers, tokenizer.Encode(", "), needle);
  return needle;
}

Needle VariablesNeedle(const data::Tokenizer& tokenizer, int64_t count, uint64_t seed,
                       uint64_t sample) {
  constexpr int64_t kMax = 13;
  HL_CHECK_AS(ExitCode::kUsage, count <= kMax, "--pairs ", count,
              ": two chains of variables have names with 26 first letters. Use at most ", kMax,
              ".");
  const std::vector<std::string> names = VariableNames(count, seed, sample);
  std::vector<Tokens> ids;
  for (const std::string& name : names) ids.push_back(EncodeAnswer(tokenizer, "variables", name));
  Needle needle = {.others_follow = true};
  const Tokens var = tokenizer.Encode(" VAR "), is = tokenizer.Encode(" = "),
               is_var = tokenizer.Encode(" = VAR "), end = tokenizer.Encode(".");
  for (uint32_t chain = 0; chain < 2; ++chain) {
    const auto size = static_cast<uint32_t>(count);
    const std::vector<double> places =
        AscendingPlaces(count, Words(seed, Stream::kFacts, sample), chain * size);
    for (uint32_t i = 0; i < size; ++i) {
      Tokens fact = var;
      Append(ids[chain * size + i], fact);
      Append(i > 0 ? is_var : is, fact);
      Append(i > 0 ? ids[chain * size + i - 1]
                   : EncodeAnswer(tokenizer, "variables", Digits(seed, sample, chain)),
             fact);
      Append(end, fact);
      needle.others.push_back({fact, places[i]});
    }
  }
  Tokens question = tokenizer.Encode(" Which variables have the value ");
  Append(EncodeAnswer(tokenizer, "variables", Digits(seed, sample)), question);
  Append(tokenizer.Encode("? They are "), question);
  Ask(question, {ids.begin(), ids.begin() + count}, tokenizer.Encode(", "), needle);
  return needle;
}

}  // namespace

Needle PasskeyNeedle(const data::Tokenizer& tokenizer, uint64_t seed, uint64_t sample) {
  const Tokens key = EncodeAnswer(tokenizer, "passkey", Digits(seed, sample));
  Needle needle = {.fact = tokenizer.Encode(" The pass key is ")};
  Append(key, needle.fact);
  Append(tokenizer.Encode(". Remember it."), needle.fact);
  Ask(tokenizer.Encode(" What is the pass key? The pass key is "), {key}, {}, needle);
  return needle;
}

Needle RulerNeedle(RulerTask task, const data::Tokenizer& tokenizer, int64_t count, uint64_t seed,
                   uint64_t sample) {
  if (task == RulerTask::kVariables) return VariablesNeedle(tokenizer, count, seed, sample);
  return NumbersNeedle(task == RulerTask::kMultiValue, tokenizer, count, seed, sample);
}

int64_t Needle::size() const {
  auto size = static_cast<int64_t>(begin.size() + fact.size() + asked.size());
  for (const ScatteredFact& other : others) size += std::ssize(other.tokens);
  return size;
}

Needle MqarNeedle(const MqarNeedles& config, std::span<const int32_t> haystack, uint64_t seed,
                  uint64_t sample) {
  Tokens there(haystack.begin(), haystack.end()), left;
  std::ranges::sort(there);
  std::ranges::set_difference(config.ordinary, there, std::back_inserter(left));
  const auto half = std::ranges::lower_bound(left, config.vocab_size / 2);
  const Tokens keys(left.begin(), half), values(half, left.end());
  const int64_t most = std::min(std::ssize(keys), std::ssize(values));
  HL_CHECK_AS(ExitCode::kUsage, config.num_pairs <= most, "--pairs ", config.num_pairs,
              ": a haystack of ", haystack.size(), " tokens leaves ", keys.size(),
              " unused tokens of the vocabulary's lower half for keys and ", values.size(),
              " of its upper half for values. Use ",
              most > 0 ? Concat("at most ", most) : "shorter --lengths", ".");
  const Tokens key = Drawn(keys, config.num_pairs, Words(seed, Stream::kKeys, sample)),
               value = Drawn(values, config.num_pairs, Words(seed, Stream::kValues, sample));
  Tokens pairs(key.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<int32_t>(i);
  Needle needle;
  for (size_t i = 0; i < key.size(); ++i) Append({key[i], value[i]}, needle.fact);
  for (const int32_t pair : Drawn(pairs, config.num_pairs, Words(seed, Stream::kOrder, sample))) {
    needle.asked.push_back(key[static_cast<size_t>(pair)]);
    needle.targets.push_back(value[static_cast<size_t>(pair)]);
  }
  return needle;
}

Prompt Hide(const Needle& needle, std::span<const int32_t> haystack, int64_t length, double depth) {
  const int64_t text = length - needle.size();
  HL_CHECK_AS(ExitCode::kUsage, text >= 0, "--lengths: rows of ", length,
              " tokens are too short for the needle and its question, which need ", needle.size(),
              " tokens. Use ", needle.size(), " or more.");
  HL_CHECK(depth >= 0 && depth <= 1 && std::ssize(haystack) >= text, "depth is ", depth,
           ", and the haystack has ", haystack.size(), " of the required ", text, " tokens");
  // The facts by the number of tokens before them.
  std::vector<std::pair<int64_t, const Tokens*>> facts;
  const auto add = [&](double place, const Tokens& tokens) {
    facts.emplace_back(static_cast<int64_t>(std::floor(static_cast<double>(text) * place)),
                       &tokens);
  };
  add(depth, needle.fact);
  for (const ScatteredFact& other : needle.others)
    add(needle.others_follow ? depth + (1 - depth) * other.place : other.place, other.tokens);
  std::ranges::stable_sort(facts, {}, [](const auto& fact) { return fact.first; });
  Prompt prompt = {.inputs = needle.begin,
                   .targets = Tokens(static_cast<size_t>(length), data::kNoTarget)};
  int64_t done = 0;
  for (const auto& [before, tokens] : facts) {
    prompt.inputs.insert(prompt.inputs.end(), haystack.begin() + done, haystack.begin() + before);
    Append(*tokens, prompt.inputs);
    done = before;
  }
  prompt.inputs.insert(prompt.inputs.end(), haystack.begin() + done, haystack.begin() + text);
  Append(needle.asked, prompt.inputs);
  std::ranges::copy(needle.targets, prompt.targets.end() - std::ssize(needle.targets));
  return prompt;
}

Haystack::Haystack(const data::TokenView& tokens, uint64_t seed, int32_t bos_id)
    : tokens_(tokens), seed_(seed), bos_id_(bos_id) {
  HL_CHECK_AS(ExitCode::kUsage, tokens.row_len == 0, "--retrieval hides needles in text, but ",
              tokens.name, " has labelled rows. Use a dataset of text, or --text FILE.");
  const int64_t of_each = bos_id >= 0 ? 2 : 1;
  HL_CHECK_AS(ExitCode::kData, tokens.info.num_tokens > of_each * tokens.info.num_documents,
              tokens.name, " contains no text in which a needle can be hidden");
}

Tokens Haystack::Text(uint64_t sample, int64_t count) const {
  const int64_t size = tokens_.info.num_tokens;
  data::RandomWords words = Words(seed_, Stream::kPlace, sample);
  int64_t place = words.Below(0, size);
  Tokens text;
  while (std::ssize(text) < count) {
    Tokens piece(static_cast<size_t>(std::min(size - place, count)));
    tokens_.read(place, piece);
    place = (place + std::ssize(piece)) % size;
    std::erase_if(piece, [&](int32_t id) { return id == tokens_.eos_id || id == bos_id_; });
    Append(piece, text);
  }
  text.resize(static_cast<size_t>(count));
  return text;
}

namespace {

// The sums of one sample, in fp64.
struct SampleSums {
  double loss = 0, correct = 0, tokens = 0, correct_answers = 0, answers = 0;
};
constexpr int64_t kSumsOfSample = 5;

struct Prompts {
  at::Tensor inputs, targets;  // [B, T] int64
};
Prompts Stack(const std::vector<Prompt>& rows) {
  const auto batch = std::ssize(rows), length = std::ssize(rows.front().inputs);
  Prompts stacked = {at::empty({batch, length}, at::kLong), at::empty({batch, length}, at::kLong)};
  for (int64_t row = 0; row < batch; ++row) {
    const Prompt& prompt = rows[static_cast<size_t>(row)];
    HL_CHECK(std::ssize(prompt.inputs) == length && std::ssize(prompt.targets) == length,
             "the prompts of a batch must all have the same length");
    std::ranges::copy(prompt.inputs, stacked.inputs.mutable_data_ptr<int64_t>() + row * length);
    std::ranges::copy(prompt.targets, stacked.targets.mutable_data_ptr<int64_t>() + row * length);
  }
  return stacked;
}

void Score(const Prompts& prompts, const AnswerScorer& scorer, bool joined, SampleSums* sums) {
  const model::TokenScores scores = scorer(prompts.inputs, prompts.targets);
  const at::Tensor losses = scores.losses.to(at::kCPU, at::kDouble).contiguous(),
                   correct = scores.correct.to(at::kCPU, at::kDouble).contiguous();
  const int64_t length = prompts.inputs.size(1);
  for (int64_t row = 0; row < prompts.inputs.size(0); ++row) {
    SampleSums& sum = sums[row];
    double answer_correct = 1;  // 1 if the answer is correct so far, else 0.
    for (int64_t t = row * length; t < (row + 1) * length; ++t) {
      const int64_t* target = prompts.targets.const_data_ptr<int64_t>() + t;
      if (*target < 0) continue;
      sum.tokens += 1;
      sum.loss += losses.const_data_ptr<double>()[t];
      sum.correct += correct.const_data_ptr<double>()[t];
      answer_correct = std::min(answer_correct, correct.const_data_ptr<double>()[t]);
      const bool ends = t + 1 == (row + 1) * length || target[1] < 0;
      if (joined && !ends) continue;
      sum.answers += 1;
      sum.correct_answers += answer_correct;
      answer_correct = 1;
    }
  }
}

}  // namespace

void RequireAnswers(const model::LanguageModel& model, bool labels_will_do) {
  const model::Objective& objective = model.objective();
  HL_CHECK_AS(ExitCode::kUsage,
              objective.predicts_next_token() ||
                  (labels_will_do && objective.takes_labels_of_data() && !objective.classifier()),
              "--retrieval asks for ",
              labels_will_do ? "the token that goes with a key" : "the next tokens of a key",
              ", but the model's objective is ", model.config().objective.name(),
              ". Use a model with the objective next_token", labels_will_do ? " or labelled" : "",
              ".");
}

AnswerScorer ScorerOf(const model::LanguageModel& model) {
  return [&model](const at::Tensor& inputs, const at::Tensor& targets) {
    const at::Device device = model.device();
    const auto slice = model::SequenceSlice::Contiguous(inputs.size(0), inputs.size(1), 0, device);
    return model.Scores(inputs.to(device), targets.to(device), {.slice = &slice});
  };
}

RetrievalScore ScoreRetrieval(const RetrievalTable& table,
                              const std::function<Prompt(uint64_t sample)>& prompt,
                              const AnswerScorer& scorer, dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  HL_CHECK_AS(ExitCode::kUsage, table.num_samples > 0,
              "there are no samples. Use --samples 1 or more.");
  const auto begin_of = [&](int64_t rank) { return table.num_samples * rank / control.size(); };
  std::vector<SampleSums> sums(static_cast<size_t>(table.num_samples));
  const int64_t end = begin_of(control.rank() + 1);
  for (int64_t first = begin_of(control.rank()); first < end; first += table.batch) {
    std::vector<Prompt> rows;
    for (int64_t sample = first; sample < std::min(first + table.batch, end); ++sample)
      rows.push_back(prompt(static_cast<uint64_t>(sample)));
    Score(Stack(rows), scorer, table.joined_answers, &sums[static_cast<size_t>(first)]);
  }
  static_assert(sizeof(SampleSums) == kSumsOfSample * sizeof(double));
  control
      .AllReduce(Ref(reinterpret_cast<double*>(sums.data()), kSumsOfSample * table.num_samples),
                 dist::ReduceOp::kSum, {"retrieval_sums", 0}, nullptr)
      .WaitHost();
  SampleSums total;
  for (const SampleSums& sum : sums) {
    total.loss += sum.loss;
    total.correct += sum.correct;
    total.tokens += sum.tokens;
    total.correct_answers += sum.correct_answers;
    total.answers += sum.answers;
  }
  return {.accuracy = total.correct_answers / total.answers,
          .token_accuracy = total.correct / total.tokens,
          .loss = total.loss / total.tokens,
          .num_answers = static_cast<int64_t>(total.answers),
          .num_tokens = static_cast<int64_t>(total.tokens)};
}

}  // namespace halflife::eval
