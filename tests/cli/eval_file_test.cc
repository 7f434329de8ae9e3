// The files of `halflife eval --out` and `--csv` are complete after each row, and later calls
// continue them.
#include "cli/eval_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

using Json = EvalFile::Json;

constexpr CsvColumn kColumns[] = {
    {"model", "/model"}, {"method", "/method"}, {"length", "/length"}, {"seen", "/recall/seen"}};

class EvalFiles : public testing::Test {
 protected:
  EvalFile File(const Json& facts = {{"model", "a, b"}}) const {
    return {{.json = dir_ / "e.json", .csv = dir_ / "e.csv"}, facts, kColumns};
  }
  std::string Csv() const { return ReadFile(dir_ / "e.csv", ExitCode::kInternal); }
  Json Written() const { return Json::parse(ReadFile(dir_ / "e.json", ExitCode::kInternal)); }
  static Json Row(const char* method, int length) {
    return {{"method", method}, {"length", length}, {"recall", {{"seen", 0.5}}}};
  }
  test::TempDir dir_;
};

TEST_F(EvalFiles, EachRowIsInBothFilesAtOnce) {
  EvalFile file = File();
  EXPECT_FALSE(std::filesystem::exists(dir_ / "e.json"));
  file.Add(Row("window", 64));
  EXPECT_EQ(Csv(), "model,method,length,seen\n\"a, b\",window,64,0.5\n");
  EXPECT_EQ(Written()["rows"].size(), 1u);
  file.Add({{"method", "window"}, {"length", 128}});  // This measure is missing.
  EXPECT_EQ(Csv(), "model,method,length,seen\n\"a, b\",window,64,0.5\n\"a, b\",window,128,\n");
  EXPECT_EQ(Written(), file.json());
  // Values that are not finite are null in JSON, and empty in CSV.
  file.Add({{"method", "w"}, {"length", 1}, {"recall", {{"seen", std::nan("")}}}});
  EXPECT_TRUE(Written()["rows"][2]["recall"]["seen"].is_null());
  EXPECT_TRUE(Csv().ends_with("\n\"a, b\",w,1,\n"));
}

// A path may contain any bytes. In the file, and in comparisons with it, invalid UTF-8 is U+FFFD.
TEST_F(EvalFiles, AFactThatIsNotUtf8IsWrittenAndMetAgain) {
  const Json facts = {{"model", "runs/caf\xe9"}};
  {
    EvalFile first = File(facts);
    first.Add(Row("window", 64));
  }
  EXPECT_EQ(Written()["model"], "runs/caf\xEF\xBF\xBD");
  EXPECT_TRUE(File(facts).Has({{"method", "window"}, {"length", 64}}));
}

TEST_F(EvalFiles, ALaterCallGoesOn) {
  {
    EvalFile first = File();
    first.Add(Row("window", 64));
  }
  std::filesystem::remove(dir_ / "e.csv");
  EvalFile second = File();
  EXPECT_TRUE(second.Has({{"method", "window"}, {"length", 64}}));
  EXPECT_FALSE(second.Has({{"method", "window"}, {"length", 128}}));
  EXPECT_EQ(second.RowOf({{"method", "window"}, {"length", 64}}), Row("window", 64));
  EXPECT_FALSE(second.Has({{"method", "window"}, {"length", 64}, {"depth", 0.5}}));
  second.Finish();  // Only the existing rows.
  EXPECT_EQ(Csv(), "model,method,length,seen\n\"a, b\",window,64,0.5\n");
  second.Add(Row("blocks", 64));
  EXPECT_EQ(Written()["rows"].size(), 2u);
}

// Output cannot be replaced, so writing the file after each row would print it several times.
TEST_F(EvalFiles, StandardOutputHoldsOneTable) {
  testing::internal::CaptureStdout();
  {
    EvalFile file({.json = "-", .csv = dir_ / "e.csv"}, {{"model", "m"}}, kColumns);
    file.Add(Row("window", 64));
    file.Add(Row("window", 128));
    EXPECT_EQ(Csv(), "model,method,length,seen\nm,window,64,0.5\nm,window,128,0.5\n");
    file.Finish();
    EXPECT_EQ(testing::internal::GetCapturedStdout(), file.json().dump(2) + "\n");
  }
  testing::internal::CaptureStdout();
  EvalFile file({.json = dir_ / "e.json", .csv = "/dev/stdout"}, {{"model", "m"}}, kColumns);
  file.Add(Row("window", 64));
  file.Finish();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "model,method,length,seen\nm,window,64,0.5\n");
  EXPECT_EQ(&MessageStream({"", "a.csv", ""}), &std::cout);
  EXPECT_EQ(&MessageStream({"", "a.csv", "-"}), &std::cerr);
}

TEST_F(EvalFiles, SayWhatTheyAreNot) {
  File().Add(Row("window", 64));
  EXPECT_HL_ERROR(File({{"model", "c"}}), ExitCode::kUsage,
                  "e.json holds rows of another model: \"a, b\", here \"c\"", "another --out");
  EXPECT_HL_ERROR(File({{"model", "a, b"}, {"seed", 1}}), ExitCode::kUsage,
                  "another seed: none, here 1");
  std::filesystem::remove(dir_ / "e.json");
  File({{"model", "a, b"}, {"recall", true}}).Add(Row("window", 64));
  EXPECT_HL_ERROR(File(), ExitCode::kUsage, "holds rows with recall, which this call");
  for (const std::string& other :
       {std::string(R"({"rows": 5})"), std::string(R"({"rows": [5]})"),
        "{\"rows\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
        std::string("{}")}) {
    AtomicWriteFile(dir_ / "e.json", other, ExitCode::kInternal);
    EXPECT_HL_ERROR(File(), ExitCode::kUsage, "e.json is not a table of lengths");
  }
  EXPECT_EQ(ReadFile(dir_ / "e.json", ExitCode::kInternal), "{}");
}

}  // namespace
}  // namespace halflife::cli
