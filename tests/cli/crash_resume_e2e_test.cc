// Crashes, signals and resumes of the binary, as on a cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "core/concat.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class CrashResume : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(fixture->Run({.run = "undisturbed", .ranks = 2}), 0);
  }

  void Resume(const std::string& run, int ranks = 2) {
    ExpectExit(fixture->Run({.run = run, .ranks = ranks, .flags = {"--resume", "auto"}}), 0);
  }
};

TEST_F(CrashResume, OneRankKilledBetweenSteps) {
  ExpectExit(fixture->Run(
                 {.run = "rank_killed", .ranks = 2, .env = {{"HL_FAULT", "train.step:kill:13:1"}}}),
             137);
  Resume("rank_killed");
  ExpectEqualBits("undisturbed", "rank_killed");
}

// Overridden position ids are drawn per sample, and are the same after a resume.
TEST_F(CrashResume, OverriddenPositionsAreTheSameAfterAResume) {
  const std::vector<std::string> set = {"model.mixer=softmax", "data.positions=skipwise",
                                        "data.positions_length=1000"};
  ExpectExit(fixture->Run({.run = "position_ids", .ranks = 2, .set = set}), 0);
  ExpectExit(fixture->Run({.run = "position_ids_killed",
                           .ranks = 2,
                           .set = set,
                           .env = {{"HL_FAULT", "train.step:kill:13:1"}}}),
             137);
  ExpectExit(
      fixture->Run(
          {.run = "position_ids_killed", .ranks = 2, .set = set, .flags = {"--resume", "auto"}}),
      0);
  ExpectExit(
      Halflife({"ckpt", "diff", Path("position_ids"), Path("position_ids_killed"), "--bitwise"}),
      0);
  ExpectExit(fixture->Run({.run = "position_ids_killed",
                           .ranks = 2,
                           .set = {"model.mixer=softmax", "train.steps=30"},
                           .flags = {"--resume", "auto"}}),
             2, {"data.positions: checkpoint skipwise, this run plain"});
}

TEST_F(CrashResume, WholeJobKilledAtEveryPointOfASave) {
  for (const std::string point :
       {"ckpt.p1.write", "ckpt.p1.fsync", "ckpt.p2.vote", "ckpt.p3.manifest", "ckpt.p4.rename",
        "ckpt.p5.latest", "ckpt.gc.unlink"}) {
    SCOPED_TRACE(point);
    const std::string run = "killed_at_" + point;
    // Crashes in the second save, so that an older step exists. Retention deletes from the fourth
    // save on.
    const std::string nth = point == "ckpt.gc.unlink" ? "1" : "2";
    ExpectExit(
        fixture->Run({.run = run, .ranks = 2, .env = {{"HL_FAULT", point + ":kill:" + nth}}}), 137);
    Resume(run);
    ExpectEqualBits("undisturbed", run);
  }
}

// During training, both ranks are killed at the same time, because they are threads of one process.
// The other rank's writer and both steps may be in any state. There are four saves. A number counts
// the visits of both ranks.
TEST_F(CrashResume, AKillAtAnyMomentOfSavesInTheBackgroundLosesNothing) {
  std::vector<std::string> faults;
  const auto add = [&](const std::string& point, int first, int last, int step) {
    for (int nth = first; nth <= last; nth += step) faults.push_back(Concat(point, ":kill:", nth));
  };
  add("ckpt.p1.write", 1, 375, 13);
  for (const std::string point : {"ckpt.p1.fsync", "ckpt.p2.vote"}) add(point, 1, 8, 1);
  for (const std::string point : {"ckpt.p3.manifest", "ckpt.p4.rename", "ckpt.p5.latest"})
    add(point, 1, 4, 1);
  add("train.backward", 13, 77, 16);  // One or two steps after a save begins.
  ASSERT_GE(faults.size(), 60u);
  for (const std::string& fault : faults) {
    SCOPED_TRACE(fault);
    const std::string run = "killed_" + fault;
    const std::vector<std::string> threads = {"--local-ranks", "2"};
    ExpectExit(fixture->Run({.run = run, .flags = threads, .env = {{"HL_FAULT", fault}}}), 137);
    ExpectExit(fixture->Run({.run = run, .flags = threads}), 0);
    ExpectEqualBits("undisturbed", run);
    std::filesystem::remove_all(fixture->path(run));
  }
}

TEST_F(CrashResume, StoppedAtTwoRanksResumedAtOne) {
  const std::vector<std::string> set = {"train.log_samples=true"};
  ExpectExit(fixture->Run({.run = "elastic",
                           .ranks = 2,
                           .set = set,
                           .env = {{"HL_FAULT", "train.step:kill:13:0"}}}),
             137);
  ExpectExit(fixture->Run({.run = "elastic", .ranks = 1, .set = set}), 0);
  // Both attempts ran steps 11 and 12, with the same samples, and losses that agree up to rounding.
  std::map<int, std::vector<std::string>> samples;
  std::ifstream file(fixture->path("elastic") / "samples.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    samples[json["step"]].push_back(json["samples"].dump());
  }
  for (const int step : {11, 12}) {
    ASSERT_EQ(samples[step].size(), 2u) << step;
    EXPECT_EQ(samples[step][0], samples[step][1]) << step;
  }
  std::map<int, std::vector<double>> losses;
  for (const auto& line : fixture->Metrics("elastic", "loss"))
    losses[line["step"]].push_back(line["loss"]);
  for (const auto& line : fixture->Metrics("undisturbed", "loss")) {
    const double expected = line["loss"];
    EXPECT_LE(std::abs(losses[line["step"]].back() - expected) / expected, 1e-5) << line["step"];
  }
}

