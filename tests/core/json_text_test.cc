#include "core/json_text.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace halflife
