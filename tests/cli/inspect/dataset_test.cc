// The description by inspect of a dataset and of one of its shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "data/dataset.h"
#include "data/small_datasets.h"
#include "data/synthetic/mqar.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/unreadable.h"

namespace halflife::cli::inspect {
namespace {

using data::Dataset;

class InspectDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    data::test::WriteText(dir_ / "a.txt",
                          data::test::JoinByBlankLines(data::test::RandomDocuments(300, 1)));
    data::PrepareConfig config = data::test::ByteConfig(dir_ / "a.txt", dir_ / "out");
    config.input.validation_fraction = 0.2;
    Prepare(config);
  }
  test::TempDir dir_;
};

TEST_F(InspectDatasetTest, JsonHoldsTheCounts) {
  const data::DatasetInfo info = Dataset::Open(dir_ / "out").info();
  const auto json = Describe(dir_ / "out");
  EXPECT_EQ(json["kind"], "dataset");
  EXPECT_EQ(json["hash"], ToHex(info.hash));
  EXPECT_EQ(json["tokenizer"]["vocab_size"], 259);
  EXPECT_EQ(json["train"]["tokens"], info.train.num_tokens);
  EXPECT_EQ(json["train"]["documents"].get<int>() + json["validation"]["documents"].get<int>(),
            300);
  EXPECT_DOUBLE_EQ(
      json["train"]["mean_document_tokens"],
      static_cast<double>(info.train.num_tokens) / static_cast<double>(info.train.num_documents));
  EXPECT_EQ(json["validation"]["shards"][0]["file"], "validation-00000.h5");
}

TEST_F(InspectDatasetTest, TextNamesEverything) {
  const std::string text = Text(dir_ / "out");
  for (const char* piece : {"  tokenizer:\n    kind: bytes\n    vocab_size: 259\n    eos_id: 1\n",
                            "  train:\n    tokens: ", "  validation:\n",
                            "    mean_document_tokens: ", "train-00000.h5  ", "  hash: "}) {
    EXPECT_THAT(text, testing::HasSubstr(piece));
  }
}

TEST_F(InspectDatasetTest, LabelledRowsHaveSegmentsAndATestSplit) {
  data::PrepareMqar({.train = {{16, 4, 50}, {16, 2, 30}},
                     .validation = {{16, 4, 10}},
                     .test = {{16, 2, 20}},
                     .vocab_size = 64,
                     .seed = 3,
                     .output = {.out = dir_ / "mqar", .threads = 1}});
  const auto json = Describe(dir_ / "mqar");
  EXPECT_EQ(json["rows"]["seq_len"], 16);
  EXPECT_EQ(json["train"]["segments"][1]["name"], "seq_len=16,num_kv_pairs=2");
  EXPECT_EQ(json["train"]["segments"][1]["rows"], 30);
  EXPECT_EQ(json["test"]["documents"], 20);
  EXPECT_FALSE(json.contains("tokenizer"));
  EXPECT_TRUE(Describe(dir_ / "mqar/test-00000.h5")["labels"]);
  const std::string text = Text(dir_ / "mqar");
  for (const char* piece :
       {"    seq_len: 16\n    vocab_size: 64\n    generator: mqar native 1: power 0.01",
        "  test:\n", "seq_len=16,num_kv_pairs=2  30    103"}) {
    EXPECT_THAT(text, testing::HasSubstr(piece));
  }
}

TEST_F(InspectDatasetTest, ShardsWithoutAManifestAreADamagedDataset) {
  std::filesystem::remove(dir_ / "out/manifest.pb");
  EXPECT_HL_ERROR(Describe(dir_ / "out"), ExitCode::kData, "manifest.pb is missing");
}

TEST_F(InspectDatasetTest, AFolderOfAnotherUser) {
  using std::filesystem::perms;
  for (const perms allowed : {perms::none, perms::owner_read | perms::others_read}) {
    const test::Unreadable unreadable(dir_ / "out", allowed);
    EXPECT_HL_ERROR(Describe(dir_ / "out"), ExitCode::kData, "out: Permission denied",
                    "Check its permissions");
  }
}

TEST_F(InspectDatasetTest, AShardIsVerifiedAgainstItsManifest) {
  const data::DatasetInfo info = Dataset::Open(dir_ / "out").info();
  const std::filesystem::path shard = dir_ / "out/train-00000.h5";
  const auto json = Describe(shard);
  EXPECT_EQ(json["kind"], "dataset_shard");
  EXPECT_EQ(json["tokens"], info.train.num_tokens);
  EXPECT_EQ(json["documents"], info.train.num_documents);
  EXPECT_EQ(json["token_width"], 2);
  EXPECT_EQ(json["split"], "train");
  EXPECT_EQ(json["dataset"], ToHex(info.hash));
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('x');
  }
  EXPECT_HL_ERROR(Describe(shard), ExitCode::kData, "train-00000.h5", "header", "damaged");
}

TEST_F(InspectDatasetTest, AShardByItself) {
  const std::filesystem::path alone = dir_ / "copy.h5";
  std::filesystem::copy(dir_ / "out/train-00000.h5", alone);
  const auto json = Describe(alone);
  EXPECT_GT(json["tokens"], 0);
  EXPECT_TRUE(json["split"].is_null());
  std::ofstream(dir_ / "no.h5") << "text";
  EXPECT_HL_ERROR(Describe(dir_ / "no.h5"), ExitCode::kData, "no.h5", "HDF5");
}

// The rows of a blend, with their sources. The text of a row is that of its source.
TEST(InspectSamples, RowsOfADatasetAndOfABlend) {
  const test::TempDir dir;
  for (const char* name : {"a", "b"}) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += Concat(name, name, name, name, i, "\n");
    data::test::WriteText(dir / Concat(name, ".txt"), text);
    data::PrepareConfig config = data::test::ByteConfig(dir / Concat(name, ".txt"), dir / name);
    config.documents = data::DocumentMode::kLine;
    data::Prepare(config);
  }
  const auto of_dataset = DescribeSamples(dir / "a", 1)["samples"];
  ASSERT_EQ(of_dataset.size(), 1u);
  EXPECT_EQ(of_dataset[0]["sample"], 0);
  EXPECT_EQ(of_dataset[0]["documents"][0].get<std::string>().substr(0, 4), "aaaa");
  data::test::WriteText(
      dir / "blend.textproto",
      Concat("data { seq_len: 16 source { name: 'a' path: '", (dir / "a").string(),
             "' weight: 3 } source { name: 'b' path: '", (dir / "b").string(), "' } }"));
  const auto rows = DescribeSamples(dir / "blend.textproto", 40)["samples"];
  ASSERT_EQ(rows.size(), 40u);
  int num_b = 0;
  for (const auto& row : rows) {
    const std::string source = row["source"];
    num_b += source == "b";
    EXPECT_NE(row["documents"].dump().find(source), std::string::npos);
    EXPECT_EQ(row["documents"].dump().find(source == "a" ? "bb" : "aa"), std::string::npos);
    EXPECT_EQ(row["tokens"], 16);
  }
  EXPECT_NEAR(num_b, 10, 5);
  const std::string text = SamplesText(dir / "blend.textproto", 2);
  EXPECT_NE(text.find("sample 0, source "), std::string::npos) << text;
  EXPECT_NE(text.find(" of 16 tokens have a target\n"), std::string::npos) << text;
  EXPECT_HL_ERROR(DescribeSamples(dir / "a.txt", 1), ExitCode::kUsage, "has no training rows");
}

}  // namespace
}  // namespace halflife::cli::inspect
