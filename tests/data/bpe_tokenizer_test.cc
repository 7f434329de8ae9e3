// Byte-level BPE: ids calculated by hand, refused files, and ids without text.
// tests/interop/bpe_compare.py compares it with the tokenizers library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "data/bpe/merger.h"
#include "data/bpe/regex.h"
#include "data/bpe/tokenizer_json.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using nlohmann::ordered_json;
using test::BpeFiles;
using test::kHello;
using test::kSpaceHello;
using test::kTool;
using test::MakeBpe;
using test::SmallBpeJson;
using Ids = std::vector<int32_t>;
using Change = std::function<void(ordered_json&)>;

Ids Encode(const Change& change, std::string_view text) {
  ordered_json json = SmallBpeJson();
  change(json);
  return MakeBpe(json)->Encode(text);
}

TEST(BpeTest, JoinsThePairOfLowestRankFirst) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 268);
  EXPECT_EQ(tokenizer->Encode("hello"), (Ids{kHello}));
  EXPECT_EQ(tokenizer->Encode("hello hello"), (Ids{kHello, kSpaceHello}));
  EXPECT_EQ(tokenizer->Encode("llll"), (Ids{257, 257}));
  EXPECT_EQ(tokenizer->Encode("lll"), (Ids{257, 'l'}));  // The leftmost of equal merges.
  EXPECT_EQ(tokenizer->Encode("abc"), (Ids{263}));       // "a b" before "b c".
  EXPECT_EQ(tokenizer->Encode("xbc"), (Ids{'x', 264}));
  EXPECT_EQ(tokenizer->Encode(" 1"), (Ids{' ', '1'}));  // The pattern separates them.
  EXPECT_EQ(tokenizer->Encode(""), Ids{});
}

TEST(BpeTest, WordsOfAnyLength) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  for (const size_t repeats : {1u, 5u, 6u, 7u, 1000u, 200000u}) {
    std::string text;
    for (size_t i = 0; i < repeats; ++i) text += "hello";
    EXPECT_EQ(tokenizer->Encode(text), Ids(repeats, kHello)) << repeats;
  }
  const Ids spaces = tokenizer->Encode(std::string(2 << 20, ' ') + "x");
  EXPECT_EQ(spaces.size(), (2u << 20) + 1);
}

TEST(BpeTest, TheSecondTimeIsTheSame) {  // From the cache, in any order and from any thread.
  const auto tokenizer = MakeBpe(SmallBpeJson());
  const std::vector<std::string> documents = test::RandomDocuments(300, 1);
  std::vector<Ids> alone;
  for (const std::string& document : documents) {
    alone.push_back(MakeBpe(SmallBpeJson())->Encode(document));
  }
  std::vector<std::thread> threads;
  std::vector<int> differences(4, 0);
  for (size_t t = 0; t < differences.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 2 * documents.size(); ++i) {
        const size_t at = (i * (t + 1)) % documents.size();
        differences[t] += tokenizer->Encode(documents[at]) != alone[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, std::vector<int>(4, 0));
}

TEST(BpeTest, TextComesBack) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  for (const std::string& text : test::RandomDocuments(100, 2)) {
    const Ids ids = tokenizer->Encode(text);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    StreamDecoder decoder(*tokenizer);
    std::string stream;
    for (const int32_t id : ids) {
      const std::string piece = decoder.Push(id);
      EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos) << "a character was split";
      stream += piece;
    }
    EXPECT_EQ(stream + decoder.Finish(), text);
  }
}

TEST(BpeTest, InvalidBytesAreReadAsTheReplacementCharacter) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  EXPECT_EQ(tokenizer->Encode("a\xFFz"), tokenizer->Encode("a\xEF\xBF\xBDz"));
  // An incomplete character becomes one, too.
  EXPECT_EQ(tokenizer->Decode({0xC3, 'a'}),
            "\xEF\xBF\xBD"
            "a");
}

