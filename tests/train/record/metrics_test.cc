// Checks the lines of metrics.jsonl and the progress lines.
#include "train/record/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/temp_dir.h"

namespace halflife::train {
namespace {

using Lines = std::vector<nlohmann::json>;

class MetricsTest : public testing::Test {
 protected:
  Metrics Open(const std::string& attempt) const {
    return Metrics({.file = dir_ / "metrics.jsonl",
                    .attempt = attempt,
                    .total_steps = 10,
                    .order = order_,
                    .seq_len = 64,
                    .peak = {},
                    .device = {}},
                   nullptr);
  }
  Lines Read() const {
    std::ifstream file(dir_ / "metrics.jsonl");
    Lines lines;
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  static StepResult OneStep() {
    StepResult result;
    result.loss = 2;
    result.seconds = 0.5;
    return result;
  }
  test::TempDir dir_;
  data::SampleOrder order_ = {.num_windows = 1 << 20, .global_batch = 8};
};

// Lines of steps, validations and saves contain the x axes of a curve: tokens and time.
TEST_F(MetricsTest, TokensAndTimeInEveryLine) {
  {
    Metrics metrics = Open("a");
    metrics.Validation(0, {{"", {.loss = 5, .num_targets = 100, .bits_per_byte = 1.5}}});
    metrics.Step(1, OneStep());
    metrics.Step(2, OneStep());
    metrics.Save(2, {.bytes = 1000, .seconds = 0.1}, 0.02);
  }
  const Lines lines = Read();
  ASSERT_EQ(lines.size(), 4u);
  double last = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i].dump());
    EXPECT_EQ(lines[i].at("tokens"), 512 * lines[i].at("step").get<int64_t>());
    const double elapsed = lines[i].at("elapsed_s");
    EXPECT_GE(elapsed, last);
    EXPECT_LT(elapsed, 60);
    last = elapsed;
    EXPECT_GT(lines[i].at("unix_ms"), int64_t{1700000000000});
    EXPECT_EQ(lines[i].at("attempt"), "a");
  }
  EXPECT_GT(last, 0);
  EXPECT_EQ(lines[0].at("val_bits_per_byte"), 1.5);
}

TEST_F(MetricsTest, OnlyRunsWithGraphsCountReplays) {
  {
    Metrics metrics = Open("a");
    metrics.Step(1, OneStep());
    StepResult replayed = OneStep();
    replayed.num_replays = 3;
    metrics.Step(2, replayed);
  }
  const Lines lines = Read();
  EXPECT_FALSE(lines[0].contains("replayed"));
  EXPECT_EQ(lines[1].at("replayed"), 3);
}

// A validation has its own line. In the lines of later steps, its loss would look like theirs.
TEST_F(MetricsTest, ProgressLinesRepeatNoValidation) {
  testing::internal::CaptureStderr();
  {
    Metrics metrics = Open("a");
    metrics.Validation(0, {{"", {.loss = 5, .num_targets = 100, .bits_per_byte = 1.5}}});
    metrics.Step(1, OneStep());
    metrics.Step(10, OneStep());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("step 0: validation loss 5.0000"));
  EXPECT_THAT(log, testing::HasSubstr("step 10/10  loss 2.0000  grad 0.00  lr 0  "));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("val ")));
}

// 20 steps of 0.5 s are done, and 80 are left.
TEST_F(MetricsTest, TheTwentiethStepTellsHowLongTheRestTakes) {
  testing::internal::CaptureStderr();
  {
    Metrics metrics({.file = dir_ / "metrics.jsonl",
                     .attempt = "a",
                     .total_steps = 100,
                     .log_every = 100,
                     .order = order_,
                     .seq_len = 64,
                     .world_size = 90,
                     .peak = {},
                     .device = {}},
                    nullptr);
    for (int64_t step = 1; step <= 40; ++step) metrics.Step(step, OneStep());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line = "the 80 steps that are left take about 40 s, 1.00 hours of all ranks";
  EXPECT_THAT(log, testing::HasSubstr(line));
  EXPECT_EQ(log.find("steps that are left"), log.rfind("steps that are left"));
}

// Tokens are counted over the run, seconds over the attempt.
TEST_F(MetricsTest, AResumedAttemptContinuesTokensAndRestartsTime) {
  double first = 0;
  {
    Metrics metrics = Open("a");
    for (int step = 1; step <= 200; ++step) metrics.Step(step, OneStep());
    first = Read().back()["elapsed_s"];
  }
  Metrics metrics = Open("b");
  metrics.Step(151, OneStep());
  EXPECT_EQ(Read().back()["tokens"], 151 * 512);
  EXPECT_LT(Read().back()["elapsed_s"].get<double>(), first);
}

// With 20 rows in batches of 8, every third step has 4 rows. Padding tokens are not counted.
TEST_F(MetricsTest, AShortStepCountsItsOwnRows) {
  order_ = {.num_windows = 20, .global_batch = 8, .epoch_end = data::EpochEnd::kShort};
  Metrics metrics = Open("a");
  for (int step = 1; step <= 6; ++step) metrics.Step(step, OneStep());
  metrics.Save(6, {.bytes = 1000, .seconds = 0.1}, 0.02);
  const int64_t rows[] = {8, 16, 20, 28, 36, 40, 40};
  const Lines lines = Read();
  ASSERT_EQ(lines.size(), std::size(rows));
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].at("tokens"), 64 * rows[i]) << i;
  EXPECT_EQ(lines[1].at("tokens_per_s"), 8 * 64 / 0.5);
  EXPECT_EQ(lines[2].at("tokens_per_s"), 4 * 64 / 0.5);
}

}  // namespace
}  // namespace halflife::train
