// The byte and sentencepiece tokenizers: ids, round trips, streaming and special tokens.
#include "data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/sentencepiece_bridge.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/small_datasets.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using test::RandomDocuments;

const std::string kUnicode =
    "plain, \xC3\xA4\xC3\x9F, \xE2\x82\xAC, \xE5\x8D\x8A, \xF0\x9F\x99\x82\n\n  tab\tend ";

std::vector<std::string> TrainingLines() {
  std::vector<HashedLine> lines;
  for (const std::string& document : RandomDocuments(400, 3)) AppendHashedLines(document, lines);
  LineSample sample(1 << 20);
  sample.Add(std::move(lines));
  return std::move(sample).Sorted();
}

std::unique_ptr<Tokenizer> SmallSentencePiece() {
  return MakeSentencePieceTokenizer(TrainSentencePiece(TrainingLines(), 340));
}

// Expects that the pieces of a stream are whole characters and add up to Decode.
void ExpectStreamEqualsDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string all;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos) << "a character was split";
    all += piece;
  }
  all += decoder.Finish();
  EXPECT_EQ(all, tokenizer.Decode(ids));
}

TEST(ByteTokenizerTest, UsesTheLayoutOfByT5) {
  const auto tokenizer = MakeByteTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->Encode("Aa\n"), (std::vector<int32_t>{68, 100, 13}));
  EXPECT_EQ(tokenizer->Decode({0, 68, 1, 2, 100}), "Aa");
}

TEST(ByteTokenizerTest, EveryByteComesBack) {
  const auto tokenizer = MakeByteTokenizer();
  std::string all;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; second += 5) {
      all += static_cast<char>(first);
      all += static_cast<char>(second);
    }
  }
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(all)), all);
  std::vector<int32_t> appended = {1};
  tokenizer->EncodeAppend("ab", SpecialTokens::kPlain, appended);
  EXPECT_EQ(appended, (std::vector<int32_t>{1, 100, 101}));
}

TEST(StreamDecoderTest, NeverSplitsACharacter) {
  const auto bytes = MakeByteTokenizer();
  ExpectStreamEqualsDecode(*bytes, bytes->Encode(kUnicode));
  StreamDecoder decoder(*bytes);
  EXPECT_EQ(decoder.Push(0xE2 + 3), "");
  EXPECT_EQ(decoder.Push(0x82 + 3), "");
  EXPECT_EQ(decoder.Push(0xAC + 3), "\xE2\x82\xAC");
  EXPECT_EQ(decoder.Push(1), "");  // eos
}

TEST(StreamDecoderTest, InvalidBytesDoNotBlockWhatFollows) {
  const auto bytes = MakeByteTokenizer();
  StreamDecoder decoder(*bytes);
  EXPECT_EQ(decoder.Push(0xE2 + 3), "");
  EXPECT_EQ(decoder.Push('a' + 3),
            "\xE2"
            "a");
  EXPECT_EQ(decoder.Push(0xC3 + 3), "");
  EXPECT_EQ(decoder.Finish(), "\xC3");
}

TEST(BytesFolderTest, BytesComesBack) {
  const halflife::test::TempDir dir;
  MakeByteTokenizer()->Save(dir.path());
  EXPECT_EQ(LoadTokenizer(dir.path())->kind(), "bytes");
}

TEST(BytesFolderTest, SaysWhatIsMissing) {
  const halflife::test::TempDir dir;
  EXPECT_HL_ERROR(LoadTokenizer(dir.path()), ExitCode::kData, "no tokenizer in", "kind.txt");
  test::WriteText(dir / "kind.txt", "wordpiece\n");
  EXPECT_HL_ERROR(LoadTokenizer(dir.path()), ExitCode::kData, "wordpiece", "sentencepiece");
}

TEST(SentencePieceTest, RoundTripsAnyUnicode) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const auto tokenizer = SmallSentencePiece();
  EXPECT_EQ(tokenizer->vocab_size(), 340);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  std::vector<std::string> texts = RandomDocuments(50, 9);
  texts.insert(texts.end(), {kUnicode, " ", "  leading and trailing  ", "\n\n\n", "</s><pad><unk>",
                             std::string("nul \0 inside", 12)});
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->eos_id()), 0) << text;
    ExpectStreamEqualsDecode(*tokenizer, ids);
  }
}

TEST(SpecialTokensTest, BytesHaveNoNames) {
  const auto tokenizer = MakeByteTokenizer();
  EXPECT_EQ(tokenizer->Encode("a</s>", SpecialTokens::kParse), tokenizer->Encode("a</s>"));
  NameCounts counts;
  tokenizer->CountSpecialNames("a</s>", counts);
  EXPECT_TRUE(counts.empty());
}

