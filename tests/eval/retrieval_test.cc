// Needles in texts: their contents, their positions, and the scores of models that find them. The
// golden draws follow published Philox4x32-10 and were computed independently of this code.
#include "eval/retrieval.h"

#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/text_tokens.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

constexpr int32_t kNone = data::kNoTarget;

std::string TextOf(const Tokens& ids) { return data::MakeByteTokenizer()->Decode(ids); }
Needle Passkey(uint64_t seed, uint64_t sample) {
  return PasskeyNeedle(*data::MakeByteTokenizer(), seed, sample);
}
Tokens Numbers(int32_t begin, int32_t end) {
  Tokens numbers(static_cast<size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}
Tokens AskedOf(const Prompt& prompt) {
  Tokens asked;
  for (const int32_t target : prompt.targets)
    if (target != kNone) asked.push_back(target);
  return asked;
}

TEST(Passkey, IsHiddenAndAskedFor) {
  const Tokens dots(1000, '.' + 3);
  const Prompt prompt = Hide(Passkey(0, 0), dots, 128, 0.5);
  const std::string text = TextOf(prompt.inputs);
  ASSERT_EQ(text.size(), 128u);
  const std::string told = " The pass key is 44310. Remember it.",
                    asked = " What is the pass key? The pass key is 4431";
  const size_t left = 128 - told.size() - asked.size();
  EXPECT_EQ(text, std::string(left / 2, '.') + told + std::string(left - left / 2, '.') + asked);
  EXPECT_EQ(TextOf(AskedOf(prompt)), "44310");
  EXPECT_EQ(TextOf({prompt.targets.end() - 5, prompt.targets.end()}), "44310");
}

TEST(Passkey, ARowBeginsWithBosIfTextsDo) {
  Needle needle = Passkey(0, 0);
  const Prompt without = Hide(needle, Tokens(500, 50), 127, 0);
  needle.begin = {7};
  const Prompt prompt = Hide(needle, Tokens(500, 50), 128, 0);
  EXPECT_EQ(prompt.inputs.front(), 7);
  EXPECT_EQ(Tokens(prompt.inputs.begin() + 1, prompt.inputs.end()), without.inputs);
  EXPECT_EQ(Tokens(prompt.targets.begin() + 1, prompt.targets.end()), without.targets);
}

TEST(Passkey, HasTheDigitsOfItsSample) {
  const auto digits = [](uint64_t seed, uint64_t sample) {
    return TextOf(AskedOf(Hide(Passkey(seed, sample), Tokens(500, 50), 200, 0)));
  };
  EXPECT_EQ(digits(0, 1), "72363");
  EXPECT_EQ(digits(7, 3), "41837");
}

std::string RulerText(RulerTask task, int64_t count, double depth, std::string* answers) {
  const Needle needle = RulerNeedle(task, *data::MakeByteTokenizer(), count, 0, 0);
  const Prompt prompt = Hide(needle, Tokens(2000, '.' + 3), 600, depth);
  EXPECT_EQ(prompt.inputs.size(), 600u);
  EXPECT_EQ(prompt.targets.size(), 600u);
  for (size_t i = 0; i < prompt.inputs.size(); ++i) {
    const int32_t target = prompt.targets[i];
    if (target == kNone) continue;
    answers->push_back(static_cast<char>(target - 3));
    if (i + 1 < prompt.inputs.size()) {
      EXPECT_EQ(target, prompt.inputs[i + 1]);
    }
  }
  return TextOf(prompt.inputs);
}
size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// One word is asked for, and the others have numbers, too.
TEST(Ruler, MultiKeyAsksForOneOfSeveralWords) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    std::string answer;
    const std::string text = RulerText(RulerTask::kMultiKey, 4, depth, &answer);
    EXPECT_EQ(answer, "44310");
    EXPECT_EQ(CountOf(text, " A magic number of "), 4u);
    const size_t asked = text.find(" What is the magic number of ");
    const std::string word = text.substr(asked + 29, text.find('?') - asked - 29);
    const std::string fact = " A magic number of " + word + " is 44310.";
    EXPECT_EQ(CountOf(text, fact), 1u) << text;
    EXPECT_EQ(CountOf(text, " of " + word + " is "), 1u) << text;
    EXPECT_TRUE(text.ends_with("? It is 4431"));
  }
}

