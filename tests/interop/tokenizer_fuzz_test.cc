// Tens of thousands of damaged tokenizer files, under AddressSanitizer and UBSan. Each must give an
// error of kData or a consistent tokenizer.
#include <gtest/gtest.h>
#include <halflife/sentencepiece_model.pb.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/bpe/merger.h"
#include "data/bpe/special_tokens.h"
#include "data/bpe/tokenizer_json.h"
#include "data/small_bpe.h"
#include "interop/hf_tokenizer.h"
#include "interop/small_sentencepiece.h"
#include "support/mutate.h"

namespace halflife::interop {
namespace {

using halflife::test::Mutated;
using nlohmann::ordered_json;
using Files = std::map<std::string, std::string>;

const std::string kTexts[] = {
    "", "hello 1234's <tool> <|pad|><|end|>\r\n\r\n  x",
    "\xE5\x8D\x8A\xE6\xB8\x9B e\xCC\x81 \xF0\x9F\x99\x82 \xFF\xC3 \xE3\x80\x80"
    "abc",
    std::string(300, 'a') + std::string(300, ' ') + "hello" + std::string(50, '\n')};

// Expects that an accepted tokenizer.json is consistent.
void ExpectConsistent(const data::BpeSpec& spec) {
  const std::set<std::string> unique(spec.tokens.begin(), spec.tokens.end());
  EXPECT_EQ(unique.size(), spec.tokens.size());
  const auto token = [&](int32_t id) { return spec.tokens.at(static_cast<size_t>(id)); };
  for (const data::Merge& merge : spec.merges) {
    EXPECT_EQ(token(merge.left) + token(merge.right), token(merge.result));
  }
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_TRUE(unique.contains(data::AlphabetCharacter(static_cast<uint8_t>(byte)))) << byte;
  }
  for (const data::AddedToken& added : spec.added) EXPECT_EQ(token(added.id), added.content);
}

// Returns whether the files give a tokenizer, which must then behave consistently. A pattern may
// give up on a text, which is an error of kData too.
bool IsAccepted(const Files& files) {
  try {
    const auto tokenizer = data::MakeBpeTokenizer(files, "fuzzed");
    const int size = tokenizer->vocab_size();
    const data::SpecialIds special = tokenizer->special_ids();
    EXPECT_TRUE(special.eos >= 0 && special.eos < size);
    EXPECT_LT(std::max({special.bos, special.pad, special.unk}), size);
    ExpectConsistent(data::ReadTokenizerJson(files.at("tokenizer.json"), "fuzzed"));
    const auto again = data::MakeBpeTokenizer(tokenizer->Files(), "saved");
    for (const std::string& text : kTexts) {
      const std::vector<int32_t> ids = tokenizer->Encode(text);
      for (const int32_t id : ids) EXPECT_TRUE(id >= 0 && id < size && id != special.eos) << id;
      tokenizer->Decode(ids);
      EXPECT_EQ(again->Encode(text), ids);
    }
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    return false;
  }
}

TEST(TokenizerFuzzTest, BytesOfTokenizerJson) {
  Files files = data::test::BpeFiles(data::test::SmallBpeJson());
  ASSERT_TRUE(IsAccepted(files));
  const std::string good = files["tokenizer.json"];
  std::mt19937_64 random(1);
  int num_accepted = 0;
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(i);
    files["tokenizer.json"] = Mutated(good, random);
    num_accepted += IsAccepted(files);
  }
  // Some damage leaves a valid file: a token may have another spelling.
  EXPECT_LT(num_accepted, 3000);
}

// Returns a random value below `json`.
ordered_json* Pick(ordered_json& json, std::mt19937_64& random) {
  ordered_json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 5 != 0) {
    at = &*std::next(at->begin(), static_cast<int64_t>(random() % at->size()));
  }
  return at;
}