// <unk> 0, <s> 1, </s> 2, then bytes, a, b, ... and the space mark. Each text gets a leading space.
TEST(SpecialTokensTest, SentencePiecesByName) {
  SKIP_WITHOUT_SENTENCEPIECE();
  auto model = interop::test::SmallSentencePiece(true);
  model.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  const auto tokenizer = MakeSentencePieceTokenizer(model.SerializeAsString());
  const int a = 259, abc = 264, space = 265;
  const std::string text = "<s>abc</s></s>a<unk>";
  EXPECT_EQ(tokenizer->Encode(text, SpecialTokens::kParse),
            (std::vector<int32_t>{1, space, abc, 2, 2, space, a, 0}))
      << "each part between special tokens is a text";
  for (const int32_t id : tokenizer->Encode(text)) EXPECT_GT(id, 2);
  NameCounts counts;
  tokenizer->CountSpecialNames(text, counts);
  EXPECT_EQ(counts, (NameCounts{{"</s>", 2}, {"<s>", 1}, {"<unk>", 1}}));
  EXPECT_TRUE(UnknownCharacters(*tokenizer, text, SpecialTokens::kParse).empty());
}

// The rules of the pre-tokenizer Metaspace and of transformers' LlamaTokenizer.
TEST(SentencePieceTest, SpacesInFrontOfText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  struct Case {
    PrefixSpace rule;
    const char* text;
    std::vector<int32_t> ids;
  };
  const int a = 259, b = 260, space = 265;
  const Case cases[] = {
      {PrefixSpace::kModel, "a</s>b", {space, a, 2, space, b}},
      {PrefixSpace::kModel, " a</s> b", {space, space, a, 2, space, space, b}},
      {PrefixSpace::kAlways, "a</s>b", {space, a, 2, space, b}},
      {PrefixSpace::kAlways, " a</s> b", {space, a, 2, space, b}},
      {PrefixSpace::kFirst, "a</s>b", {space, a, 2, b}},
      {PrefixSpace::kFirst, " a</s> b", {space, a, 2, space, b}},
      {PrefixSpace::kFirst, "<s>a", {1, a}},
      {PrefixSpace::kNever, "a</s> b", {a, 2, space, b}},
  };
  auto model = interop::test::SmallSentencePiece(true);
  model.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  for (const Case& test : cases) {
    const auto tokenizer = MakeSentencePieceTokenizer(model.SerializeAsString(), test.rule);
    SCOPED_TRACE(Concat(static_cast<int>(test.rule), " ", test.text));
    EXPECT_EQ(tokenizer->Encode(test.text, SpecialTokens::kParse), test.ids);
    const halflife::test::TempDir dir;
    tokenizer->Save(dir.path());
    const auto loaded = LoadTokenizer(dir.path());
    EXPECT_EQ(loaded->prefix_space(), test.rule);
    EXPECT_EQ(loaded->Encode(test.text, SpecialTokens::kParse), test.ids);
  }
}

TEST(SentencePieceTest, TheFolderDecidesWhereSpacesAreAdded) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  test::WriteText(dir / "tokenizer.model",
                  interop::test::SmallSentencePiece(true).SerializeAsString());
  const auto rule = [&](const char* config, const char* pre_tokenizer) {
    test::WriteText(dir / "tokenizer_config.json", config);
    test::WriteText(
        dir / "tokenizer.json",
        Concat(R"({"decoder": {"type": "Sequence"}, "pre_tokenizer": )", pre_tokenizer, "}"));
    return FindTokenizer(dir.path())->prefix_space();
  };
  const char* first = R"({"type": "Metaspace", "prepend_scheme": "first"})";
  EXPECT_EQ(rule("{}", "null"), PrefixSpace::kModel);
  EXPECT_EQ(rule("{}", first), PrefixSpace::kFirst);
  EXPECT_EQ(rule("{}", R"({"type": "Metaspace"})"), PrefixSpace::kAlways);
  EXPECT_EQ(rule("{}", R"({"type": "Metaspace", "add_prefix_space": false})"), PrefixSpace::kNever);
  const char* classes[] = {R"({"tokenizer_class": "LlamaTokenizer"})",
                           R"({"tokenizer_class": "LlamaTokenizerFast", "legacy": false})",
                           R"({"tokenizer_class": "CodeLlamaTokenizer", "legacy": true})"};
  for (const char* config : classes) EXPECT_EQ(rule(config, "null"), PrefixSpace::kFirst) << config;
  const char* legacy = R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})";
  EXPECT_EQ(rule(legacy, first), PrefixSpace::kAlways);
  const char* without = R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false})";
  EXPECT_EQ(rule(without, first), PrefixSpace::kNever);
}