TEST(Ruler, MultiValueAsksForAllNumbersInTheirOrder) {
  std::string answers;
  const std::string text = RulerText(RulerTask::kMultiValue, 3, 0.25, &answers);
  ASSERT_EQ(answers.size(), 15u);
  size_t before = 0;
  for (size_t i = 0; i < 3; ++i) {
    const size_t at = text.find(" is " + answers.substr(5 * i, 5) + ".");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_GT(at, before);
    before = at;
  }
  EXPECT_TRUE(text.ends_with("They are " + answers.substr(0, 5) + ", " + answers.substr(5, 5) +
                             ", " + answers.substr(10, 4)))
      << text;
}

// The chain leads from its number to each of its variables, and another chain does not.
TEST(Ruler, VariablesFollowAChain) {
  for (const double depth : {0.0, 0.7}) {
    std::string answers;
    const std::string text = RulerText(RulerTask::kVariables, 4, depth, &answers);
    ASSERT_EQ(answers.size(), 12u);
    EXPECT_EQ(CountOf(text, " = VAR "), 6u);
    EXPECT_EQ(CountOf(text, " VAR " + answers.substr(0, 3) + " = 44310."), 1u) << text;
    for (size_t i = 1; i < 4; ++i)
      EXPECT_EQ(CountOf(text, " VAR " + answers.substr(3 * i, 3) + " = VAR " +
                                  answers.substr(3 * i - 3, 3) + "."),
                1u)
          << text;
    EXPECT_EQ(CountOf(text, " have the value 44310? They are "), 1u);
  }
}

TEST(Ruler, SaysHowManyThereAre) {
  const auto tokenizer = data::MakeByteTokenizer();
  EXPECT_HL_ERROR(RulerNeedle(RulerTask::kMultiKey, *tokenizer, 33, 0, 0), ExitCode::kUsage,
                  "--pairs 33", "Use at most 32.");
  EXPECT_HL_ERROR(RulerNeedle(RulerTask::kVariables, *tokenizer, 14, 0, 0), ExitCode::kUsage,
                  "--pairs 14", "Use at most 13.");
}

TEST(Needles, StandAtTheirDepth) {
  const Needle needle = Passkey(0, 0);
  const Tokens text = Numbers(1000, 2000);  // These ids are not bytes.
  const int64_t room = 200 - needle.size();
  for (const auto& [depth, before] : {std::pair{0.0, int64_t{0}}, {0.25, room / 4}, {1.0, room}}) {
    const Prompt prompt = Hide(needle, text, 200, depth);
    ASSERT_EQ(prompt.inputs.size(), 200u);
    EXPECT_EQ(std::ranges::find(prompt.inputs, needle.fact[0]) - prompt.inputs.begin(), before);
    Tokens rest = prompt.inputs;  // The haystack continues after the needle without a gap.
    std::erase_if(rest, [](int32_t id) { return id < 1000; });
    EXPECT_EQ(rest, Tokens(text.begin(), text.begin() + room));
  }
  EXPECT_EQ(Hide(needle, {}, needle.size(), 0.5).inputs.size(), static_cast<size_t>(needle.size()));
}

TEST(MqarNeedles, GoldenPairs) {
  const Needle needle = MqarNeedle({.vocab_size = 64, .ordinary = Numbers(3, 64), .num_pairs = 3},
                                   Tokens{5, 20, 6, 5}, /*seed=*/0, /*sample=*/2);
  EXPECT_THAT(needle.fact, ElementsAre(15, 62, 12, 49, 30, 32));
  EXPECT_THAT(needle.asked, ElementsAre(12, 15, 30));
  EXPECT_THAT(needle.targets, ElementsAre(49, 62, 32));
}

