// The queue of jobs, with shell scripts as jobs.
#include "sweep/job_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include "support/temp_dir.h"

namespace halflife::sweep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class JobQueue : public testing::Test {
 protected:
  // `ended` also records the exit code.
  Job Shell(const std::string& script, bool again = false) {
    const size_t number = num_jobs_++;
    return {.command = {.words = {"/bin/sh", "-c", script},
                        .environment = {},
                        .log = dir_ / ("log" + std::to_string(number))},
            .started =
                [this] {
                  ++running_;
                  most_ = std::max(most_, running_);
                  return true;
                },
            .ended =
                [this, number, again](int exit_code, double, bool stopping) {
                  --running_;
                  codes_.emplace_back(number, exit_code);
                  stopping_ |= stopping;
                  return again && codes_.size() < 3;
                }};
  }
  std::vector<std::pair<size_t, int>> Sorted() {
    std::ranges::sort(codes_);
    return codes_;
  }

  const test::TempDir dir_;
  size_t num_jobs_ = 0;
  int running_ = 0, most_ = 0;
  bool stopping_ = false;
  std::vector<std::pair<size_t, int>> codes_;
};

TEST_F(JobQueue, RunsAllDespiteFailuresWithALimitAtATime) {
  const std::vector<Job> jobs = {Shell("echo out; echo err >&2"), Shell("exit 7"),
                                 Shell("kill -KILL $$"), Shell("exit 0"), Shell("exit 3")};
  EXPECT_EQ(RunJobs(jobs, {.count = 2, .gpus = {}}), 0);
  using Code = std::pair<size_t, int>;
  EXPECT_THAT(Sorted(), ElementsAre(Code(0, 0), Code(1, 7), Code(2, 137), Code(3, 0), Code(4, 3)));
  EXPECT_EQ(most_, 2);
  EXPECT_EQ(Text(dir_ / "log0"), "out\nerr\n");
  EXPECT_FALSE(stopping_);
}

TEST_F(JobQueue, AProgramThatIsNotThereEndsWith127) {
  Job job = Shell("");
  job.command.words = {dir_ / "no_such_program"};
  RunJobs({job}, {.count = 1, .gpus = {}});
  EXPECT_EQ(codes_[0].second, 127);
}

TEST_F(JobQueue, StartsAgainWhatAsksForIt) {
  RunJobs({Shell("echo once >&2; exit 1", /*again=*/true)}, {.count = 1, .gpus = {}});
  EXPECT_EQ(codes_.size(), 3u);
  EXPECT_EQ(Text(dir_ / "log0"), "once\nonce\nonce\n");
}

TEST_F(JobQueue, EachSlotSeesItsGpuAndTheThreads) {
  std::vector<Job> jobs;
  for (int i = 0; i < 3; ++i)
    jobs.push_back(Shell("echo $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS; sleep 0.3"));
  RunJobs(jobs, {.count = 3, .gpus = {"4", "GPU-7"}, .threads = 5});
  EXPECT_EQ(Text(dir_ / "log0"), "4 5\n");
  EXPECT_EQ(Text(dir_ / "log1"), "GPU-7 5\n");
  EXPECT_EQ(Text(dir_ / "log2"), "4 5\n");
}

// Running jobs are asked to stop and waited for. Waiting jobs never start.
TEST_F(JobQueue, ASignalEndsIt) {
  const std::string parent = std::to_string(::getpid());
  const std::vector<Job> jobs = {Shell("trap 'echo told; exit 75' TERM; kill -USR1 " + parent +
                                       "; while :; do sleep 0.1; done"),
                                 Shell("echo never")};
  EXPECT_EQ(RunJobs(jobs, {.count = 1, .gpus = {}}), SIGUSR1);
  ASSERT_EQ(codes_.size(), 1u);
  EXPECT_EQ(codes_[0].second, 75);
  EXPECT_TRUE(stopping_);
  EXPECT_THAT(Text(dir_ / "log0"), HasSubstr("told"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "log1"));
}

TEST_F(JobQueue, AJobThatSaysNoIsLeftOut) {
  std::vector<Job> jobs = {Shell("echo never"), Shell("echo second")};
  jobs[0].started = [] { return false; };
  EXPECT_EQ(RunJobs(jobs, {.count = 1, .gpus = {}}), 0);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "log0"));
  EXPECT_EQ(Text(dir_ / "log1"), "second\n");
}

// If the terminal is closed, running jobs get TERM, after which they can save. HUP would kill them.
TEST_F(JobQueue, AHangUpEndsItByTerm) {
  const std::string parent = std::to_string(::getpid());
  EXPECT_EQ(
      RunJobs({Shell("trap 'exit 75' TERM; kill -HUP " + parent + "; while :; do sleep 0.1; done")},
              {.count = 1, .gpus = {}}),
      SIGHUP);
  ASSERT_EQ(codes_.size(), 1u);
  EXPECT_EQ(codes_[0].second, 75);
}

TEST_F(JobQueue, UnderNohupAHangUpIsNothing) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const std::string parent = std::to_string(::getpid());
  const std::vector<Job> jobs = {Shell("kill -HUP " + parent + "; kill -HUP $$; echo first"),
                                 Shell("echo second")};
  EXPECT_EQ(RunJobs(jobs, {.count = 1, .gpus = {}}), 0);
  std::signal(SIGHUP, before);
  EXPECT_EQ(Text(dir_ / "log0"), "first\n");  // It inherits ignored signals.
  EXPECT_EQ(Text(dir_ / "log1"), "second\n");
}

}  // namespace
}  // namespace halflife::sweep