// Such a model has no pieces for spaces at the beginning of a text.
TEST(SentencePieceTest, AModelThatRemovesSpacesKeepsItsRule) {
  SKIP_WITHOUT_SENTENCEPIECE();
  auto model = interop::test::SmallSentencePiece(true);
  model.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(true);
  const auto tokenizer = MakeSentencePieceTokenizer(model.SerializeAsString(), PrefixSpace::kFirst);
  EXPECT_EQ(tokenizer->prefix_space(), PrefixSpace::kModel);
  EXPECT_EQ(tokenizer->Encode(" a"), tokenizer->Encode("a"));
}

TEST(SentencePieceTest, AnUnknownRuleForSpacesIsNamed) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  SmallSentencePiece()->Save(dir.path());
  test::WriteText(dir / "tokenizer_config.json", R"({"prepend_scheme": "last"})");
  EXPECT_HL_ERROR(LoadTokenizer(dir.path()), ExitCode::kData, "tokenizer_config.json", "\"last\"",
                  "Use \"always\"");
}

TEST(SentencePieceTest, SavedModelIsTheSame) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  const auto tokenizer = SmallSentencePiece();
  tokenizer->Save(dir.path());
  const auto loaded = LoadTokenizer(dir.path());
  EXPECT_EQ(loaded->kind(), "sentencepiece");
  EXPECT_EQ(loaded->Encode(kUnicode), tokenizer->Encode(kUnicode));
}

TEST(SentencePieceTest, TextsBeginWithBosIfTheirFolderSaysSo) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  test::WriteText(dir / "hf/tokenizer.model",
                  interop::test::SmallSentencePiece(true).SerializeAsString());
  const auto find = [&] { return FindTokenizer(dir / "hf"); };
  EXPECT_FALSE(find()->begins_with_bos());
  test::WriteText(dir / "hf/tokenizer_config.json", R"({"add_bos_token": true})");
  EXPECT_EQ(find()->EncodeText("a"), (std::vector<int32_t>{1, 259}));
  std::filesystem::create_directory(dir / "run");
  find()->Save(dir / "run");
  EXPECT_EQ(LoadTokenizer(dir / "run")->EncodeText("a"), (std::vector<int32_t>{1, 259}));
  // tokenizer.json comes first.
  const auto write = [&](const char* name) {
    test::WriteText(
        dir / "hf/tokenizer.json",
        Concat(R"({"model": {"type": "BPE", "byte_fallback": true}, "post_processor": )",
               R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": ")", name,
               R"("}}, {"Sequence": {"id": "A"}}]}})"));
  };
  write("</s>");
  EXPECT_FALSE(find()->begins_with_bos());
  write("<s>");
  EXPECT_TRUE(find()->begins_with_bos());
}

TEST(SentencePieceTest, TrainingIsDeterministic) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const std::vector<std::string> lines = TrainingLines();
  EXPECT_EQ(TrainSentencePiece(lines, 340), TrainSentencePiece(lines, 340));
}

// One in 24,000 characters, as in Chinese: too rare for the training to make a piece.
TEST(SentencePieceTest, SpacesComeBackHoweverRareTheyWere) {
  SKIP_WITHOUT_SENTENCEPIECE();
  std::vector<std::string> lines = {"\u4e00 \u4e01"};
  for (uint32_t line = 0; line < 1200; ++line) {
    std::string& text = lines.emplace_back();
    for (uint32_t i = 0; i < 20; ++i) {
      const uint32_t code = 0x4e00 + (line * 20 + i) * 7919 % 191;
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    }
  }
  const auto tokenizer = MakeSentencePieceTokenizer(TrainSentencePiece(lines, 500));
  for (const char* text : {"\u4e00 \u4e01", "a b  c", " "})
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
}

TEST(SentencePieceTest, DamagedBytesDecodeToTheReplacementCharacter) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const auto tokenizer = SmallSentencePiece();
  std::vector<int32_t> ids = tokenizer->Encode("\xF0\x9F\xA6\x80");  // Unseen: four byte pieces.
  ASSERT_EQ(ids.size(), 4u);
  ids.pop_back();
  EXPECT_EQ(tokenizer->Decode(ids), kReplacementCharacter);
  ExpectStreamEqualsDecode(*tokenizer, ids);
}

