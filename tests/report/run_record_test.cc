// Reading a run folder for reports: metrics of several attempts, time, tokens and status.
#include "report/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::report {
namespace {

namespace fs = std::filesystem;

class ReadRunTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  RunRecord Read() const { return ReadRun(dir_.path()); }
  test::TempDir dir_;
};

std::vector<double> Steps(const Series& series) {
  std::vector<double> steps;
  for (const Point& point : series) steps.push_back(point.x);
  return steps;
}

TEST_F(ReadRunTest, AFolderThatIsNoRunIsRefused) {
  EXPECT_HL_ERROR(ReadRun(dir_ / "none"), ExitCode::kUsage, "none is not a folder",
                  "halflife train");
  EXPECT_HL_ERROR(Read(), ExitCode::kUsage, "is not the folder of a run", "config.textproto",
                  "metrics.jsonl", "Use a folder that");
}

TEST_F(ReadRunTest, AnEmptyRun) {
  Write("metrics.jsonl", "");
  const RunRecord run = Read();
  EXPECT_EQ(run.last_step(), 0);
  EXPECT_TRUE(run.metric("loss").empty());
  EXPECT_FALSE(run.finished);
  EXPECT_EQ(run.config_problem, "there is no config.textproto");
  EXPECT_FALSE(run.num_parameters || run.world_size);
}

TEST_F(ReadRunTest, NumbersTruthValuesAndNull) {
  Write("metrics.jsonl", R"({"step":1,"loss":2.5,"skipped":false,"attempt":"a"}
{"step":2,"loss":null,"skipped":true,"attempt":"a"}
)");
  const RunRecord run = Read();
  ASSERT_EQ(run.metric("loss").size(), 2u);
  EXPECT_EQ(run.metric("loss")[0].y, 2.5);
  EXPECT_TRUE(std::isnan(run.metric("loss")[1].y));
  EXPECT_EQ(run.metric("skipped")[1].y, 1);
  EXPECT_TRUE(run.metric("attempt").empty());
}