TEST(MqarNeedles, AreNoTokensOfTheHaystack) {
  const MqarNeedles config = {.vocab_size = 259, .ordinary = Numbers(3, 259), .num_pairs = 20};
  const Tokens text = Numbers(40, 200);
  for (uint64_t sample = 0; sample < 50; ++sample) {
    const Needle needle = MqarNeedle(config, text, 1, sample);
    std::map<int32_t, int32_t> value_of;
    for (size_t i = 0; i < needle.fact.size(); i += 2) {
      EXPECT_LT(needle.fact[i], 259 / 2);
      EXPECT_GE(needle.fact[i + 1], 259 / 2);
      value_of[needle.fact[i]] = needle.fact[i + 1];
    }
    EXPECT_EQ(value_of.size(), 20u);
    for (const int32_t id : needle.fact) EXPECT_TRUE(id >= 3 && (id < 40 || id >= 200)) << id;
    for (size_t i = 0; i < needle.asked.size(); ++i)
      EXPECT_EQ(value_of.at(needle.asked[i]), needle.targets[i]);
    EXPECT_EQ(std::set(needle.asked.begin(), needle.asked.end()).size(), 20u);
  }
}

class Haystacks : public testing::Test {
 protected:
  // "0123...9" with an end of document after each third.
  Haystacks() {
    for (int32_t i = 0; i < 12; ++i) {
      text_.ids.push_back(100 + i);
      if (i % 3 == 2) text_.ids.push_back(1);
    }
    text_.eos_id = 1;
    text_.info.num_tokens = std::ssize(text_.ids);
    text_.info.num_documents = 4;
  }
  data::TextTokens text_;
};

TEST_F(Haystacks, AreOneTextWithoutEnds) {
  const data::TokenView view = ViewOf(text_);
  const Haystack haystack(view, 0);
  std::set<int32_t> begins;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    const Tokens text = haystack.Text(sample, 30);
    ASSERT_EQ(text.size(), 30u);
    for (size_t i = 1; i < text.size(); ++i)  // Repeated.
      EXPECT_EQ(text[i], 100 + (text[i - 1] - 100 + 1) % 12);
    EXPECT_EQ(haystack.Text(sample, 7), Tokens(text.begin(), text.begin() + 7));
    begins.insert(text[0]);
  }
  EXPECT_EQ(begins.size(), 12u);
  EXPECT_THAT(Haystack(view, 0, /*bos_id=*/105).Text(0, 30), testing::Not(testing::Contains(105)));
  EXPECT_NE(haystack.Text(0, 30), Haystack(view, 1).Text(0, 30));
}

TEST_F(Haystacks, SayWhatTheyAreNot) {
  data::TokenView rows = ViewOf(text_);
  rows.row_len = 4;
  EXPECT_HL_ERROR(Haystack(rows, 0), ExitCode::kUsage, "the text has labelled rows", "--text FILE");
  text_.info.num_documents = text_.info.num_tokens;
  const data::TokenView empty = ViewOf(text_);
  EXPECT_HL_ERROR(Haystack(empty, 0), ExitCode::kData, "no text in which a needle can be hidden");
}

// A tokenizer with only letters.
class Letters : public data::Tokenizer {
 public:
  const std::string& kind() const override { return kind_; }
  int vocab_size() const override { return 259; }
  data::SpecialIds special_ids() const override { return {.eos = 1, .unk = 2}; }
  void EncodeAppend(std::string_view text, data::SpecialTokens, Tokens& ids) const override {
    for (const char c : text) ids.push_back(c >= '0' && c <= '9' ? 2 : c + 3);
  }
  bool AppendBytes(int32_t, bool, std::string&) const override { return false; }
  bool keeps_invalid_bytes() const override { return true; }

 protected:
  std::map<std::string, std::string> FilesOfKind() const override { return {}; }

 private:
  std::string kind_ = "letters";
};