// The space that a dummy prefix puts in front of a text is not part of the text. That of a later
// piece is.
TEST(StreamDecoderTest, GoesOnFromAText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  proto::sentencepiece::ModelProto pieces = interop::test::SmallSentencePiece(true);
  pieces.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  const auto tokenizer = MakeSentencePieceTokenizer(pieces.SerializeAsString());
  const auto decoded = [&](StreamDecoder decoder, const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += decoder.Push(id);
    return text + decoder.Finish();
  };
  const std::vector<int32_t> ids = tokenizer->Encode("ab c");
  EXPECT_EQ(decoded(StreamDecoder(*tokenizer), ids), "ab c");
  for (size_t split = 1; split <= ids.size(); ++split) {
    const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(split);
    EXPECT_EQ(decoded(StreamDecoder(*tokenizer), {ids.begin(), middle}) +
                  decoded(StreamDecoder(*tokenizer, StreamDecoder::Begins::kAfterText),
                          {middle, ids.end()}),
              "ab c")
        << split;
  }
}

TEST(SentencePieceTest, ErrorsCarryItsWords) {
  SKIP_WITHOUT_SENTENCEPIECE();
  EXPECT_HL_ERROR(MakeSentencePieceTokenizer("no model at all"), ExitCode::kData,
                  "not a sentencepiece model", "--train-tokenizer");
  try {
    TrainSentencePiece(TrainingLines(), 100000);
    ADD_FAILURE() << "a vocabulary of more pieces than the text has";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("Vocabulary size too high"));
    EXPECT_THAT(error.message(), testing::ContainsRegex("[0-9]\\. Use another --vocab"));
  }
  EXPECT_HL_ERROR(TrainSentencePiece(TrainingLines(), 10), ExitCode::kData, "Vocabulary size",
                  "--vocab");
}

TEST(LineSampleTest, KeepsTheSameLinesInAnyOrder) {
  std::vector<HashedLine> lines;
  for (const std::string& document : RandomDocuments(500, 11)) AppendHashedLines(document, lines);
  constexpr int64_t kBudget = 4000;
  LineSample forward(kBudget), backward(kBudget);
  forward.Add(lines);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) backward.Add({*line});
  const std::vector<std::string> sample = std::move(forward).Sorted();
  EXPECT_EQ(sample, std::move(backward).Sorted());
  int64_t bytes = 0;
  for (const std::string& line : sample) bytes += static_cast<int64_t>(line.size());
  EXPECT_GE(bytes, kBudget);
  EXPECT_LT(bytes - static_cast<int64_t>(sample.back().size()), kBudget);
}

TEST(LineSampleTest, CutsLongLinesBetweenCharacters) {
  std::string line;
  for (int i = 0; i < 5000; ++i) line += "\xE2\x82\xAC";
  std::vector<HashedLine> lines;
  AppendHashedLines(line + "\ttail", lines);
  std::string joined;
  for (const HashedLine& part : lines) {
    EXPECT_LE(part.text.size(), 4096u);
    EXPECT_EQ(FindInvalidUtf8(part.text), std::string::npos);
    joined += part.text;
  }
  EXPECT_EQ(joined, line + "tail");
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8(kUnicode), std::string::npos);
  const std::string ascii(40, 'a');
  const std::pair<const char*, size_t> cases[] = {
      {"\x80", 0},         {"\xC0\x80", 0},         {"\xC1\xBF", 0},         {"\xE0\x9F\x80", 0},
      {"\xED\xA0\x80", 0}, {"\xF0\x8F\xBF\xBF", 0}, {"\xF4\x90\x80\x80", 0}, {"\xF5", 0},
      {"\xFF", 0},         {"\xE2\x82", 0},         {"\xE2\x82z", 0},        {"\xC3\xA4\xC3", 2}};
  for (const auto& [bytes, at] : cases) {
    EXPECT_EQ(FindInvalidUtf8(ascii + bytes), 40 + at);
    EXPECT_EQ(FindInvalidUtf8(bytes + ascii), at);
  }
}

TEST(Utf8Test, ReplacesEachMaximalPart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE2\x82z\xFF\xFEq\xC3"), "a" + r + "z" + r + r + "q" + r);
  EXPECT_EQ(ReplaceInvalidUtf8(kUnicode), kUnicode);
  // A surrogate: none of its bytes is valid.
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);
}

TEST(Utf8Test, IncompleteTail) {
  EXPECT_EQ(IncompleteUtf8Tail("abc"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xE2\x82\xAC"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("a\xE2\x82"), 2u);
  EXPECT_EQ(IncompleteUtf8Tail("\xF0\x9F\x99"), 3u);
  EXPECT_EQ(IncompleteUtf8Tail("\xC3\xA4\xC3"), 1u);
  EXPECT_EQ(IncompleteUtf8Tail("\x82\x82\x82"), 0u);  // It cannot be completed.
}

}  // namespace
}  // namespace halflife::data
