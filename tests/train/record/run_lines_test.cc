// Checks that lines of a run are written, and that a full disk loses only lines.
#include "train/record/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/expect_error.h"
#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;

class RunLinesTest : public testing::Test {
 protected:
  // Returns a long line, because the file size limit also applies to the file that captures the
  // log.
  static nlohmann::ordered_json Line(int step) {
    return {{"step", step}, {"text", std::string(4096, 'x')}};
  }
  // Throws the parser's error if a line is incomplete.
  std::vector<int> Steps() const {
    std::ifstream file(path_);
    std::vector<int> steps;
    for (std::string line; std::getline(file, line);)
      steps.push_back(nlohmann::json::parse(line).at("step"));
    return steps;
  }

  test::TempDir dir_;
  const fs::path path_ = dir_ / "metrics.jsonl";
};

TEST_F(RunLinesTest, AFullDiskCostsLinesAndNothingElse) {
  RunLines lines(path_);
  for (int step = 1; step <= 3; ++step) lines.Append(Line(step));
  testing::internal::CaptureStderr();
  {
    const test::FullDisk full(fs::file_size(path_) + 10);
    for (int step = 4; step <= 6; ++step) {
      EXPECT_NO_THROW(lines.Append(Line(step)));
      EXPECT_THAT(Steps(), testing::ElementsAre(1, 2, 3)) << "a reader of the run that goes on";
    }
  }
  for (int step = 7; step <= 8; ++step) lines.Append(Line(step));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(Steps(), testing::ElementsAre(1, 2, 3, 7, 8));
  const size_t first = log.find("lines of metrics.jsonl are lost, training goes on");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("are lost", first + 60), std::string::npos) << "said more than once:\n" << log;
  EXPECT_THAT(log, testing::HasSubstr("metrics.jsonl takes lines again; 3 lines are missing"));
}

TEST_F(RunLinesTest, EveryFailureIsLogged) {
  RunLines lines(path_);
  lines.Append(Line(1));
  testing::internal::CaptureStderr();
  for (const int step : {2, 4}) {
    {
      const test::FullDisk full(fs::file_size(path_));
      lines.Append(Line(step));
    }
    lines.Append(Line(step + 1));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(Steps(), testing::ElementsAre(1, 3, 5));
  EXPECT_NE(log.find("1 line is missing", log.find("1 line is missing") + 1), std::string::npos)
      << log;
}

TEST_F(RunLinesTest, AFileThatCannotBeOpenedFailsTheStart) {
  EXPECT_HL_ERROR(RunLines(dir_ / "no" / "metrics.jsonl"), ExitCode::kEnvironment, "no/metrics");
}

}  // namespace
}  // namespace halflife::train
