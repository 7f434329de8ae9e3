#include "cli/inspect_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

using data::Dataset;

class InspectDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    data::test::WriteText(dir_ / "a.txt",
                          data::test::JoinByBlankLines(data::test::RandomDocuments(300, 1)));
    data::PrepareConfig config = data::test::ByteConfig(dir_ / "a.txt", dir_ / "out");
    config.validation_fraction = 0.2;
    Prepare(config);
  }
  std::string Print(bool json) {
    std::ostringstream out;
    PrintDataset(dir_ / "out", json, out);
    return out.str();
  }
  test::TempDir dir_;
};

TEST_F(InspectDatasetTest, JsonHoldsTheCounts) {
  const data::DatasetInfo info = Dataset::Open(dir_ / "out").info();
  const auto json = nlohmann::json::parse(Print(true));
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
  const std::string text = Print(false);
  for (const char* piece : {"tokenizer: bytes, 259 ids, eos 1", "train: ", "validation: ",
                            "train-00000.h5: ", "tokens each on average", "hash: "}) {
    EXPECT_THAT(text, testing::HasSubstr(piece));
  }
}

TEST_F(InspectDatasetTest, RefusesOtherFolders) {
  std::ostringstream out;
  EXPECT_HL_ERROR(PrintDataset(dir_.path(), false, out), ExitCode::kData, "manifest.pb is missing");
}

}  // namespace
}  // namespace halflife::cli
