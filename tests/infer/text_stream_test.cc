// Stop strings end a text wherever the boundaries of its tokens are.
#include "infer/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace halflife::infer {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  // Streams the bytes of `text`, up to a stop.
  std::string Streamed(const std::string& text, const std::vector<std::string>& stops) {
    TextStream stream(*tokenizer_, stops);
    std::string out;
    for (const int32_t id : tokenizer_->Encode(text)) {
      const std::string more = stream.Push(id);
      out += more;
      if (stream.stopped()) return out + "|";
    }
    return out + stream.Finish();
  }
  const std::unique_ptr<data::Tokenizer> tokenizer_ = data::MakeByteTokenizer();
};

TEST_F(TextStreamTest, EndsBeforeTheFirstStopString) {
  EXPECT_EQ(Streamed("one two three", {}), "one two three");
  EXPECT_EQ(Streamed("one two three", {" t"}), "one|");
  EXPECT_EQ(Streamed("one two three", {"three", "two"}), "one |");
  EXPECT_EQ(Streamed("aaab", {"aab"}), "a|");
  EXPECT_EQ(Streamed("abab", {"abc", "bab"}), "a|");
  EXPECT_EQ(Streamed("stop", {"stop"}), "|");
}

TEST_F(TextStreamTest, ReturnsTextThatOnlyBeganLikeAStopString) {
  EXPECT_EQ(Streamed("abcabx", {"abcabc"}), "abcabx");
  EXPECT_EQ(Streamed("ends with abca", {"abcabc"}), "ends with abca");
  EXPECT_EQ(Streamed("\xc3\xa9\xc3\xa8", {"\xc3\xa8\xc3\xa8"}), "\xc3\xa9\xc3\xa8");
}

TEST_F(TextStreamTest, HoldsBackOnlyWhatMayBeAStopString) {
  TextStream stream(*tokenizer_, {"END"});
  const auto push = [&](char c) { return stream.Push(tokenizer_->Encode(std::string(1, c))[0]); };
  EXPECT_EQ(push('a'), "a");
  EXPECT_EQ(push('E'), "");
  EXPECT_EQ(push('E'), "E");
  EXPECT_EQ(push('N'), "");
  EXPECT_EQ(push('x'), "ENx");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace halflife::infer