TEST(Needles, SayWhatHasNoRoom) {
  EXPECT_HL_ERROR(Hide(Passkey(0, 0), Tokens(99, 50), 64, 0.5), ExitCode::kUsage,
                  "rows of 64 tokens are too short", "need 79 tokens. Use 79 or more.");
  EXPECT_HL_ERROR(PasskeyNeedle(Letters(), 0, 0), ExitCode::kUsage, "no tokens for 44310",
                  "retrieval mqar");
  const MqarNeedles config = {.vocab_size = 64, .ordinary = Numbers(3, 64), .num_pairs = 30};
  EXPECT_HL_ERROR(MqarNeedle(config, Numbers(3, 30), 0, 0), ExitCode::kUsage, "--pairs 30",
                  "leaves 2 unused tokens", "lower half", "32 of its upper half", "at most 2");
  EXPECT_HL_ERROR(MqarNeedle(config, Numbers(3, 64), 0, 0), ExitCode::kUsage, "shorter --lengths");
}

// Predicts the token that followed the last occurrence of the same token, within the last `reach`
// tokens.
AnswerScorer Follower(int64_t reach, int64_t skipped = 0) {
  return [=](const at::Tensor& inputs, const at::Tensor& targets) {
    model::TokenScores scores = {at::zeros_like(targets, at::kFloat),
                                 at::zeros_like(targets, at::kFloat)};
    const auto ids = inputs.accessor<int64_t, 2>(), asked = targets.accessor<int64_t, 2>();
    auto correct = scores.correct.accessor<float, 2>(), losses = scores.losses.accessor<float, 2>();
    for (int64_t b = 0; b < ids.size(0); ++b) {
      int64_t number = 0;
      for (int64_t t = 0; t < ids.size(1); ++t) {
        if (asked[b][t] < 0 || number++ < skipped) continue;
        for (int64_t s = t - 1; s >= std::max<int64_t>(0, t - reach); --s) {
          if (ids[b][s] != ids[b][t]) continue;
          correct[b][t] = ids[b][s + 1] == asked[b][t] ? 1 : 0;
          break;
        }
        losses[b][t] = correct[b][t] > 0 ? 0.5F : 2.0F;
      }
    }
    return scores;
  };
}

RetrievalScore Pairs(const AnswerScorer& scorer, double depth, int world = 1,
                     int64_t length = 256) {
  const Tokens text = Numbers(100, 400);
  const MqarNeedles config = {.vocab_size = 800, .ordinary = Numbers(3, 800), .num_pairs = 4};
  RetrievalScore score;
  dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
    const RetrievalScore of_rank = ScoreRetrieval(
        {.num_samples = 7, .batch = 2, .joined_answers = false},
        [&](uint64_t sample) {
          return Hide(MqarNeedle(config, text, 0, sample), text, length, depth);
        },
        scorer, control);
    if (control.rank() == 0) score = of_rank;
  });
  return score;
}

// 244 tokens of text, 8 of pairs and 4 of questions: a model that sees 60 tokens back only finds
// needles at the end.
TEST(Retrieval, IsFoundByWhoLooksFarEnough) {
  EXPECT_EQ(Pairs(Follower(256), 0).accuracy, 1);
  EXPECT_EQ(Pairs(Follower(60), 0).accuracy, 0);
  EXPECT_EQ(Pairs(Follower(60), 0.7).accuracy, 0);
  EXPECT_EQ(Pairs(Follower(60), 0.9).accuracy, 1);
  const RetrievalScore score = Pairs(Follower(60), 1);
  EXPECT_EQ(score.num_answers, 7 * 4);
  EXPECT_EQ(score.num_tokens, 7 * 4);
  EXPECT_EQ(score.loss, 0.5);
  EXPECT_EQ(Pairs(Follower(60), 0).loss, 2);
}