TEST_F(CrashResume, UserSignalOnOneRankSavesAndRequeues) {
  // A long run. Only one rank receives the signal.
  const RunFixture::Train train{
      .run = "signalled", .ranks = 2, .set = {"train.steps=100000", "ckpt.every=0"}};
  std::thread signaller([&] {
    const auto heartbeat = fixture->path("signalled") / "heartbeat.json";
    for (int i = 0; i < 600; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (fixture->Metrics("signalled", "loss").size() < 5) continue;
      std::ifstream file(heartbeat);
      ::kill(nlohmann::json::parse(file)["pid"].get<int>(), SIGUSR1);
      return;
    }
  });
  const RunResult result = fixture->Run(train);
  signaller.join();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  const RunResult verify = ExpectExit(Halflife({"ckpt", "ls", Path("signalled")}), 0);
  EXPECT_THAT(verify.out, HasSubstr("step"));
}

TEST_F(CrashResume, DamagedNewestCheckpointFallsBackLoudly) {
  ExpectExit(fixture->Run({.run = "damaged",
                           .ranks = 2,
                           // Step 10 is published.
                           .set = {"ckpt.background=false"},
                           .env = {{"HL_FAULT", "train.step:kill:13:0"}}}),
             137);
  const auto shard = fixture->path("damaged") / "ckpt/step_000000000010/rank_00001.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(9000);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(9000);
  file.put(byte);
  file.close();
  const RunResult resumed = ExpectExit(fixture->Run({.run = "damaged", .ranks = 2}), 0);
  for (const char* piece : {"CHECKPOINT step 10 DAMAGED", "rank_00001.safetensors block 0 of main/",
                            "hash mismatch", "FALLING BACK to step 5 (5 steps"}) {
    EXPECT_THAT(resumed.err, HasSubstr(piece));
  }
  // The metrics contain the fallback too, for readers of curves.
  ASSERT_EQ(fixture->Metrics("damaged", "checkpoint_damage").size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(fixture->path("damaged") / "ckpt/step_000000000010.bad"));
  ExpectEqualBits("undisturbed", "damaged");
}

TEST_F(CrashResume, ARankThatThrowsEndsTheJobWithItsCause) {
  ExpectExit(fixture->Run({.run = "throws",
                           .ranks = 2,
                           .env = {{"HL_FAULT", "train.step:throw:3:1"}},
                           .timeout_s = 60}),
             70, {"injected at train.step"});
  std::ifstream first(fixture->path("throws") / "abort" / "FIRST");
  std::string line;
  std::getline(first, line);
  EXPECT_EQ(line.find("rank 1: "), 0u) << line;
}

TEST_F(CrashResume, AFieldThatPlacesTheCursorMayNotChange) {
  ExpectExit(fixture->Run({.run = "cursor", .set = {"train.steps=5"}}), 0);
  ExpectExit(fixture->Run({.run = "cursor",
                           .set = {"train.steps=10", "train.global_batch=16"},
                           .flags = {"--allow-change", "train.global_batch", "--allow-change",
                                     "train.steps"}}),
             2, {"which samples were already seen"});
}

TEST_F(CrashResume, AFinishedRunCanBeExtendedButNotShortened) {
  ExpectExit(fixture->Run({.run = "extend", .set = {"train.steps=5"}}), 0);
  ExpectExit(
      fixture->Run(
          {.run = "extend", .set = {"train.steps=3"}, .flags = {"--allow-change", "train.steps"}}),
      2, {"past train.steps 3"});
  ExpectExit(
      fixture->Run(
          {.run = "extend", .set = {"train.steps=8"}, .flags = {"--allow-change", "train.steps"}}),
      0);
  std::ifstream done(fixture->path("extend") / "DONE");
  std::string line;
  std::getline(done, line);
  EXPECT_EQ(line, "step 8");
}

TEST_F(CrashResume, AnOldFailureIsNotReportedAsTheCauseOfANewOne) {
  ExpectExit(
      fixture->Run({.run = "stale", .ranks = 2, .env = {{"HL_FAULT", "train.step:throw:3:1"}}}),
      70);
  const RunResult bad =
      ExpectExit(fixture->Run({.run = "stale", .ranks = 2, .set = {"optimizer.lr=-1"}}), 2,
                 {"optimizer.lr: -1"});
  EXPECT_THAT(bad.err, Not(HasSubstr("injected")));
}

TEST_F(CrashResume, AFinishedRunDoesNotChange) {
  ExpectExit(fixture->Run({.run = "undisturbed", .ranks = 2}), 0, {"finished"});
}

}  // namespace
}  // namespace halflife::test
