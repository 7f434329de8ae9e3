// JSON nesting limits, and JSON lines that are appended to files of crashed writers.
#include "core/json_text.h"

#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife {
namespace {

TEST(JsonNesting, CountsBracketsOutsideStrings) {
  EXPECT_EQ(JsonNesting(""), 0);
  EXPECT_EQ(JsonNesting("3"), 0);
  EXPECT_EQ(JsonNesting("[]"), 1);
  EXPECT_EQ(JsonNesting(R"({"a": [1, {"b": 2}], "c": {}})"), 3);
  EXPECT_EQ(JsonNesting(R"(["[[[[", "\"[[", "\\"])"), 1);
  EXPECT_EQ(JsonNesting("]]]]["), 0) << "no JSON, and nothing that a parser would descend into";
  EXPECT_EQ(JsonNesting(std::string(5000, '[')), 5000);
}

TEST(ReadJsonText, IsBounded) {
  const test::TempDir dir;
  const auto write = [&](const std::string& text) {
    AtomicWriteFile(dir / "x.json", text, ExitCode::kData);
    return dir / "x.json";
  };
  EXPECT_EQ(ReadJsonText(write("[1, 2]")), "[1, 2]");
  EXPECT_EQ(ReadJsonText(write("no JSON")), "no JSON");
  EXPECT_HL_ERROR(ReadJsonText(write("[1, 2]"), 5), ExitCode::kData, "x.json has 6 bytes",
                  "more than the limit of 5 bytes");
  EXPECT_EQ(ReadJsonText(write(std::string(kMaxJsonNesting, '['))).size(), 64u);
  EXPECT_HL_ERROR(ReadJsonText(write(std::string(kMaxJsonNesting + 1, '['))), ExitCode::kData,
                  "x.json is nested 65 deep", "more than the limit of 64 levels");
  EXPECT_HL_ERROR(ReadJsonText(dir / "none.json"), ExitCode::kData, "cannot read", "none.json");
}

TEST(JsonlWriter, RefusesAPipeAtOnce) {
  const test::TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_HL_ERROR(JsonlWriter(dir / "pipe", ExitCode::kData), ExitCode::kData, "pipe",
                  "exists and is not a file");
}

TEST(JsonlWriter, AppendsWholeLines) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "metrics.jsonl";
  JsonlWriter(path, ExitCode::kData).Append({{"step", 1}, {"loss", 2.5}});
  JsonlWriter(path, ExitCode::kData).Append({{"step", 2}, {"loss", std::nan("")}});
  EXPECT_EQ(ReadFile(path, ExitCode::kData),
            "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n");
}

TEST(JsonlWriter, EndsTheTornLineOfACrashedWriter) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "metrics.jsonl";
  AtomicWriteFile(path, "{\"step\":1}\n{\"st", ExitCode::kData);
  JsonlWriter(path, ExitCode::kData).Append({{"step", 3}});
  EXPECT_EQ(ReadFile(path, ExitCode::kData), "{\"step\":1}\n{\"st\n{\"step\":3}\n");
}

TEST(JsonlWriter, SurvivesBadUtf8AndSaysWhereItCannotWrite) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "x.jsonl";
  JsonlWriter(path, ExitCode::kData).Append({{"text", "\xff"}});
  EXPECT_EQ(ReadFile(path, ExitCode::kData), "{\"text\":\"\xEF\xBF\xBD\"}\n");
  EXPECT_HL_ERROR(JsonlWriter(dir / "no/x.jsonl", ExitCode::kEnvironment), ExitCode::kEnvironment,
                  "no/x.jsonl");
}

}  // namespace
}  // namespace halflife