TEST(BpeTest, SpecialTokensDecodeToNothing) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  EXPECT_EQ(tokenizer->special_ids(),
            (SpecialIds{.bos = -1, .eos = test::kEnd, .pad = test::kPad, .unk = -1}));
  EXPECT_EQ(tokenizer->Decode({test::kPad, kHello, kTool, test::kEnd}), "hello<tool>");
}

TEST(BpeTest, PlainTextHasAddedTokensButNeverEos) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  EXPECT_EQ(tokenizer->Encode("hello<tool><|pad|>hello"), (Ids{kHello, kTool, test::kPad, kHello}));
  EXPECT_THAT(tokenizer->Encode("hello<|end|>"), testing::Not(testing::Contains(test::kEnd)));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("<|end|>")), "<|end|>");
}

TEST(BpeTest, ParsedTextHasEosByItsName) {
  const auto tokenizer = MakeBpe(SmallBpeJson());
  const std::string text = "hello<|end|><tool><|end|>";
  EXPECT_EQ(tokenizer->Encode(text, SpecialTokens::kParse),
            (Ids{kHello, test::kEnd, kTool, test::kEnd}));
  NameCounts counts;
  tokenizer->CountSpecialNames(text, counts);
  EXPECT_EQ(counts, (NameCounts{{"<|end|>", 2}})) << "plain text has <tool> as a token, too";
  // Text without the name has the same ids in both modes.
  for (const std::string& document : test::RandomDocuments(50, 12))
    EXPECT_EQ(tokenizer->Encode(document, SpecialTokens::kParse), tokenizer->Encode(document));
}

// transformers adds such a token to those of the file.
TEST(BpeTest, AnEosThatIsNoAddedTokenIsParsedToo) {
  ordered_json json = SmallBpeJson();
  json["model"]["vocab"]["<eot>"] = 265;
  for (size_t i = 0; i < 3; ++i) json["added_tokens"][i]["id"] = 266 + i;
  const auto tokenizer = MakeBpeTokenizer(
      {{"tokenizer.json", json.dump()}, {"tokenizer_config.json", R"({"eos_token": "<eot>"})"}},
      "tokenizer.json");
  EXPECT_EQ(tokenizer->Encode("hello<eot>", SpecialTokens::kParse), (Ids{kHello, 265}));
  EXPECT_THAT(tokenizer->Encode("hello<eot>"), testing::Not(testing::Contains(265)));
}

TEST(BpeTest, TheLongestAddedTokenWins) {
  const auto add = [](const char* content, int id, const char* flag) {
    return [=](ordered_json& json) {
      ordered_json token = json["added_tokens"][2];
      token["content"] = content;
      token["id"] = id;
      if (*flag != 0) token[flag] = true;
      json["added_tokens"].push_back(token);
    };
  };
  EXPECT_EQ(Encode(add("<tool>hello", 268, ""), "<tool>hello<tool>"), (Ids{268, kTool}));
  EXPECT_EQ(Encode(add("<l>", 268, "lstrip"), "a \xE3\x80\x80\n<l> b"), (Ids{'a', 268, ' ', 'b'}));
  EXPECT_EQ(Encode(add("<r>", 268, "rstrip"),
                   "a <r> \t\xC2\xA0"
                   "b"),
            (Ids{'a', ' ', 268, 'b'}));
}