ordered_json Value(std::mt19937_64& random) {
  static const char* const kPatterns[] = {
      R"((?:a+)+[bc])",     R"(\p{L}+| ?[^\s]+)", R"(\s*a)",       "(?:",
      R"((?:\p{L}|\s)+?x)", R"([^a]{1,900})",     "[\xE5\x8D\x8A]"};
  switch (random() % 7) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int64_t>(random() % 600) - 100;
    case 3:
      return static_cast<int64_t>(random());
    case 4:
      return ordered_json::array({random() % 3 == 0 ? "a" : "hello", "l"});
    case 5:
      return kPatterns[random() % std::size(kPatterns)];
    default:
      return std::string(random() % 3, 'a') + (random() % 2 == 0 ? "" : "hell\0o");
  }
}

TEST(TokenizerFuzzTest, ValuesOfTokenizerJson) {
  const ordered_json good = data::test::SmallBpeJson();
  std::mt19937_64 random(2);
  int num_accepted = 0;
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(i);
    ordered_json json = good;
    // Mostly outside the long lists, where the rules are.
    ordered_json& part = random() % 3 == 0 ? json
                         : random() % 2 == 0
                             ? json["pre_tokenizer"]
                             : json[random() % 2 == 0 ? "added_tokens" : "post_processor"];
    *Pick(part, random) = random() % 3 == 0 ? *Pick(json, random) : Value(random);
    num_accepted += IsAccepted(data::test::BpeFiles(json));
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_LT(num_accepted, 6000);
}

TEST(TokenizerFuzzTest, TokenizerConfig) {
  const data::BpeSpec spec =
      data::ReadTokenizerJson(data::test::SmallBpeJson().dump(), "tokenizer.json");
  const std::string good =
      R"({"tokenizer_class": "X", "bos_token": null, "eos_token": {"content": "<|end|>"},)"
      R"( "pad_token": "<|pad|>", "list": [1, {"a": [true, -1.5e3]}]})";
  std::mt19937_64 random(3);
  int num_accepted = 0;
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(i);
    // Damages either the file that names tokens by content or the one that names them by number. If
    // both are damaged, almost nothing is accepted.
    const std::string by_number = R"({"eos_token_id": [265]})";
    const Files files = i % 2 == 0 ? Files{{"tokenizer_config.json", Mutated(good, random)},
                                           {"generation_config.json", by_number}}
                                   : Files{{"generation_config.json", Mutated(by_number, random)}};
    try {
      const data::SpecialIds ids = data::FindSpecialTokens(spec, "fuzzed", files);
      ++num_accepted;
      EXPECT_TRUE(ids.eos == data::test::kEnd || ids.eos == data::test::kPad ||
                  ids.eos == data::test::kTool)
          << ids.eos;
      const std::string written = data::TokenizerConfigJson(spec, ids);
      EXPECT_EQ(data::FindSpecialTokens(spec, "saved", {{"tokenizer_config.json", written}}), ids);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_LT(num_accepted, 8000);
}

// Expects the result of a conversion: JSON whose ids are those of the pieces, each once, and whose
// merges use known pieces.
void ExpectConsistent(const SentencePieceJson& json) {
  const auto tokenizer = nlohmann::json::parse(json.tokenizer);
  const auto& model = tokenizer.at("model");
  if (model.at("type") == "BPE") {
    std::set<int> ids;
    for (const auto& [piece, id] : model.at("vocab").items()) ids.insert(id.get<int>());
    EXPECT_EQ(ids.size(), model.at("vocab").size());
    EXPECT_EQ(*ids.rbegin() + 1, static_cast<int>(ids.size()));
    for (const auto& merge : model.at("merges")) {
      const auto whole = merge.at(0).get<std::string>() + merge.at(1).get<std::string>();
      EXPECT_TRUE(model.at("vocab").contains(whole));
    }
  } else {
    EXPECT_LT(model.at("unk_id").get<size_t>(), model.at("vocab").size());
  }
  EXPECT_EQ(nlohmann::json::parse(json.config).at("tokenizer_class"), "PreTrainedTokenizerFast");
}

TEST(TokenizerFuzzTest, SentencePieceModel) {
  std::mt19937_64 random(4);
  int num_accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    SCOPED_TRACE(i);
    const std::string good = test::SmallSentencePiece(i % 2 == 0).SerializeAsString();
    try {
      ExpectConsistent(ConvertSentencePiece(Mutated(good, random), {.eos = 2, .unk = 0}));
      ++num_accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_LT(num_accepted, 12'000);
}

}  // namespace
}  // namespace halflife::interop
