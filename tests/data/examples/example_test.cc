// Encoding of labelled examples: the positions of classes and answers, and examples that do not
// fit.
#include "data/examples/example.h"

#include <gtest/gtest.h>

#include "data/batch.h"
#include "data/small_bpe.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"

namespace halflife::data {
namespace {

constexpr int32_t kEos = 1, kNone = kNoTarget;
// Returns the ids of the tokenizer `bytes`.
std::vector<int32_t> Ids(const char* text) {
  std::vector<int32_t> ids;
  for (; *text != 0; ++text) ids.push_back(static_cast<unsigned char>(*text) + 3);
  return ids;
}
std::vector<int32_t> WithEos(const char* text) {
  std::vector<int32_t> ids = Ids(text);
  ids.push_back(kEos);
  return ids;
}

class Examples : public testing::Test {
 protected:
  ExampleEncoder Encoder(int64_t row_len, TooLong rule = TooLong::kError) const {
    return ExampleEncoder(*bytes_, {.row_len = row_len, .too_long = rule});
  }
  std::unique_ptr<Tokenizer> bytes_ = MakeByteTokenizer();
};

TEST_F(Examples, AClassStandsAtTheFirstToken) {
  const Example example = Encoder(8).OfClass("abc", 1, "f:1: ");
  EXPECT_EQ(example.ids, WithEos("abc"));
  EXPECT_EQ(example.labels, (std::vector<int32_t>{1, kNone, kNone, kNone}));
  EXPECT_EQ(example.num_bytes, 3);
  EXPECT_FALSE(example.cut || example.dropped);
}

// The last token of the prompt has the first token of the answer as its target, and the last token
// of the answer has eos. Other tokens of the prompt have no target.
TEST_F(Examples, OnlyTheAnswerIsAskedFor) {
  const Example example = Encoder(8).OfAnswer("ab", "cd", "f:1: ");
  EXPECT_EQ(example.ids, WithEos("abcd"));
  EXPECT_EQ(example.labels, (std::vector<int32_t>{kNone, 'c' + 3, 'd' + 3, kEos, kNone}));
  const Example no_prompt = Encoder(8).OfAnswer("", "cd", "f:1: ");
  EXPECT_EQ(no_prompt.labels, (std::vector<int32_t>{'d' + 3, kEos, kNone}));
  const Example no_answer = Encoder(8).OfAnswer("ab", "", "f:1: ");
  EXPECT_EQ(no_answer.labels, (std::vector<int32_t>{kNone, kEos, kNone}));
}

TEST_F(Examples, BeginWithBosIfTextsDo) {
  const auto tokenizer = test::MakeBpe(test::SmallBpeWithBosJson());
  const ExampleEncoder encoder(*tokenizer, {.row_len = 8});
  using test::kBegin, test::kEnd, test::kHello;
  const Example of_class = encoder.OfClass("hello", 1, "");
  EXPECT_EQ(of_class.ids, (std::vector<int32_t>{kBegin, kHello, kEnd}));
  EXPECT_EQ(of_class.labels, (std::vector<int32_t>{1, kNone, kNone}));
  const Example answer = encoder.OfAnswer("a", "hello", "");
  EXPECT_EQ(answer.ids, (std::vector<int32_t>{kBegin, 'a', kHello, kEnd}));
  EXPECT_EQ(answer.labels, (std::vector<int32_t>{kNone, kHello, kEnd, kNone}));
  const Example no_prompt = encoder.OfAnswer("", "hello", "");
  EXPECT_EQ(no_prompt.labels, (std::vector<int32_t>{kHello, kEnd, kNone}));
}

// A space that only a text's beginning gets is not put in front of an answer after a prompt.
TEST_F(Examples, AnAnswerContinuesItsPrompt) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const auto tokenizer = MakeSentencePieceTokenizer(
      interop::test::SmallSentencePiece(true).SerializeAsString(), PrefixSpace::kFirst);
  const ExampleEncoder encoder(*tokenizer, {.row_len = 8});
  const int eos = 2, a = 259, b = 260, space = 265;
  EXPECT_EQ(encoder.OfAnswer("a", "b", "").ids, (std::vector<int32_t>{space, a, b, eos}));
  EXPECT_EQ(encoder.OfAnswer("", "b", "").ids, (std::vector<int32_t>{space, b, eos}));
}

TEST_F(Examples, WhatNoRowHolds) {
  EXPECT_HL_ERROR(
      Encoder(4).OfClass("abcd", 0, "f.tsv:7: "), ExitCode::kData,
      "f.tsv:7: an example of 5 tokens, but rows have 4. Use --row-len 5, --too-long cut "
      "or --too-long drop.");
  const Example cut = Encoder(4, TooLong::kCut).OfClass("abcdef", 0, "");
  EXPECT_EQ(cut.ids, WithEos("abc"));
  EXPECT_TRUE(cut.cut);
  EXPECT_TRUE(Encoder(4, TooLong::kDrop).OfClass("abcd", 0, "").dropped);
  // An answer that is cut has no eos target, because it would continue.
  const Example answer = Encoder(4, TooLong::kCut).OfAnswer("ab", "cdef", "");
  EXPECT_EQ(answer.ids, Ids("abcd"));
  EXPECT_EQ(answer.labels, (std::vector<int32_t>{kNone, 'c' + 3, 'd' + 3, kNone}));
  EXPECT_TRUE(answer.cut);
  EXPECT_TRUE(Encoder(2, TooLong::kCut).OfAnswer("ab", "cd", "").dropped) << "no answer is left";
}

}  // namespace
}  // namespace halflife::data