TEST(BpeTest, NormalisesFirst) {
  const auto nfc = [](ordered_json& json) { json["normalizer"] = {{"type", "NFC"}}; };
  EXPECT_EQ(Encode(nfc, "e\xCC\x81"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(Encode([](ordered_json&) {}, "e\xCC\x81"), (Ids{'e', 0xCC, 0x81}));
}

TEST(BpeTest, AWordThatIsATokenMaySkipTheMerges) {
  // No merge produces "zz", so it is only found as a whole word.
  const auto change = [](bool ignore) {
    return [=](ordered_json& json) {
      json["added_tokens"] = ordered_json::array();
      json["model"]["vocab"]["zz"] = 265;
      json["model"]["vocab"]["<|end|>"] = 266;
      json["model"]["ignore_merges"] = ignore;
    };
  };
  EXPECT_EQ(Encode(change(true), "zz"), (Ids{265}));
  EXPECT_EQ(Encode(change(false), "zz"), (Ids{'z', 'z'}));
}

TEST(BpeTest, SaveKeepsTheFileAndTheIds) {
  const halflife::test::TempDir dir;
  const std::string json = SmallBpeJson().dump(3);
  const auto tokenizer = MakeBpeTokenizer(
      {{"tokenizer.json", json}, {"generation_config.json", R"({"eos_token_id": [265, 266]})"}},
      "tokenizer.json");
  EXPECT_EQ(tokenizer->eos_id(), 265);
  tokenizer->Save(dir.path());
  EXPECT_EQ(test::ReadText(dir / "tokenizer.json"), json);
  EXPECT_EQ(test::Names(dir.path()),
            (std::vector<std::string>{"kind.txt", "tokenizer.json", "tokenizer_config.json"}));
  const auto loaded = LoadTokenizer(dir.path());
  EXPECT_EQ(loaded->special_ids(), tokenizer->special_ids());
  EXPECT_EQ(loaded->Encode("hello 123 <tool>"), tokenizer->Encode("hello 123 <tool>"));
  EXPECT_EQ(loaded->Files(), tokenizer->Files());
}

TEST(BpeSpecialTest, WhereEosIsNamed) {
  const std::string json = SmallBpeJson().dump();
  const auto eos = [&](std::map<std::string, std::string> files) {
    files["tokenizer.json"] = json;
    return MakeBpeTokenizer(std::move(files), "tokenizer.json")->eos_id();
  };
  EXPECT_EQ(eos({{"tokenizer_config.json", R"({"eos_token": {"content": "<|pad|>"}})"},
                 {"config.json", R"({"eos_token_id": 265})"}}),
            266);
  EXPECT_EQ(eos({{"tokenizer_config.json", "{}"}, {"config.json", R"({"eos_token_id": 265})"}}),
            265);
  EXPECT_EQ(eos({{"special_tokens_map.json", R"({"eos_token": "<|pad|>"})"}}), 266);
  EXPECT_HL_ERROR(eos({}), ExitCode::kData, "does not define the token that ends a document",
                  "\"eos_token\"", "<|end|> <|pad|>");
  EXPECT_HL_ERROR(eos({{"tokenizer_config.json", R"({"eos_token": "</s>"})"}}), ExitCode::kData,
                  "'</s>' is not a token");
  for (const char* name : {"hello", "a"}) {
    EXPECT_HL_ERROR(eos({{"tokenizer_config.json", ordered_json{{"eos_token", name}}.dump()}}),
                    ExitCode::kData, "can also result from plain text");
  }
  EXPECT_HL_ERROR(eos({{"tokenizer_config.json", "[1]"}}), ExitCode::kData,
                  "tokenizer_config.json is not a JSON object");
}

TEST(BpeSpecialTest, TheTemplateNamesEosToo) {
  ordered_json json = SmallBpeJson();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<|end|>"}}}}}}};
  EXPECT_EQ(MakeBpeTokenizer({{"tokenizer.json", json.dump()}}, "t")->eos_id(), test::kEnd);
}

TEST(BpeBosTest, TextsBeginWithItIfTheTemplateDoes) {
  const auto tokenizer = MakeBpe(test::SmallBpeWithBosJson());
  EXPECT_EQ(tokenizer->special_ids().bos, test::kBegin);
  ASSERT_TRUE(tokenizer->begins_with_bos());
  EXPECT_EQ(tokenizer->EncodeText("hello"), (Ids{test::kBegin, kHello}));
  EXPECT_EQ(tokenizer->EncodeText(""), (Ids{test::kBegin}));
  EXPECT_EQ(tokenizer->Encode("hello"), (Ids{kHello})) << "a part of a text";
  EXPECT_EQ(tokenizer->EncodeText("<|begin|>hello", SpecialTokens::kParse),
            (Ids{test::kBegin, kHello}))
      << "not twice";
  Ids ids = {7};
  tokenizer->AppendText("<|begin|>hello", SpecialTokens::kPlain, ids);
  EXPECT_EQ(ids, (Ids{7, test::kBegin, kHello}));
  EXPECT_EQ(MakeBpe(SmallBpeJson())->EncodeText("hello"), (Ids{kHello}));
}

TEST(BpeBosTest, OtherTemplates) {
  const auto begins = [](const Change& change, const std::string& config = "") {
    ordered_json json = test::SmallBpeWithBosJson();
    change(json);
    auto files = test::BpeFiles(json);
    if (!config.empty()) files["tokenizer_config.json"] = config;
    return MakeBpeTokenizer(files, "tokenizer.json")->begins_with_bos();
  };
  EXPECT_TRUE(begins([](ordered_json& json) {
    json["post_processor"] = {
        {"type", "Sequence"},
        {"processors", ordered_json::array({json["decoder"], json["post_processor"]})}};
  })) << "Llama 3";
  EXPECT_FALSE(begins([](ordered_json& json) {
    ordered_json& single = json["post_processor"]["single"];
    single.insert(single.begin(), single[0]);
  })) << "two tokens";
  EXPECT_FALSE(begins([](ordered_json& json) {
    ordered_json& single = json["post_processor"]["single"];
    std::swap(single[0], single[1]);
  })) << "the token ends a text";
  EXPECT_FALSE(begins([](ordered_json&) {}, R"({"eos_token": "<|end|>", "bos_token": "<|pad|>"})"))
      << "another token";
  EXPECT_FALSE(
      begins([](ordered_json&) {}, R"({"eos_token": "<|begin|>", "bos_token": "<|begin|>"})"))
      << "bos is eos, as for OPT: each text would be two documents";
  EXPECT_FALSE(
      begins([](ordered_json& json) { json["post_processor"] = nullptr; },
             R"({"eos_token": "<|end|>", "bos_token": "<|begin|>", "add_bos_token": true})"))
      << "transformers reads that key only without tokenizer.json";
}

// transformers adds the token of the template, whether or not a file names it bos_token.
TEST(BpeBosTest, TheTemplateNamesBosToo) {
  const auto with = [](const ordered_json& json, const std::string& config) {
    return MakeBpeTokenizer({{"tokenizer.json", json.dump()}, {"tokenizer_config.json", config}},
                            "t");
  };
  ordered_json json = test::SmallBpeWithBosJson();
  for (const char* config :
       {R"({"eos_token": "<|end|>"})", R"({"eos_token": "<|end|>", "bos_token": null})"}) {
    const auto tokenizer = with(json, config);
    EXPECT_EQ(tokenizer->special_ids().bos, test::kBegin) << config;
    ASSERT_TRUE(tokenizer->begins_with_bos()) << config;
    EXPECT_EQ(tokenizer->EncodeText("hello"), (Ids{test::kBegin, kHello}));
    const halflife::test::TempDir dir;
    tokenizer->Save(dir.path());
    EXPECT_EQ(LoadTokenizer(dir.path())->EncodeText("hello"), (Ids{test::kBegin, kHello}));
  }
  EXPECT_EQ(with(SmallBpeJson(), R"({"eos_token": "<|end|>"})")->special_ids().bos, -1)
      << "a template without such a token";
  json["added_tokens"].back()["special"] = false;
  EXPECT_EQ(with(json, R"({"eos_token": "<|end|>"})")->special_ids().bos, -1)
      << "a token that is not special";
}

// A folder of an earlier version does not say so, and its texts had no bos.
TEST(BpeBosTest, SaveKeepsIt) {
  const halflife::test::TempDir dir;
  const auto tokenizer = MakeBpe(test::SmallBpeWithBosJson());
  tokenizer->Save(dir.path());
  EXPECT_TRUE(LoadTokenizer(dir.path())->begins_with_bos());
  EXPECT_EQ(LoadTokenizer(dir.path())->Files(), tokenizer->Files());
  auto config = ordered_json::parse(test::ReadText(dir / "tokenizer_config.json"));
  EXPECT_EQ(config.at("add_bos_token"), true);
  config.erase("add_bos_token");
  test::WriteText(dir / "tokenizer_config.json", config.dump());
  EXPECT_FALSE(LoadTokenizer(dir.path())->begins_with_bos());
}

struct Refusal {
  const char* words;
  Change change;
};

TEST(BpeRefusalTest, EveryPartThatIsNotReadIsNamed) {
  const Refusal refusals[] = {
      {"model of type WordPiece", [](auto& j) { j["model"]["type"] = "WordPiece"; }},
      {"model of type Unigram", [](auto& j) { j["model"]["type"] = "Unigram"; }},
      {"normalizer of type 'NFKC'",
       [](auto& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"pre_tokenizer of type 'Metaspace'",
       [](auto& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       }},
      {"pre_tokenizer of type ''", [](auto& j) { j["pre_tokenizer"] = nullptr; }},
      {"does not end in ByteLevel",
       [](auto& j) {
         j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
       }},
      {"pre_tokenizer after ByteLevel",
       [](auto& j) {
         ordered_json& parts = j["pre_tokenizer"]["pretokenizers"];
         std::swap(parts[0], parts[1]);
       }},
      {"behavior 'MergedWithNext'",
       [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; }},
      {"decoder of type 'WordPiece'", [](auto& j) { j["decoder"]["type"] = "WordPiece"; }},
      {"post_processor of type 'Other'",
       [](auto& j) {
         j["post_processor"] = {{"type", "Other"}};
       }},
      {"at random (dropout)", [](auto& j) { j["model"]["dropout"] = 0.1; }},
      {"end_of_word_suffix", [](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"single_word", [](auto& j) { j["added_tokens"][2]["single_word"] = true; }},
      {"a key 'surprise' in the file", [](auto& j) { j["surprise"] = 1; }},
      {"a key 'surprise' in model", [](auto& j) { j["model"]["surprise"] = 1; }},
      {"version \"2.0\"", [](auto& j) { j["version"] = "2.0"; }},
      {"the id 300", [](auto& j) { j["model"]["vocab"]["a"] = 300; }},
      {"the id 98, but the ids of 265", [](auto& j) { j["model"]["vocab"]["a"] = 98; }},
      {"which is not a whole number from 0 to 2147483647",
       [](auto& j) { j["model"]["vocab"]["a"] = -1; }},
      {"no token for byte 97",
       [](auto& j) {
         j["model"]["vocab"].erase("a");
         j["model"]["vocab"]["zz"] = 97;
       }},
      {"no token 'xy'",
       [](auto& j) {
         j["model"]["merges"].push_back(ordered_json::array({"x", "y"}));
       }},
      {"which is not a pair", [](auto& j) { j["model"]["merges"].push_back("a b c"); }},
      {"the merge \"h e\" twice", [](auto& j) { j["model"]["merges"].push_back("h e"); }},
      {"the id 300, but it gets 265", [](auto& j) { j["added_tokens"][0]["id"] = 300; }},
      {"twice", [](auto& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }}};
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.words);
    ordered_json json = SmallBpeJson();
    refusal.change(json);
    EXPECT_HL_ERROR(MakeBpe(json), ExitCode::kData, refusal.words, "tokenizer.json",
                    "byte-level BPE");
  }
  EXPECT_HL_ERROR(MakeBpeTokenizer({{"tokenizer.json", "{"}}, "t.json"), ExitCode::kData,
                  "t.json is not JSON");
  EXPECT_HL_ERROR(MakeBpeTokenizer({{"tokenizer.json", std::string(1 << 20, '[')}}, "t.json"),
                  ExitCode::kData, "nested too deeply");
}

// Patterns that other engines may interpret differently must be refused.
TEST(BpePatternTest, RefusesWhatIsNotKnownToMeanTheSame) {
  const std::pair<const char*, const char*> cases[] = {{R"(\h+)", R"(\h)"},
                                                       {R"(\w+)", R"(\w)"},
                                                       {R"(a\b)", R"(\b)"},
                                                       {R"(\p{N}{1,3}+)", "{..}+"},
                                                       {R"(a{3}?)", "{n}?"},
                                                       {"^a", "^ or $"},
                                                       {"a$", "^ or $"},
                                                       {"[a-z&&[^b]]", "&&"},
                                                       {"[a[bc]]", "inside a class"},
                                                       {"(?<=a)b", "a group other"},
                                                       {"(?<n>a)", "a group other"},
                                                       {"(?i)a", "a group other"},
                                                       {"(a", "without its ')'"},
                                                       {"a)", "without its group"},
                                                       {"[a", "without its ]"},
                                                       {"[]", "an empty class"},
                                                       {R"(\p{Klingon})", "Klingon"},
                                                       {R"(\p{L)", "without }"},
                                                       {"*a", "nothing to repeat"},
                                                       {"a**", "nothing to repeat"},
                                                       {"a{5000}", "[0, 1000]"},
                                                       {"a{3,1}", "not a repetition"},
                                                       {"[z-a]", "reversed"},
                                                       {"(?i:fi)", "ligature"},
                                                       {"(?i:\xC3\xA9)", "outside ASCII"},
                                                       {R"((?i:\p{L}))", "\\p{..} in (?i:"},
                                                       {R"(\x{110000})", "not a code point"},
                                                       {R"(\xFF)", "a longer character"},
                                                       {"a|", "empty text"},
                                                       {R"(\s*)", "empty text"},
                                                       {"(?=a)", "empty text"},
                                                       {R"((a)\1)", R"(\1)"},
                                                       {"", "an empty pattern"},
                                                       {"a\\", "unfinished"}};
  for (const auto& [pattern, words] : cases) {
    SCOPED_TRACE(pattern);
    EXPECT_HL_ERROR(Regex::Compile(pattern), ExitCode::kData, words);
  }
}

TEST(BpePatternTest, MeansWhatOnigurumaMeans) {
  RegexScratch scratch;
  const auto first = [&](const char* pattern, std::string_view text) {
    const auto match = Regex::Compile(pattern).Find(text, 0, scratch);
    return match ? std::string(text.substr(match->begin, match->end - match->begin)) : "none";
  };
  EXPECT_EQ(first(R"(\s+)", "a\xE1\xA0\x8E\xC2\x85 b"), "\xC2\x85 ");  // U+180E is not white space.
  EXPECT_EQ(first(R"(\S+)",
                  "\n\xE1\xA0\x8E"
                  "a b"),
            "\xE1\xA0\x8E"
            "a");
  EXPECT_EQ(first(R"(\d+)", "x\xD9\xA3\xD9\xA4\xC2\xBD"), "\xD9\xA3\xD9\xA4");
  EXPECT_EQ(first(".+", "\nab\r\n"), "ab\r");
  EXPECT_EQ(first("(?i:'s)", "x'\xC5\xBF"), "'\xC5\xBF");  // The long s.
  EXPECT_EQ(first(R"([\]\-a]+)", "xx]-a"), "]-a");
  EXPECT_EQ(first(R"(\p{Han}+)", "\xE3\x80\x82\xE5\x8D\x8A"), "\xE5\x8D\x8A");
  EXPECT_EQ(first(R"(\p{^L}+)", "ab12c"), "12");
}

TEST(BpePatternTest, HostilePatternsEndInErrors) {
  const std::string text(60, 'a');
  ordered_json json = SmallBpeJson();
  ordered_json& regex = json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  regex = "(?:a+)+[bc]";
  EXPECT_HL_ERROR(MakeBpe(json)->Encode(text), ExitCode::kData, "(?:a+)+[bc]",
                  "cannot be matched within its limits");
  regex = "(?:(?:(?:a{1000}){1000}){1000})";
  EXPECT_HL_ERROR(MakeBpe(json), ExitCode::kData, "malformed");
  std::string nested;
  for (int i = 0; i < 200; ++i) nested += "(";
  regex = nested + "a" + std::string(200, ')');
  EXPECT_HL_ERROR(MakeBpe(json), ExitCode::kData, "malformed");
  regex = std::string(10000, 'a');
  EXPECT_HL_ERROR(MakeBpe(json), ExitCode::kData, "10000 bytes");
}

TEST(ByteAlphabetTest, EachByteHasItsCharacter) {
  std::string all, bytes;
  for (int byte = 0; byte < 256; ++byte) {
    all += AlphabetCharacter(static_cast<uint8_t>(byte));
    bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(BytesOfToken(all), bytes);
  EXPECT_EQ(AlphabetCharacter(' '), "\xC4\xA0");
  EXPECT_EQ(AlphabetCharacter('\n'), "\xC4\x8A");
  EXPECT_EQ(BytesOfToken(" "), std::nullopt);
  EXPECT_EQ(BytesOfToken("\xE5\x8D\x8A"), std::nullopt);
}

class TokenizerFolderTest : public testing::Test {
 protected:
  void Write(const std::map<std::string, std::string>& files) {
    for (const auto& [name, bytes] : files) test::WriteText(dir_ / name, bytes);
  }
  const halflife::test::TempDir dir_;
};

TEST_F(TokenizerFolderTest, FindsWhatIsThere) {
  EXPECT_EQ(FindTokenizer(dir_.path()), nullptr);
  EXPECT_HL_ERROR(OpenTokenizer(dir_.path().string()), ExitCode::kData, "has no tokenizer",
                  "tokenizer.json");
  Write({{"tokenizer_config.json", R"({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0})"}});
  EXPECT_EQ(OpenTokenizer(dir_.path().string())->kind(), "bytes");
  Write(BpeFiles(SmallBpeJson()));
  EXPECT_EQ(OpenTokenizer(dir_.path().string())->kind(), "bpe");
  EXPECT_EQ(OpenTokenizer((dir_ / "tokenizer.json").string())->eos_id(), test::kEnd);
  EXPECT_EQ(OpenTokenizer("bytes")->vocab_size(), 259);
  EXPECT_HL_ERROR(OpenTokenizer("nowhere"), ExitCode::kData, "--tokenizer nowhere",
                  "neither `bytes` nor");
}

// The folder of a dataset or a run has its tokenizer in a subfolder.
TEST_F(TokenizerFolderTest, OfADatasetOrRun) {
  std::filesystem::create_directory(dir_ / "tokenizer");
  MakeBpe(SmallBpeJson())->Save(dir_ / "tokenizer");
  EXPECT_EQ(OpenTokenizer(dir_.path().string())->eos_id(), test::kEnd);
  EXPECT_EQ(FindTokenizer(dir_.path()), nullptr) << "inspect reads the files of the folder itself";
}

TEST_F(TokenizerFolderTest, SaysWhatOtherFoldersHold) {
  Write({{"vocab.txt", "[CLS]\n"}});
  EXPECT_HL_ERROR(FindTokenizer(dir_.path()), ExitCode::kData, "WordPiece");
  Write({{"vocab.json", "{}"}, {"merges.txt", ""}});
  EXPECT_HL_ERROR(FindTokenizer(dir_.path()), ExitCode::kData, "no tokenizer.json",
                  "save_pretrained");
  ordered_json unigram = SmallBpeJson();
  unigram["model"] = {{"type", "Unigram"}, {"vocab", ordered_json::array()}};
  Write({{"tokenizer.json", unigram.dump()}});
  EXPECT_HL_ERROR(FindTokenizer(dir_.path()), ExitCode::kData, "model of type Unigram",
                  "sentencepiece .model");
}

}  // namespace
}  // namespace halflife::data
