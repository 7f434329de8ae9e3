// Compares plans with recorded steps.
#include "train/plan/plan_against.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/concat.h"
#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

using testing::HasSubstr;
using testing::Not;

// Returns a plan with a step of 100 ms that waits for 20 ms, and a rank that uses 30 GB.
ClusterPlan SmallPlan() {
  ClusterPlan plan;
  plan.step_s = 0.1;
  plan.tokens_per_s = 4000;
  plan.memory.activations = 30e9;
  plan.collectives = {
      {.group = "shard", .what = "grad_bucket", .bytes = 800, .exposed_seconds = 0.012},
      {.group = "shard", .what = "param_bucket", .bytes = 200, .exposed_seconds = 0.006},
      {.group = "rows", .what = "tokens_before", .bytes = 50, .exposed_seconds = 0.001},
      {.group = "control", .what = "step_scalars", .bytes = 112, .exposed_seconds = 0.001}};
  return plan;
}

std::string Line(int step, double step_ms) {
  return Concat(R"({"step": )", step, R"(, "step_ms": )", step_ms,
                R"(, "tokens_per_s": 5000, "data_wait_ms": 1, "exposed_grad_ms": 6,)",
                R"( "exposed_param_ms": 6, "exposed_rows_ms": 2, "peak_memory_bytes": 25e9,)",
                R"( "comm_bytes/shard": 1000, "comm_bytes/rows": 50, "comm_bytes/control": 112})",
                "\n");
}

class PlanAgainst : public testing::Test {
 protected:
  MeasuredStep Read(const std::string& lines) const {
    AtomicWriteFile(dir_.path() / "metrics.jsonl", lines, ExitCode::kUsage);
    return ReadMeasuredStep(dir_.path());
  }
  test::TempDir dir_;
};

TEST_F(PlanAgainst, TakesMediansOfTheLastSteps) {
  std::string lines;
  for (int step = 1; step <= 20; ++step) lines += Line(step, 1000);
  for (int step = 21; step <= 20 + kMeasuredSteps; ++step) lines += Line(step, 80 + step % 3);
  lines += R"({"step": 120, "val_loss": 2.5})"
           "\n"
           R"({"step": 121, "step_)";
  const MeasuredStep measured = Read(lines);
  EXPECT_EQ(measured.num_steps, kMeasuredSteps);
  EXPECT_DOUBLE_EQ(measured.step, 0.081);
  EXPECT_DOUBLE_EQ(measured.peak_memory_bytes, 25e9);
  EXPECT_DOUBLE_EQ(ReadMeasuredStep(dir_.path() / "metrics.jsonl").step, 0.081);
}

TEST_F(PlanAgainst, PrintsTheErrorOfEveryPhase) {
  const MeasuredStep measured = Read(Line(1, 80));
  const std::string text = ComparisonText(SmallPlan(), measured);
  for (const char* row :
       {"step                           100.00 ms      80.00 ms     +25.0 %",
        "compute, update, scalars        81.00 ms      65.00 ms     +24.6 %",
        "waiting for gradients           12.00 ms       6.00 ms    +100.0 %",
        "waiting for weights              6.00 ms       6.00 ms       0.0 %",
        "waiting for rows                 1.00 ms       2.00 ms     -50.0 %",
        "waiting for data                 0.00 ms       1.00 ms    -100.0 %",
        "tokens/s                            4.0k          5.0k     -20.0 %", "bytes of shard"})
    EXPECT_THAT(text, HasSubstr(row));
  EXPECT_THAT(text, Not(HasSubstr("warning")));
  const nlohmann::ordered_json json = ComparisonJson(SmallPlan(), measured);
  EXPECT_DOUBLE_EQ(json["values"]["step"]["error"], 0.25);
  EXPECT_DOUBLE_EQ(json["values"]["comm_bytes/shard"]["error"], 0);
  EXPECT_EQ(json["warning"], "");
}

TEST_F(PlanAgainst, SaysThatARunIsOfAnotherRecipe) {
  ClusterPlan plan = SmallPlan();
  plan.collectives[0].bytes += 4;
  EXPECT_THAT(ComparisonText(plan, Read(Line(1, 80))),
              HasSubstr("warning: the bytes of shard differ from those of "));
}

// A validation, a save and some step's statistics add bytes to the line of the next step.
TEST_F(PlanAgainst, IgnoresBytesThatOneStepHasMore) {
  std::string last = Line(2, 80);
  last.replace(last.find("112}"), 4, R"(150, "comm_bytes/ckpt": 9})");
  EXPECT_THAT(ComparisonText(SmallPlan(), Read(Line(1, 80) + last)), Not(HasSubstr("warning")));
}

TEST_F(PlanAgainst, NamesWhatIsMissing) {
  EXPECT_HL_ERROR(Read(""), ExitCode::kUsage, "has no steps", "Use a run that has trained");
  EXPECT_HL_ERROR(ReadMeasuredStep(dir_.path() / "none"), ExitCode::kUsage, "--against ",
                  "there is no ", "Use the folder of a run");
}

}  // namespace
}  // namespace halflife::train
