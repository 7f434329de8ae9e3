// The Hugging Face form of each tokenizer. hf_tokenizer_compare.py checks how transformers reads
// it.
#include "interop/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/sentencepiece_tokenizer.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "data/tokenizer_folder.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::interop {
namespace {

using nlohmann::json;
using proto::sentencepiece::ModelProto;

TEST(HfTokenizerTest, BytesAreByT5) {
  const halflife::test::TempDir dir;
  WriteHfTokenizer(*data::MakeByteTokenizer(), dir.path());
  EXPECT_EQ(data::test::Names(dir.path()), (std::vector<std::string>{"tokenizer_config.json"}));
  const json config = json::parse(data::test::ReadText(dir / "tokenizer_config.json"));
  EXPECT_EQ(config.at("tokenizer_class"), "ByT5Tokenizer");
  EXPECT_EQ(config.at("extra_ids"), 0);
  EXPECT_EQ(LoadHfTokenizer(dir.path())->kind(), "bytes");
}

// For classes that cannot load ByT5. The files are those of a BPE tokenizer with the ids of bytes.
TEST(HfTokenizerTest, BytesAreBpeWithoutMerges) {
  const halflife::test::TempDir dir;
  const auto bytes = data::MakeByteTokenizer();
  WriteHfTokenizer(*bytes, dir.path(), BytesForm::kTokenizerJson);
  const auto bpe = data::OpenTokenizer((dir / "tokenizer.json").string());
  EXPECT_EQ(bpe->kind(), "bpe");
  EXPECT_EQ(bpe->vocab_size(), bytes->vocab_size());
  EXPECT_EQ(bpe->special_ids(), bytes->special_ids());
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const std::string texts[] = {text.substr(0, 128), "two  spaces \n", "\xC3\xBC \xE6\x97\xA5"};
  for (const std::string& line : texts) {
    EXPECT_EQ(bpe->Encode(line), bytes->Encode(line));
    EXPECT_EQ(bpe->Decode(bytes->Encode(line)), line);
  }
  const auto loaded = LoadHfTokenizer(dir.path());
  EXPECT_EQ(loaded->kind(), "bytes");
  EXPECT_EQ(HfTokenizerFiles(*loaded, BytesForm::kTokenizerJson),
            HfTokenizerFiles(*bytes, BytesForm::kTokenizerJson));
}

TEST(HfTokenizerTest, BpeGoesAsItCame) {
  const halflife::test::TempDir dir;
  const auto tokenizer = data::test::MakeBpe(data::test::SmallBpeJson());
  WriteHfTokenizer(*tokenizer, dir.path());
  EXPECT_EQ(data::test::ReadText(dir / "tokenizer.json"), data::test::SmallBpeJson().dump());
  EXPECT_EQ(json::parse(data::test::ReadText(dir / "tokenizer_config.json")),
            json({{"tokenizer_class", "PreTrainedTokenizerFast"},
                  {"eos_token", "<|end|>"},
                  {"pad_token", "<|pad|>"}}));
  const auto loaded = LoadHfTokenizer(dir.path());
  EXPECT_EQ(loaded->special_ids(), tokenizer->special_ids());
  EXPECT_EQ(HfTokenizerFiles(*loaded), HfTokenizerFiles(*tokenizer));
}

TEST(HfTokenizerTest, SentencePieceComesBackFromItsModel) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  const auto tokenizer = data::MakeSentencePieceTokenizer(
      data::TrainSentencePiece(data::test::RandomDocuments(400, 1), 340));
  WriteHfTokenizer(*tokenizer, dir.path());
  EXPECT_EQ(
      data::test::Names(dir.path()),
      (std::vector<std::string>{"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}));
  EXPECT_EQ(json::parse(data::test::ReadText(dir / "tokenizer_config.json")),
            json({{"tokenizer_class", "PreTrainedTokenizerFast"},
                  {"eos_token", "</s>"},
                  {"pad_token", "<pad>"},
                  {"unk_token", "<unk>"}}));
  const auto loaded = LoadHfTokenizer(dir.path());
  EXPECT_EQ(loaded->kind(), "sentencepiece");
  EXPECT_EQ(loaded->special_ids(), tokenizer->special_ids());
  EXPECT_EQ(loaded->Encode("half of memory"), tokenizer->Encode("half of memory"));
}

TEST(HfTokenizerTest, TextsStillBeginWithBos) {
  std::vector<std::unique_ptr<data::Tokenizer>> tokenizers;
  tokenizers.push_back(data::test::MakeBpe(data::test::SmallBpeWithBosJson()));
#ifndef __SANITIZE_ADDRESS__
  tokenizers.push_back(
      data::MakeSentencePieceTokenizer(test::SmallSentencePiece(true).SerializeAsString()));
  tokenizers.back()->set_begins_with_bos(true);
#endif
  for (const auto& tokenizer : tokenizers) {
    SCOPED_TRACE(tokenizer->kind());
    const halflife::test::TempDir dir;
    WriteHfTokenizer(*tokenizer, dir.path());
    const auto loaded = LoadHfTokenizer(dir.path());
    EXPECT_TRUE(loaded->begins_with_bos());
    EXPECT_EQ(loaded->EncodeText("abc"), tokenizer->EncodeText("abc"));
    EXPECT_EQ(HfTokenizerFiles(*loaded), HfTokenizerFiles(*tokenizer));
  }
}

TEST(HfTokenizerTest, SpacesInFrontOfTextAreKept) {
  SKIP_WITHOUT_SENTENCEPIECE();
  for (const auto rule :
       {data::PrefixSpace::kAlways, data::PrefixSpace::kFirst, data::PrefixSpace::kNever}) {
    const auto tokenizer =
        data::MakeSentencePieceTokenizer(test::SmallSentencePiece(true).SerializeAsString(), rule);
    const halflife::test::TempDir dir;
    WriteHfTokenizer(*tokenizer, dir.path());
    const auto loaded = LoadHfTokenizer(dir.path());
    EXPECT_EQ(loaded->prefix_space(), rule);
    EXPECT_EQ(HfTokenizerFiles(*loaded), HfTokenizerFiles(*tokenizer));
  }
}

TEST(HfTokenizerTest, ChatTemplatesOfAllKinds) {
  const data::ChatTemplates templates = {{"default", "{{ messages }}"}, {"rag", "r"}};
  std::vector<std::unique_ptr<data::Tokenizer>> tokenizers;
  tokenizers.push_back(data::MakeByteTokenizer());
  tokenizers.push_back(data::test::MakeBpe(data::test::SmallBpeJson()));
#ifndef __SANITIZE_ADDRESS__
  tokenizers.push_back(
      data::MakeSentencePieceTokenizer(test::SmallSentencePiece(true).SerializeAsString()));
#endif
  for (const auto& tokenizer : tokenizers) {
    SCOPED_TRACE(tokenizer->kind());
    const halflife::test::TempDir exported, run;
    tokenizer->set_chat_templates(templates);
    WriteHfTokenizer(*tokenizer, exported.path());
    EXPECT_EQ(data::test::ReadText(exported / "chat_template.jinja"), "{{ messages }}");
    const auto loaded = LoadHfTokenizer(exported.path());
    EXPECT_EQ(loaded->chat_templates(), templates);
    loaded->Save(run.path());
    EXPECT_EQ(data::LoadTokenizer(run.path())->chat_templates(), templates);
  }
}

TEST(HfTokenizerTest, AFolderWithoutATokenizer) {
  const halflife::test::TempDir dir;
  data::test::WriteText(dir / "config.json", "{}");
  EXPECT_EQ(LoadHfTokenizer(dir.path()), nullptr);
}

// Tokens that occur only in tokenizer.json or added_tokens.json would be lost silently.
TEST(HfTokenizerTest, AddedTokensNextToASentencePieceModel) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const halflife::test::TempDir dir;
  WriteHfTokenizer(*data::MakeSentencePieceTokenizer(
                       data::TrainSentencePiece(data::test::RandomDocuments(400, 1), 340)),
                   dir.path());
  json changed = json::parse(data::test::ReadText(dir / "tokenizer.json"));
  json token = changed.at("added_tokens").front();
  token["id"] = 340;
  token["content"] = "<|im_start|>";
  changed["added_tokens"].push_back(token);
  data::test::WriteText(dir / "tokenizer.json", changed.dump());
  EXPECT_HL_ERROR(LoadHfTokenizer(dir.path()), ExitCode::kData, "<|im_start|>", "tokenizer.model");

  std::filesystem::remove(dir / "tokenizer.json");
  data::test::WriteText(dir / "added_tokens.json", R"({"</s>": 2})");
  EXPECT_NE(LoadHfTokenizer(dir.path()), nullptr);
  data::test::WriteText(dir / "added_tokens.json", R"({"</s>": 2, "<|im_end|>": 340})");
  EXPECT_HL_ERROR(LoadHfTokenizer(dir.path()), ExitCode::kData,
                  "added_tokens.json adds a token to those of tokenizer.model", "<|im_end|>");
}

json Convert(const ModelProto& model) {
  return json::parse(
      ConvertSentencePiece(model.SerializeAsString(), {.bos = 1, .eos = 2, .unk = 0}).tokenizer);
}

TEST(SentencePieceJsonTest, MergesAreRankedByTheScoreOfTheWhole) {
  const json model = Convert(test::SmallSentencePiece(true)).at("model");
  EXPECT_EQ(model.at("type"), "BPE");
  EXPECT_EQ(model.at("vocab").at("abc"), 264);
  // The scores are ab -3, bc -4, and abc -5 in its two ways. "a bc" has the smaller left id.
  EXPECT_EQ(model.at("merges"),
            json::parse(R"([["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"]])"));
  EXPECT_EQ(model.at("byte_fallback"), true);
}

TEST(SentencePieceJsonTest, UnigramKeepsItsScores) {
  const json model = Convert(test::SmallSentencePiece(false)).at("model");
  EXPECT_EQ(model.at("type"), "Unigram");
  EXPECT_EQ(model.at("vocab").at(264), json::array({"abc", -5.0}));
  EXPECT_EQ(model.at("unk_id"), 0);
}

TEST(SentencePieceJsonTest, NormalisationInOrder) {
  ModelProto model = test::SmallSentencePiece(true);
  model.mutable_normalizer_spec()->set_precompiled_charsmap("\x01\x02\x03\xFF");
  model.mutable_normalizer_spec()->set_add_dummy_prefix(true);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(true);
  const json tokenizer = Convert(model);
  std::vector<std::string> types;
  for (const json& step : tokenizer.at("normalizer").at("normalizers"))
    types.push_back(step.at("type"));
  EXPECT_EQ(types,
            (std::vector<std::string>{"Precompiled", "Replace", "Replace", "Prepend", "Replace"}));
  EXPECT_EQ(tokenizer.at("normalizer").at("normalizers").at(0).at("precompiled_charsmap"),
            "AQID/w==");
  EXPECT_EQ(tokenizer.at("decoder").at("decoders").size(), 4u);
  EXPECT_EQ(Convert(test::SmallSentencePiece(true)).at("normalizer").at("normalizers").size(), 1u);
}

TEST(SentencePieceJsonTest, RefusesWhatHasNoExactForm) {
  struct Refusal {
    const char* words;
    std::function<void(ModelProto&)> change;
  };
  const Refusal refusals[] = {
      {"type word", [](auto& m) { m.mutable_trainer_spec()->set_model_type(3); }},
      {"type char", [](auto& m) { m.mutable_trainer_spec()->set_model_type(4); }},
      {"spaces as suffixes",
       [](auto& m) { m.mutable_trainer_spec()->set_treat_whitespace_as_suffix(true); }},
      {"does not escape spaces",
       [](auto& m) { m.mutable_normalizer_spec()->set_escape_whitespaces(false); }},
      {"user-defined piece, 'a'", [](auto& m) { m.mutable_pieces(259)->set_type(4); }},
      {"unused piece, 'a'", [](auto& m) { m.mutable_pieces(259)->set_type(5); }},
      {"piece 'a' twice", [](auto& m) { m.mutable_pieces(260)->set_piece("a"); }},
      {"not UTF-8", [](auto& m) { m.mutable_pieces(260)->set_piece("\xFF"); }},
      {"no finite score", [](auto& m) { m.mutable_pieces(260)->set_score(NAN); }},
      {"two unknown pieces", [](auto& m) { m.mutable_pieces(260)->set_type(2); }},
      {"no unknown piece", [](auto& m) { m.mutable_pieces(0)->set_type(3); }},
      {"255 byte pieces", [](auto& m) { m.mutable_pieces(10)->set_type(1); }},
      {"no byte piece <0x07>", [](auto& m) { m.mutable_pieces(10)->set_piece("x"); }},
      {"no special piece 1", [](auto& m) { m.mutable_pieces(1)->set_type(1); }}};
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.words);
    ModelProto model = test::SmallSentencePiece(true);
    refusal.change(model);
    EXPECT_HL_ERROR(Convert(model), ExitCode::kData, refusal.words, "cannot be expressed exactly");
  }
  EXPECT_HL_ERROR(ConvertSentencePiece("\xFF", {}), ExitCode::kData, "not a sentencepiece model");
}

}  // namespace
}  // namespace halflife::interop