// The answer to a passkey is right if all its digits are.
TEST(Retrieval, APasskeyIsOneAnswer) {
  const Needle needle = {.fact = {10, 11, 12, 13, 14, 15},
                         .asked = {10, 11, 12, 13, 14},
                         .targets = {11, 12, 13, 14, 15}};
  const auto score = [&](int64_t skipped) {
    RetrievalScore of_all;
    dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
      of_all = ScoreRetrieval(
          {.num_samples = 3}, [&](uint64_t) { return Hide(needle, Numbers(100, 200), 64, 0.3); },
          Follower(64, skipped), control);
    });
    return of_all;
  };
  EXPECT_EQ(score(0).accuracy, 1);
  EXPECT_EQ(score(0).num_answers, 3);
  EXPECT_EQ(score(0).num_tokens, 15);
  EXPECT_EQ(score(1).accuracy, 0);
  EXPECT_NEAR(score(1).token_accuracy, 0.8, 1e-12);
}

// Answers that other tokens separate are counted one by one.
TEST(Retrieval, SeparateAnswersAreCounted) {
  const Needle needle = {.fact = {10, 11, 12, 20, 21, 22},
                         .asked = {10, 11, 12, 20, 21},
                         .targets = {11, 12, kNone, 21, 23}};
  RetrievalScore score;
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    score = ScoreRetrieval(
        {.num_samples = 3}, [&](uint64_t) { return Hide(needle, Numbers(100, 200), 64, 0.3); },
        Follower(64), control);
  });
  EXPECT_EQ(score.num_answers, 6);
  EXPECT_EQ(score.num_tokens, 12);
  EXPECT_EQ(score.accuracy, 0.5);
}

model::ModelConfig Small(double initializer_range) {
  model::ModelConfig config = {.vocab_size = 800, .model_dim = 16, .num_layers = 1};
  config.initializer_range = initializer_range;
  config.mixer = model::MixerConfig("gla", {{"num_heads", int64_t{2}}});
  return config;
}

// An untrained model gives 800 tokens equal probability: of 28 answers with probability 1/800 each,
// at most one is right, except once in 1,600 runs.
TEST(Retrieval, AnUntrainedModelGuesses) {
  model::LanguageModel model(Small(1e-3));
  model.BindOwnMemory(1, false);
  const RetrievalScore score = Pairs(ScorerOf(model), 0.5, 1, 64);
  EXPECT_NEAR(score.loss, std::log(800.0), 0.05);
  EXPECT_LE(score.accuracy, 1.0 / 28);
}

TEST(Retrieval, RequiresAnswersInOrder) {
  const auto require = [](const model::ObjectiveConfig& objective, bool labels_will_do) {
    model::ModelConfig config = Small(0.1);
    config.mixer = model::MixerConfig("gau", {{"key_dim", int64_t{8}}, {"causal", false}});
    if (objective.name() == "labelled") config.mixer = Small(0.1).mixer;
    config.objective = objective;
    RequireAnswers(model::LanguageModel(config), labels_will_do);
  };
  const model::ObjectiveConfig hidden("masked_token", {{"mask_id", int64_t{2}}}),
      labelled("labelled");
  EXPECT_HL_ERROR(require(hidden, false), ExitCode::kUsage, "objective is masked_token",
                  "Use a model with the objective next_token.");
  EXPECT_HL_ERROR(require(hidden, true), ExitCode::kUsage,
                  "Use a model with the objective next_token or labelled.");
  EXPECT_HL_ERROR(require(labelled, false), ExitCode::kUsage, "objective is labelled");
  require(labelled, true);
}

TEST(Retrieval, RanksShareTheSamples) {
  model::LanguageModel model(Small(0.5));
  model.BindOwnMemory(1, false);
  const RetrievalScore one = Pairs(ScorerOf(model), 0.5, 1, 64);
  for (const int world : {2, 3}) {
    const RetrievalScore many = Pairs(ScorerOf(model), 0.5, world, 64);
    EXPECT_NEAR(many.loss, one.loss, 1e-6);
    EXPECT_EQ(many.accuracy, one.accuracy);
    EXPECT_EQ(many.num_answers, one.num_answers);
  }
}

}  // namespace
}  // namespace halflife::eval
