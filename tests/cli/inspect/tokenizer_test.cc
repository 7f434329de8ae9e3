// The description by inspect of tokenizers, of datasets and from other programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class InspectTokenizerTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  // Writes the files of a Hugging Face model's folder.
  void WriteBpe(const std::string& folder) {
    for (const auto& [name, bytes] : data::test::BpeFiles(data::test::SmallBpeJson())) {
      Write(folder + "/" + name, bytes);
    }
  }
  void Save(const data::Tokenizer& tokenizer, const std::string& folder) {
    fs::create_directories(dir_ / folder);
    tokenizer.Save(dir_ / folder);
  }
  test::TempDir dir_;
};

TEST_F(InspectTokenizerTest, Bytes) {
  Save(*data::MakeByteTokenizer(), "tokenizer");
  const Json json = Describe(dir_ / "tokenizer");
  EXPECT_EQ(json["kind"], "tokenizer");
  EXPECT_EQ(json["tokenizer"], "bytes");
  EXPECT_EQ(json["vocab_size"], 259);
  EXPECT_EQ(json["text_ids"], 256);
  EXPECT_EQ(json["longest_text_bytes"], 1);
  EXPECT_TRUE(json["bos_id"].is_null());
  EXPECT_EQ(json["eos_id"], 1);
  EXPECT_EQ(json["pad_id"], 0);
  EXPECT_EQ(json["unk_id"], 2);
  EXPECT_EQ(json["keeps_invalid_bytes"], true);
  EXPECT_TRUE(json["files"].empty());
  Write("byt5/tokenizer_config.json", R"({"tokenizer_class": "ByT5Tokenizer"})");
  EXPECT_EQ(Describe(dir_ / "byt5")["hash"], json["hash"]);
}

TEST_F(InspectTokenizerTest, BpeAsItCameAndAsADatasetKeepsIt) {
  WriteBpe("hf");
  Save(*data::test::MakeBpe(data::test::SmallBpeJson()), "kept");
  const Json json = Describe(dir_ / "hf");
  EXPECT_EQ(json["tokenizer"], "bpe");
  EXPECT_EQ(json["vocab_size"], 268);
  EXPECT_EQ(json["text_ids"], 266);          // All except <|end|> and <|pad|>.
  EXPECT_EQ(json["longest_text_bytes"], 6);  // " hello", "<tool>".
  EXPECT_EQ(json["eos_id"], data::test::kEnd);
  EXPECT_EQ(json["pad_id"], data::test::kPad);
  EXPECT_TRUE(json["unk_id"].is_null());
  EXPECT_EQ(json["keeps_invalid_bytes"], false);
  EXPECT_EQ(json["files"][0]["file"], "tokenizer.json");
  EXPECT_EQ(json["files"][0]["bytes"], fs::file_size(dir_ / "hf/tokenizer.json"));
  EXPECT_EQ(Describe(dir_ / "kept")["hash"], json["hash"]);
  const Json bare = Describe(dir_ / "hf/tokenizer.json");
  EXPECT_EQ(bare["kind"], "tokenizer");
  EXPECT_EQ(bare["hash"], json["hash"]);

  Json other = data::test::SmallBpeJson();
  other["model"]["merges"].erase(0);  // One merge less, the same vocabulary.
  Write("hf/tokenizer.json", other.dump());
  EXPECT_NE(Describe(dir_ / "hf")["hash"], json["hash"]);
}

TEST_F(InspectTokenizerTest, SentencePiece) {
  SKIP_WITHOUT_SENTENCEPIECE();
  std::vector<data::HashedLine> lines;
  for (const std::string& text : data::test::RandomDocuments(400, 3)) {
    data::AppendHashedLines(text, lines);
  }
  data::LineSample sample(1 << 20);
  sample.Add(std::move(lines));
  const std::string model = data::TrainSentencePiece(std::move(sample).Sorted(), 340);
  Save(*data::MakeSentencePieceTokenizer(model), "tokenizer");
  const Json json = Describe(dir_ / "tokenizer");
  EXPECT_EQ(json["tokenizer"], "sentencepiece");
  EXPECT_EQ(json["vocab_size"], 340);
  EXPECT_EQ(json["text_ids"], 337);  // All except pad, eos and unk.
  EXPECT_EQ(json["eos_id"], 1);
  EXPECT_EQ(json["files"][0]["bytes"], model.size());
  Write("bare.model", model);
  EXPECT_EQ(Describe(dir_ / "bare.model")["hash"], json["hash"]);
  Write("cut.model", model.substr(0, model.size() / 2));
  EXPECT_HL_ERROR(Describe(dir_ / "cut.model"), ExitCode::kData, "cut.model", "sentencepiece");
}

TEST_F(InspectTokenizerTest, HostileAndUnknownFiles) {
  Write("odd/kind.txt", "words\n");
  EXPECT_HL_ERROR(Describe(dir_ / "odd"), ExitCode::kData, "kind.txt", "'words'", "bytes");
  Write("other/tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  EXPECT_HL_ERROR(Describe(dir_ / "other"), ExitCode::kData, "not ByT5's", "tokenizer.model");
  Write("no/tokenizer.json", "[1, 2");
  EXPECT_HL_ERROR(Describe(dir_ / "no/tokenizer.json"), ExitCode::kData, "is not JSON");
  Write("unigram/tokenizer.json",
        R"({"version": "1.0", "model": {"type": "Unigram", "vocab": []}})");
  EXPECT_HL_ERROR(Describe(dir_ / "unigram/tokenizer.json"), ExitCode::kData, "Unigram",
                  "sentencepiece .model");

  // Sizes are checked before any file is read, also of other files in the folder.
  WriteBpe("large");
  fs::resize_file(dir_ / "large/tokenizer_config.json", (128 << 20) + 1);
  for (const char* path : {"large", "large/tokenizer.json"}) {
    EXPECT_HL_ERROR(Describe(dir_ / path), ExitCode::kData, "tokenizer_config.json",
                    "134217729 bytes. Use a tokenizer", "at most 134217728");
  }
  // A pipe, which would wait for a writer without a limit.
  Write("pipe/kind.txt", "sentencepiece\n");
  ASSERT_EQ(::mkfifo((dir_ / "pipe/sentencepiece.model").c_str(), 0600), 0);
  EXPECT_HL_ERROR(Describe(dir_ / "pipe"), ExitCode::kData,
                  "sentencepiece.model is not a regular file. Replace it");
}

}  // namespace
}  // namespace halflife::cli::inspect
