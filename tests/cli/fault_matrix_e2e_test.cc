// If one of two ranks throws, hangs, stops or dies anywhere, the job ends in time, with the right
// exit code, and names the rank and the failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/concat.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// The timeout of a collective, for ranks that hang. Other faults need none.
constexpr double kTimeout = 4;
constexpr double kPatience = 60;
constexpr double kStart =
    60;  // For MPI, the dataset and earlier steps, on a slow and busy machine.
constexpr double kGrace = 10;  // From the timeout to the end of the job.
// Saves have their own deadlines, in which a rank would wait for one that hangs.
const std::vector<std::string> kNoSaves = {"ckpt.every=0"};

class FaultMatrix : public ProgramTest {
 protected:
  struct Outcome {
    RunResult result;
    double seconds = 0;
    std::string first;  // The contents of abort/FIRST.
  };
  static Outcome Train(const std::string& run, const std::string& fault,
                       std::vector<std::string> set = {}, double timeout_s = kPatience) {
    set.insert(set.end(), {Concat("comm.timeout_s=", timeout_s), "train.steps=100000",
                           "train.log_every=1000"});
    const auto start = std::chrono::steady_clock::now();
    Outcome outcome{
        .result = fixture->Run(
            {.run = run, .ranks = 2, .set = set, .env = {{"HL_FAULT", fault}}, .timeout_s = 100})};
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::ifstream file(fixture->path(run) / "abort" / "FIRST");
    std::getline(file, outcome.first);
    return outcome;
  }
  // Returns the number of complete lines of a file that grows or does not exist yet.
  static int64_t NumLines(const std::filesystem::path& path) {
    std::ifstream file(path);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }
  static nlohmann::json Flight(const std::string& run) {
    const RunResult result =
        ExpectExit(Halflife({"inspect", "--json", (fixture->path(run) / "flight").string()}), 0);
    return nlohmann::json::parse(result.out);
  }
};

TEST_F(FaultMatrix, ARankThatThrowsIsNamedWithItsCause) {
  for (const std::string point : {"train.data", "train.forward", "train.backward", "train.hook",
                                  "train.reduce", "train.update", "train.step", "data.read"}) {
    SCOPED_TRACE(point);
    const Outcome outcome = Train("throws_" + point, point + ":throw:9:1");
    EXPECT_EQ(outcome.result.exit_code, 70) << outcome.result.err;
    EXPECT_EQ(outcome.first.find("rank 1: "), 0u) << outcome.first;
    EXPECT_THAT(outcome.first, HasSubstr("injected at " + point));
    EXPECT_THAT(outcome.result.err, HasSubstr("injected at " + point));
    const nlohmann::json flight = Flight("throws_" + point);
    ASSERT_FALSE(flight["findings"].empty());
    EXPECT_EQ(flight["findings"][0]["kind"], "failed");
    EXPECT_THAT(flight["findings"][0]["text"].get<std::string>(), HasSubstr("rank 1 failed"));
  }
}

TEST_F(FaultMatrix, ARankThatHangsIsNamedWithWhatItDoes) {
  const std::map<std::string, std::string> phase_of = {{"train.forward", "forward"},
                                                       {"train.hook", "backward"},
                                                       {"train.update", "update"},
                                                       {"data.read", "data"}};
  for (const auto& [point, phase] : phase_of) {
    SCOPED_TRACE(point);
    const Outcome outcome = Train("hangs_" + point, point + ":stall:9:1", kNoSaves, kTimeout);
    EXPECT_EQ(outcome.result.exit_code, 71) << outcome.result.err;
    EXPECT_LT(outcome.seconds, kStart + kTimeout + kGrace);
    EXPECT_THAT(outcome.first, HasSubstr("nothing came from rank 1"));
    EXPECT_THAT(outcome.first, HasSubstr("rank 1 has not issued world #"));
    EXPECT_THAT(outcome.first, HasSubstr(Concat("it is in phase ", phase, " of step ")));
  }
}

