// Accuracies of multiple choice, with numbers that were worked out by hand, and the order of scored
// sequences.
#include "eval/multiple_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "data/small_bpe.h"
#include "eval/scorer.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::eval {
namespace {

using Lists = std::vector<std::vector<double>>;

// Question 1: the right choice has the largest sum. 2: only the largest mean per character, where a
// character of two bytes counts once. 3: neither. 4: a tie, which counts for the first.
TEST(MultipleChoice, AccuracyAndItsNormalisation) {
  const std::vector<ChoiceQuestion> questions = {{"q", {"ab", "cd"}, 1},
                                                 {"q", {"x", "\u00e4\u00f6\u00fc\u00df"}, 1},
                                                 {"q", {"a", "b"}, 0},
                                                 {"q", {"a", "b"}, 0}};
  const Lists log_probs = {{-3, -2}, {-4, -8}, {-5, -1}, {-2, -2}};
  const ChoiceScores scores = JudgeChoices(questions, log_probs);
  EXPECT_EQ(scores.num_questions, 4);
  EXPECT_DOUBLE_EQ(scores.acc, 0.5);
  EXPECT_DOUBLE_EQ(scores.acc_norm, 0.75);
  // The sample deviation of 0, 0, 1, 1 is sqrt(1/3); of the mean of four, half of it.
  EXPECT_NEAR(scores.acc_stderr, std::sqrt(1 / 3.) / 2, 1e-15);
}

// The ids of "bytes" are the bytes + 3.
TEST(MultipleChoice, SpacesBelongToTheContinuation) {
  const auto tokenizer = data::MakeByteTokenizer();
  const EncodedPair pair = EncodePair(*tokenizer, "ab \n", " c");
  EXPECT_EQ(pair.ids, tokenizer->Encode("ab \n c"));
  EXPECT_EQ(pair.num_context, 2u);
}

TEST(MultipleChoice, AnEmptyContextIsTheEndOfAText) {
  const auto tokenizer = data::MakeByteTokenizer();
  ASSERT_EQ(tokenizer->special_ids().bos, -1);
  const EncodedPair pair = EncodePair(*tokenizer, " ", "c");
  EXPECT_EQ(pair.ids, (std::vector<int32_t>{tokenizer->eos_id(), ' ' + 3, 'c' + 3}));
  EXPECT_EQ(pair.num_context, 1u);
}

TEST(MultipleChoice, ContextsBeginWithBosIfTextsDo) {
  namespace tokens = data::test;
  const auto tokenizer = tokens::MakeBpe(tokens::SmallBpeWithBosJson());
  const EncodedPair pair = EncodePair(*tokenizer, "a", " hello");
  EXPECT_EQ(pair.ids, (std::vector<int32_t>{tokens::kBegin, 'a', tokens::kSpaceHello}));
  EXPECT_EQ(pair.num_context, 2u);
  const EncodedPair empty = EncodePair(*tokenizer, "", "hello");
  EXPECT_EQ(empty.ids, (std::vector<int32_t>{tokens::kBegin, tokens::kHello}));
  EXPECT_EQ(empty.num_context, 1u);
}

TEST(MultipleChoice, ALongContextLosesItsBeginning) {
  EncodedPair pair = {.ids = {1, 2, 3, 4, 5}, .num_context = 3};
  pair.KeepLast(5);
  EXPECT_EQ(pair.num_context, 3u);
  pair.KeepLast(3);
  EXPECT_EQ(pair.ids, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(pair.num_context, 1u);
  EXPECT_HL_ERROR(pair.KeepLast(2), ExitCode::kData,
                  "a choice has 2 tokens, more than the model's 1 positions. Use shorter");
}

// The reference scores each sequence alone.
TEST(MultipleChoice, ScoresTheContinuationOnly) {
  model::ModelConfig config = {.vocab_size = 259, .model_dim = 16, .num_layers = 1};
  config.initializer_range = 0.5;  // Gives choices that differ a lot.
  config.mixer = model::MixerConfig("d2d", {{"num_heads", 2}});
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const auto tokenizer = data::MakeByteTokenizer();
  std::vector<ChoiceQuestion> questions;
  for (int i = 0; i < 12; ++i)
    questions.push_back({std::string(static_cast<size_t>(1 + i % 5), 'a'),
                         {"right", "w", std::string(static_cast<size_t>(i + 1), 'x')},
                         i % 3});
  Lists log_probs;
  for (const ChoiceQuestion& question : questions) {
    std::vector<double>& sums = log_probs.emplace_back();
    for (const std::string& choice : question.choices) {
      const std::vector<int32_t> ids = tokenizer->Encode(question.context + " " + choice);
      const std::span<const int32_t> row = ids;
      const std::vector<float> scores = ScoreBatch(model, {&row, 1}, {}).front();
      double sum = 0;
      for (size_t t = question.context.size(); t < ids.size(); ++t) sum += scores[t - 1];
      sums.push_back(sum);
    }
  }
  const ChoiceScores expected = JudgeChoices(questions, log_probs);
  for (const int64_t batch_tokens : {8, 64, 8192}) {
    const ChoiceScores scores =
        ScoreChoices(model, *tokenizer, questions, {.batch_tokens = batch_tokens});
    EXPECT_EQ(scores.acc, expected.acc) << batch_tokens;
    EXPECT_EQ(scores.acc_norm, expected.acc_norm) << batch_tokens;
  }
}

TEST(MultipleChoice, LinesThatAreNoQuestionsAreNamed) {
  const test::TempDir dir;
  const std::string file = (dir / "q.jsonl").string();
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return ReadQuestions(file);
  };
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 1})";
  const auto questions =
      read(good + "\n\n" + R"({"context":"a","choices":["b","c"],"answer":0,"delimiter":""})");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].answer, 1);
  EXPECT_EQ(questions[0].delimiter, " ");
  EXPECT_EQ(questions[1].delimiter, "");
  const auto expect = [&](const std::string& line, const char* problem) {
    EXPECT_HL_ERROR(read(good + "\n" + line), ExitCode::kData, "q.jsonl:2: ", problem,
                    "Write for example");
  };
  expect("[1", "not a JSON object");
  expect(R"({"choices": ["b", "c"], "answer": 1})", "no text \"context\"");
  expect(R"({"context": "a", "choices": ["b"], "answer": 0})", "no list \"choices\"");
  expect(R"({"context": "a", "choices": ["b", ""], "answer": 0})", "no list \"choices\"");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 2})", "no \"answer\"");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": "b"})", "no \"answer\"");
  EXPECT_HL_ERROR(read("\n"), ExitCode::kData, "has no questions");
}

}  // namespace
}  // namespace halflife::eval
