// How ranks start under mpirun and srun, and how failures of a rank end the whole world.
#include "dist/rank_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/clock.h"
#include "support/expect_error.h"
#include "support/subprocess.h"

namespace halflife::dist {
namespace {

using halflife::test::RunCommand;
using halflife::test::RunOptions;
using halflife::test::RunRanks;
using halflife::test::RunResult;
using testing::AllOf;
using testing::HasSubstr;

RunResult Probe(int ranks, const std::string& mode, std::map<std::string, std::string> env = {}) {
  return RunRanks(ranks, {HALFLIFE_RANK_PROBE, mode},
                  {.timeout_s = 60, .env = std::move(env), .cwd = ""});
}

TEST(RankContext, IsAWorldOfOneWithoutALauncher) {
  const std::unique_ptr<RankContext> context = RankContext::Create({});
  EXPECT_EQ(context->rank(), 0);
  EXPECT_EQ(context->world_size(), 1);
  EXPECT_EQ(context->local_size(), 1);
  EXPECT_FALSE(context->host().empty());
  context->RequireSameConfig("anything");
  float x = 2;
  context->world().AllReduce(Ref(&x, 1), ReduceOp::kSum, {"one", 0}, nullptr).WaitHost();
  EXPECT_EQ(x, 2);
  context->UseDevice({Device::Kind::kCpu, 0});
#ifndef HALFLIFE_WITH_CUDA
  EXPECT_HL_ERROR(context->UseDevice({Device::Kind::kCuda, 1}), ExitCode::kEnvironment,
                  "this build has no CUDA", "cuda:1", "-DHALFLIFE_CUDA=ON");
#endif
}

TEST(RankContext, AbortWorldKeepsTheCodeWithoutALauncher) {
  EXPECT_EXIT(RankContext::Create({})->AbortWorld(73), testing::ExitedWithCode(73), "");
}

TEST(LauncherEvidence, ReadsMpirunAndSrun) {
  const auto read = [](std::map<std::string, std::string> env) {
    for (const auto& [key, value] : env) ::setenv(key.c_str(), value.c_str(), 1);
    const LauncherEvidence evidence = ReadLauncherEvidence();
    for (const auto& [key, value] : env) ::unsetenv(key.c_str());
    return std::tuple(evidence.launched, evidence.rank, evidence.world_size);
  };
  EXPECT_EQ(read({}), std::tuple(false, 0, 1));
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}}),
            std::tuple(true, 3, 8));
  EXPECT_EQ(read({{"SLURM_PROCID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "16"}}),
            std::tuple(true, 5, 16));
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}}), std::tuple(false, 0, 1))
      << "a batch script is no rank";
  EXPECT_EQ(read({{"PMIX_RANK", "2"}}), std::tuple(true, 2, 1));
}

TEST(RankContext, WorksUnderMpirun) {
  const RunResult result = Probe(3, "context-info");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("0 3 0 3\n"), HasSubstr("1 3 1 3\n"), HasSubstr("2 3 2 3\n")));
}

TEST(RankContext, AThrowingRankEndsTheWorldAtOnceWithItsCode) {
  for (const char* mode : {"throw", "throw-open"}) {
    const Stopwatch stopwatch;
    const RunResult result = Probe(3, mode);
    EXPECT_EQ(result.exit_code, 3) << mode << result.err;
    EXPECT_THAT(result.err, HasSubstr("shard 7 is damaged"));
    EXPECT_LT(stopwatch.Seconds(), 20);
  }
}

TEST(RankContext, ALateRankIsATimeoutThatNamesIt) {
  const RunResult result = Probe(2, "timeout");
  EXPECT_EQ(result.exit_code, 71) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("timeout: all_reduce 'grads' 0 (group world, seq 0, 4.0 MiB"),
                    HasSubstr("waited 2 s; nothing came from rank 1")));
}

TEST(RankContext, ADesyncEndsAsATimeout) {
  const RunResult result = Probe(2, "desync");
  EXPECT_EQ(result.exit_code, 71) << result.err;
  EXPECT_THAT(result.err, HasSubstr("timeout"));
}

// Returns the number of processes that have `variable` in their environment.
int NumProcessesWith(const std::string& variable) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string environment(std::istreambuf_iterator<char>(file), {});
    count += ('\0' + environment).find('\0' + variable + '\0') != std::string::npos;
  }
  return count;
}

TEST(RankContext, AnyDeathOfARankEndsAllWithItsCode) {
  struct Death {
    const char* mode;
    int exit_code;
  };
  for (const auto [mode, exit_code] : {Death{"death-kill", 137}, Death{"death-segv", 139},
                                       Death{"death-exit", 3}, Death{"death-abort", 17}}) {
    const std::string mark = std::string(mode) + std::to_string(::getpid());
    const RunResult result = Probe(2, mode, {{"HL_PROBE_MARK", mark}});
    EXPECT_EQ(result.exit_code, exit_code) << mode << result.err;
    const Stopwatch stopwatch;
    while (NumProcessesWith("HL_PROBE_MARK=" + mark) > 0 && stopwatch.Seconds() < 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(NumProcessesWith("HL_PROBE_MARK=" + mark), 0) << mode;
  }
}

TEST(RankContext, DifferentConfigsEndWithUsage) {
  const RunResult result = Probe(3, "config");
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("ranks disagree about the config: rank 2"),
                                HasSubstr("beef"), HasSubstr("cafe")));
}

TEST(RankContext, DifferentBuildsEndWithEnvironment) {
  const RunResult result = Probe(3, "build");
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("ranks run different versions: rank 2"), HasSubstr("pid")));
}

TEST(RankContext, NoRankLeavesBeforeTheLastHasFinished) {
  const RunResult result = Probe(3, "slow-end");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line : {"rank 0 done", "rank 1 done", "rank 2 done"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_EQ(Probe(3, "requeue").exit_code, 75) << "all ranks return it after the last barrier";
}

TEST(RankContext, ALauncherWithoutPmixIsExplained) {
  // As under srun without PMIx: the step has 4 tasks, but MPI starts as a singleton.
  const RunResult result = RunCommand({HALFLIFE_RANK_PROBE, "context-info"},
                                      {.timeout_s = 60,
                                       .env = {{"SLURM_PROCID", "0"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_STEP_NUM_TASKS", "4"},
                                               {"OMPI_MCA_ess_singleton_isolated", "1"}},
                                       .cwd = ""});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("started 4 tasks, but MPI sees a world of 1"),
                                HasSubstr("srun --mpi=pmix")));
}

}  // namespace
}  // namespace halflife::dist