TEST_F(FaultMatrix, AKilledRankIsTheOneGoneFirst) {
  const Outcome outcome = Train("killed", "train.forward:kill:9:1");
  EXPECT_EQ(outcome.result.exit_code, 137) << outcome.result.err;
  const nlohmann::json flight = Flight("killed");
  ASSERT_FALSE(flight["findings"].empty());
  for (const auto& finding : flight["findings"]) {
    if (finding["kind"] == "failed") continue;  // Rank 0 may already have reported "peer lost".
    EXPECT_THAT(finding["text"].get<std::string>(), HasSubstr("rank 1 (pid"));
    EXPECT_THAT(finding["text"].get<std::string>(), HasSubstr("is gone"));
    EXPECT_THAT(finding["text"].get<std::string>(), HasSubstr("in phase forward of step"));
    break;
  }
}

TEST_F(FaultMatrix, AStoppedRankIsNamedAsStopped) {
  std::chrono::steady_clock::time_point stopped = std::chrono::steady_clock::now();
  std::thread stopper([&] {
    const std::filesystem::path metrics = fixture->path("stopped") / "metrics.jsonl";
    for (int i = 0; i < 1200 && NumLines(metrics) < 10; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const nlohmann::json ranks = Flight("stopped")["ranks"];
    if (ranks.size() < 2) return ADD_FAILURE() << ranks.dump();
    stopped = std::chrono::steady_clock::now();
    EXPECT_EQ(::kill(ranks[1]["pid"].get<pid_t>(), SIGSTOP), 0);
  });
  const Outcome outcome = Train("stopped", "", kNoSaves, kTimeout);
  const auto ended = std::chrono::steady_clock::now();
  stopper.join();
  const std::chrono::duration<double> took = ended - stopped;
  EXPECT_EQ(outcome.result.exit_code, 71) << outcome.result.err;
  EXPECT_LT(took.count(), kTimeout + kGrace);
  EXPECT_THAT(outcome.first, ContainsRegex("nothing came from rank 1|not received by rank 1"));
  EXPECT_THAT(outcome.first, HasSubstr("rank 1 (pid"));
  EXPECT_THAT(outcome.first, HasSubstr("is stopped, its last sign of life "));
}

// The writer thread fails while training continues.
TEST_F(FaultMatrix, AWriterThatThrowsEndsTheRunAndOneThatHangsIsFound) {
  const Outcome throws = Train("writer_throws", "ckpt.p1.write:throw:9:1", {"ckpt.every=5"});
  EXPECT_EQ(throws.result.exit_code, 70) << throws.result.err;
  EXPECT_THAT(throws.first, HasSubstr("rank 1: "));
  EXPECT_THAT(throws.first, HasSubstr("injected at ckpt.p1.write"));

  const Outcome hangs = Train("writer_hangs", "ckpt.p1.write:stall:9:1",
                              {"ckpt.every=5", "ckpt.timeout_s=3"}, kTimeout);
  EXPECT_EQ(hangs.result.exit_code, 71) << hangs.result.err;
  EXPECT_LT(hangs.seconds, kStart + kTimeout + kGrace);
  EXPECT_THAT(hangs.first, HasSubstr("not all ranks had written their shard within 3 s"));
  EXPECT_THAT(hangs.first, HasSubstr("rank 1 has not issued ckpt #"));
}

// A rank whose shard is late by more than ckpt.timeout_s cancels that save. Training goes on.
TEST_F(FaultMatrix, ALateShardEndsOnlyTheSave) {
  ExpectExit(fixture->Run({.run = "writer_late",
                           .ranks = 2,
                           .set = {"train.steps=20", "ckpt.every=5", "ckpt.timeout_s=1.2"},
                           .env = {{"HL_FAULT", "ckpt.p1.write:delay:9:1"}}}),
             0,
             {"a save failed, training goes on: not all ranks had written their shard within 1.2 s "
              "(ckpt.timeout_s): rank 1 took"});
  EXPECT_TRUE(std::filesystem::exists(fixture->path("writer_late/ckpt/step_000000000020")));
}

// A storage error does not end the run: all ranks abandon the save, and the next one succeeds.
TEST_F(FaultMatrix, AStorageErrorEndsOnlyTheSave) {
  ExpectExit(fixture->Run({.run = "writer_eio",
                           .ranks = 2,
                           .set = {"train.steps=20", "ckpt.every=5"},
                           .env = {{"HL_FAULT", "ckpt.p1.write:eio:9:1"}}}),
             0, {"a save failed, training goes on: rank 1: injected"});
  EXPECT_TRUE(std::filesystem::exists(fixture->path("writer_eio/ckpt/step_000000000020")));
}

}  // namespace
}  // namespace halflife::test
