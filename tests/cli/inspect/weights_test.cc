// The description by inspect of safetensors files and Hugging Face folders, which may come from
// other programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ckpt/safetensors.h"
#include "cli/inspect/artifact.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli::inspect {
namespace {

using ckpt::StoredDType;
using ckpt::safetensors::Entry;
using testing::HasSubstr;
using testing::Not;

class InspectWeightsTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  // Writes adjacent tensors of zeros.
  void WriteTensors(const std::string& name, std::vector<Entry> entries) {
    uint64_t at = 0;
    for (Entry& entry : entries) {
      entry.begin = at;
      at += static_cast<uint64_t>(ckpt::CountElements(entry.shape)) * SizeOf(entry.dtype);
      entry.end = at;
    }
    Write(name,
          ckpt::safetensors::BuildHeader(entries, {{"format", "pt"}}, 8) + std::string(at, '\0'));
  }
  test::TempDir dir_;
};

const Entry kEmbedding{"embed.weight", StoredDType::kBF16, {10, 4}, 0, 0};
const Entry kNorm{"norm.weight", StoredDType::kF32, {4}, 0, 0};

TEST_F(InspectWeightsTest, ASafetensorsFile) {
  WriteTensors("a.safetensors", {kEmbedding, kNorm});
  const auto json = Describe(dir_ / "a.safetensors");
  EXPECT_EQ(json["kind"], "safetensors");
  EXPECT_EQ(json["parameters"], 44);
  EXPECT_EQ(json["dtypes"]["BF16"], 40);
  EXPECT_EQ(json["metadata"]["format"], "pt");
  EXPECT_EQ(json["tensors"][0]["name"], "embed.weight");
  EXPECT_EQ(json["tensors"][0]["shape"], nlohmann::ordered_json({10, 4}));
  EXPECT_EQ(json["tensors"][0]["bytes"], 80);
  const std::string text = Text(dir_ / "a.safetensors");
  EXPECT_THAT(text, HasSubstr("embed.weight"));
  EXPECT_THAT(text, HasSubstr("[10,4]"));
}

TEST_F(InspectWeightsTest, HostileFiles) {
  const std::string huge_length(8, '\x7f');
  Write("length.safetensors", huge_length + "{}");
  EXPECT_HL_ERROR(Describe(dir_ / "length.safetensors"), ExitCode::kData, "limit");
  Write("short.safetensors", "abc");
  EXPECT_HL_ERROR(Describe(dir_ / "short.safetensors"), ExitCode::kData, "shorter than 8");
  WriteTensors("cut.safetensors", {kEmbedding});
  std::filesystem::resize_file(dir_ / "cut.safetensors",
                               std::filesystem::file_size(dir_ / "cut.safetensors") - 1);
  EXPECT_HL_ERROR(Describe(dir_ / "cut.safetensors"), ExitCode::kData, "cut.safetensors");
  // A name that would clear the terminal.
  WriteTensors("escape.safetensors", {{"\x1b[2Jowned", StoredDType::kF32, {1}, 0, 0}});
  const std::string text = Text(dir_ / "escape.safetensors");
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("\\x1b[2Jowned"));
}

TEST_F(InspectWeightsTest, AHuggingFaceFolder) {
  Write("config.json", R"({"model_type": "gla", "architectures": ["GLAForCausalLM"]})");
  WriteTensors("model-00001-of-00002.safetensors", {kEmbedding});
  WriteTensors("model-00002-of-00002.safetensors", {kNorm});
  Write("model.safetensors.index.json",
        R"({"weight_map": {"embed.weight": "model-00001-of-00002.safetensors",
                           "../../lost": "../../etc/passwd"}})");
  const auto json = Describe(dir_.path());
  EXPECT_EQ(json["kind"], "hf_model");
  EXPECT_EQ(json["model_type"], "gla");
  EXPECT_EQ(json["parameters"], 44);
  EXPECT_EQ(json["bytes"], 96);
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["tensors"][1]["file"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(json["missing_tensors"], nlohmann::ordered_json({"../../lost"}));
  EXPECT_EQ(json["unlisted_tensors"], nlohmann::ordered_json({"norm.weight"}));

  WriteTensors("model-00003-of-00002.safetensors", {kNorm});
  EXPECT_HL_ERROR(Describe(dir_.path()), ExitCode::kData, "norm.weight", "two files",
                  "Remove the file");
  Write("config.json", "[1");
  EXPECT_HL_ERROR(Describe(dir_.path()), ExitCode::kData, "config.json",
                  "not a JSON object. Download it again.");
}

TEST(Render, ControlCharactersAndUnits) {
  EXPECT_EQ(Printable("a\x1b\x7f\nb\xc3\xa4"), "a\\x1b\\x7f\\x0ab\xc3\xa4");
  const nlohmann::ordered_json json = {
      {"kind", "x"},
      {"bytes", 2048u},
      {"nothing", nullptr},
      {"inner", {{"loss", 1.5}}},
      {"rows", {{{"n", 1}, {"bytes", 10u}}, {{"n", 22}, {"bytes", 9u}}}}};
  EXPECT_EQ(Render(json),
            "x\n  kind: x\n  bytes: 2.0 KiB\n  nothing: -\n  inner:\n    loss: 1.5\n  rows:\n"
            "    n   bytes\n    1   10 B\n    22  9 B\n");
}

}  // namespace
}  // namespace halflife::cli::inspect