// Saved at 2, killed after 4 (with a validation), resumed twice from 2.
TEST_F(ReadRunTest, TheLastAttemptSupersedesWhatItReplays) {
  Write("metrics.jsonl", R"({"step":0,"val_loss":6,"attempt":"a"}
{"step":1,"loss":5,"attempt":"a"}
{"step":2,"loss":4,"attempt":"a"}
{"step":2,"save_bytes":9,"attempt":"a"}
{"step":3,"loss":3,"attempt":"a"}
{"step":4,"loss":2,"attempt":"a"}
{"step":4,"val_loss":2,"attempt":"a"}
{"step":3,"loss":3.1,"attempt":"b"}
{"step":2,"checkpoint_damage":"CHECKPOINT step 4 DAMAGED","attempt":"c"}
{"step":3,"loss":3.2,"attempt":"c"}
)");
  const RunRecord run = Read();
  EXPECT_EQ(Steps(run.metric("loss")), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(run.metric("loss").back().y, 3.2);
  // That of step 4 is superseded.
  EXPECT_EQ(Steps(run.metric("val_loss")), std::vector<double>{0});
  EXPECT_EQ(Steps(run.metric("save_bytes")), std::vector<double>{2});
  EXPECT_EQ(run.resumes, std::vector<int64_t>{3});
  EXPECT_EQ(run.replayed_steps, 3);
  EXPECT_EQ(run.checkpoint_damage, std::vector<std::string>{"CHECKPOINT step 4 DAMAGED"});
}

// Saved at 2, killed after 4, resumed, killed after 3, resumed again.
TEST_F(ReadRunTest, TimeCountsOnFromAttemptToAttempt) {
  Write("metrics.jsonl", R"({"step":1,"loss":5,"tokens":64,"elapsed_s":10,"unix_ms":1,"attempt":"a"}
{"step":2,"loss":4,"tokens":128,"elapsed_s":20,"unix_ms":2,"attempt":"a"}
{"step":2,"save_bytes":9,"tokens":128,"elapsed_s":25,"unix_ms":2,"attempt":"a"}
{"step":4,"loss":3,"tokens":256,"elapsed_s":40,"unix_ms":4,"attempt":"a"}
{"step":3,"loss":3,"tokens":192,"elapsed_s":7,"unix_ms":9,"attempt":"b"}
{"step":3,"val_loss":3,"tokens":192,"elapsed_s":9,"unix_ms":9,"attempt":"b"}
{"step":3,"loss":3,"tokens":192,"elapsed_s":5,"unix_ms":10,"attempt":"c"}
)");
  const RunRecord run = Read();
  EXPECT_EQ(run.num_tokens(), 192);
  EXPECT_EQ(run.elapsed_s, 40 + 9 + 5);
  const Series& elapsed = run.metric("elapsed_s");
  EXPECT_EQ(Steps(elapsed), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(elapsed[1].y, 20);  // The end of the step, not of the save.
  EXPECT_EQ(elapsed[2].y, 54);
  EXPECT_TRUE(run.metric("unix_ms").empty());
}

// As for a background save.
TEST_F(ReadRunTest, ASaveThatEndsBehindLaterStepsTakesNothingFromThem) {
  Write("metrics.jsonl", R"({"step":1,"loss":5,"tokens":64,"elapsed_s":10,"attempt":"a"}
{"step":2,"loss":4,"tokens":128,"elapsed_s":20,"attempt":"a"}
{"step":1,"save_bytes":9,"tokens":64,"elapsed_s":25,"attempt":"a"}
)");
  const RunRecord run = Read();
  EXPECT_EQ(run.num_tokens(), 128);
  EXPECT_EQ(Steps(run.metric("tokens")), (std::vector<double>{1, 2}));
  EXPECT_EQ(Steps(run.metric("elapsed_s")), (std::vector<double>{1, 2}));
  EXPECT_EQ(Steps(run.metric("save_bytes")), std::vector<double>{1});
  EXPECT_EQ(run.elapsed_s, 25);
}

// An epoch ends with step 3, which has half of the rows. Step 4 is not recorded.
TEST_F(ReadRunTest, TokensAtAStepAreTheRecordedOnes) {
  Write("metrics.jsonl", R"({"step":0,"val_loss":5,"tokens":0,"attempt":"a"}
{"step":2,"loss":5,"tokens":128,"attempt":"a"}
{"step":3,"loss":4,"tokens":160,"attempt":"a"}
{"step":5,"loss":4,"tokens":288,"attempt":"a"}
)");
  RunRecord run = Read();
  run.tokens_per_step = 64;
  std::vector<double> tokens;
  for (const double step : {0, 1, 2, 3, 4, 5, 6}) tokens.push_back(run.tokens_at(step));
  EXPECT_EQ(tokens, (std::vector<double>{0, 64, 128, 160, 224, 288, 352}));
}

// As older versions wrote them, without these keys.
TEST_F(ReadRunTest, WithoutTokensAndTime) {
  Write("metrics.jsonl", "{\"step\":3,\"loss\":5,\"attempt\":\"a\"}\n");
  RunRecord run = Read();
  EXPECT_EQ(run.elapsed_s, 0);
  EXPECT_EQ(run.num_tokens(), 0);
  run.tokens_per_step = 64;
  EXPECT_EQ(run.num_tokens(), 192);
  EXPECT_EQ(run.tokens_at(2), 128);
}

TEST_F(ReadRunTest, DamagedLinesAreCountedAndAnUnfinishedLastOneIsNot) {
  Write(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":5}\n{\"step\":2,\"lo\n[1]\n{\"loss\":1}\n{\"step\":\"x\",\"loss\":1}\n"
      "{\"step\":3,\"loss\":4}\n{\"step\":4,\"loss\":3");
  const RunRecord run = Read();
  EXPECT_EQ(Steps(run.metric("loss")), (std::vector<double>{1, 3}));
  EXPECT_EQ(run.damaged_lines, 4);
}

TEST_F(ReadRunTest, TheConfigIsTakenAsItStands) {
  Write("config.textproto", "train { steps: 20 }");
  const RunRecord run = Read();
  EXPECT_EQ(run.config_text, "train { steps: 20 }");
  EXPECT_EQ(run.config_problem, "");
}

TEST_F(ReadRunTest, Status) {
  Write("metrics.jsonl", "");
  Write("heartbeat.json", R"({"step":3,"unix_ms":1769879100000})");
  EXPECT_EQ(Read().last_alive, "2026-01-31 17:05 UTC");
  Write("heartbeat.json", "{\"st");
  EXPECT_EQ(Read().last_alive, "");
  Write("abort/FIRST", "rank 1: out of memory\n");
  EXPECT_EQ(Read().failure, "rank 1: out of memory\n");
  Write("DONE", "step 3\n");
  EXPECT_TRUE(Read().finished);
}

}  // namespace
}  // namespace halflife::report
