// Reading Hugging Face folders: shards, indexes, and folders that must be refused.
#include "interop/hf_folder.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "interop/hf_folder_fixture.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::interop {
namespace {

using test::WriteText;
using testing::ElementsAre;
using testing::Key;

class HfFolderTest : public testing::Test {
 protected:
  HfFolderTest() : folder_(dir_ / "model") { test::WriteShardedFolder(folder_); }
  void SetIndex(const std::string& a, const std::string& more = "") {
    WriteText(folder_ / "model.safetensors.index.json",
              R"({"weight_map": {"a": )" + a +
                  R"(, "b": "model-00001-of-00002.safetensors")"
                  R"(, "c": "model-00002-of-00002.safetensors")" +
                  more + "}}");
  }
  test::TempDir dir_;
  std::filesystem::path folder_;
};

TEST_F(HfFolderTest, ReadsShards) {
  const HfFolder folder = HfFolder::Open(folder_);
  EXPECT_THAT(folder.tensors(), ElementsAre(Key("a"), Key("b"), Key("c")));
  EXPECT_EQ(folder.config().at("model_type"), "llama");
  float values[4];
  folder.Read(*folder.Find("b"), 1, 5, values);
  EXPECT_THAT(values, ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(folder.Find("d"), nullptr);
}

// Python writes infinities and NaN as bare words. Only those outside of strings are changed.
TEST_F(HfFolderTest, ReadsPythonsInfinities) {
  WriteText(folder_ / "config.json",
            R"({"limits": [-Infinity, Infinity, NaN], "text": "Infinity \" NaN"})");
  const HfFolder folder = HfFolder::Open(folder_);
  EXPECT_EQ(folder.config().at("limits").dump(),
            R"([{"__float__":"-Infinity"},{"__float__":"Infinity"},{"__float__":"NaN"}])");
  EXPECT_EQ(folder.config().at("text"), "Infinity \" NaN");
}

// As in transformers: an index next to a whole file is left over from an earlier save.
TEST_F(HfFolderTest, AWholeFileComesBeforeAnIndex) {
  std::filesystem::copy(folder_ / "model-00001-of-00002.safetensors",
                        folder_ / "model.safetensors");
  std::filesystem::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(HfFolder::Open(folder_).tensors(), ElementsAre(Key("a"), Key("b")));
}

TEST_F(HfFolderTest, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {R"("../model-00001-of-00002.safetensors")", R"("/etc/passwd")",
                           R"("..")", R"("x/y.safetensors")", R"("")", R"("a\u0000b")", "7"}) {
    SetIndex(name);
    EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "index.json", "tensor a is in",
                    "plain name");
  }
}

TEST_F(HfFolderTest, IndexAndFilesMustAgreeBothWays) {
  SetIndex(R"("model-00002-of-00002.safetensors")");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "says that tensor a is in model-00002",
                  "but it is in model-00001");
  SetIndex(R"("model-00001-of-00002.safetensors")", R"(, "d": "model-00002-of-00002.safetensors")");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "names tensor d",
                  "model-00002-of-00002.safetensors does not hold it");
  WriteText(folder_ / "model-00002-of-00002.safetensors", test::SafetensorsBytes({"c", "e"}));
  SetIndex(R"("model-00001-of-00002.safetensors")");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "does not name tensor e");
  WriteText(folder_ / "model-00002-of-00002.safetensors", test::SafetensorsBytes({"c", "a"}));
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "tensor a is also in another file");
  std::filesystem::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "model-00002-of-00002.safetensors");
}

TEST_F(HfFolderTest, WhatIsNoModelFolder) {
  EXPECT_HL_ERROR(HfFolder::Open(dir_.path()), ExitCode::kData, "no config.json in");
  WriteText(folder_ / "config.json", "[1]");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "config.json: not a JSON object");
  // Printing this value would recurse once per bracket.
  WriteText(folder_ / "config.json",
            "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "config.json is nested 100001 deep",
                  "more than the limit of 64 levels");
  WriteText(folder_ / "config.json", "{}");
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "neither model.safetensors nor");
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    WriteText(folder_ / pickle, "x");
    EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "are pickles", "save_pretrained");
    std::filesystem::remove(folder_ / pickle);
  }
}

TEST_F(HfFolderTest, QuantizedWeightsAreRefusedBeforeTheyAreRead) {
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  WriteText(folder_ / "model.safetensors", "x");
  WriteText(folder_ / "config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData,
                  "config.json: quantization_config is set, so the weights are quantized. Use");
  WriteText(folder_ / "config.json", R"({"quantization_config": null})");
  EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, "shorter than 8 bytes");
}

// A pipe in the place of any file is refused immediately.
TEST_F(HfFolderTest, PipesAreNoFiles) {
  for (const char* name : {"model-00002-of-00002.safetensors", "model.safetensors.index.json",
                           "model.safetensors", "config.json"}) {
    std::filesystem::remove(folder_ / name);
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
    EXPECT_HL_ERROR(HfFolder::Open(folder_), ExitCode::kData, name);
    std::filesystem::remove(folder_ / name);
  }
}

TEST_F(HfFolderTest, DoublesAreRoundedToFp32) {
  const double doubles[] = {0.1, -1e-300, 3};
  std::vector<ckpt::safetensors::Entry> entries = {
      {.name = "w", .dtype = ckpt::StoredDType::kF64, .shape = {3}, .begin = 0, .end = 24}};
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  WriteText(folder_ / "model.safetensors",
            ckpt::safetensors::BuildHeader(entries, {}, 8) +
                std::string(reinterpret_cast<const char*>(doubles), sizeof doubles));
  const HfFolder folder = HfFolder::Open(folder_);
  float values[3];
  folder.Read(*folder.Find("w"), 0, 3, values);
  EXPECT_THAT(values, ElementsAre(0.1f, 0.0f, 3.0f));
}

TEST_F(HfFolderTest, OtherTypesAreNoWeights) {
  std::vector<ckpt::safetensors::Entry> entries = {
      {.name = "ids", .dtype = ckpt::StoredDType::kI64, .shape = {1}, .begin = 0, .end = 8}};
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  WriteText(folder_ / "model.safetensors",
            ckpt::safetensors::BuildHeader(entries, {}, 8) + std::string(8, '\0'));
  const HfFolder folder = HfFolder::Open(folder_);
  float value;
  EXPECT_HL_ERROR(folder.Read(*folder.Find("ids"), 0, 1, &value), ExitCode::kData,
                  "tensor ids is I64. Only F64, F32, BF16 and F16 are supported.");
}

}  // namespace
}  // namespace halflife::interop
