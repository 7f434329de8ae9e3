// Checks when a run stops: time limit, signals and a closed terminal.
#include "train/loop/stop_policy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace halflife::train {
namespace {

TEST(StopPolicy, WithoutALimitTimeIsNeverUp) {
  StopPolicy policy(0);
  policy.NoteStep(1000);
  EXPECT_FALSE(policy.TimeIsUp(1e9));
}

// Before the first save its duration is unknown, so 5 s are reserved.
TEST(StopPolicy, KeepsTimeForASaveOfUnknownLength) {
  const StopPolicy policy(100);
  EXPECT_FALSE(policy.TimeIsUp(95));
  EXPECT_TRUE(policy.TimeIsUp(95.1));
}

TEST(StopPolicy, KeepsTwoOfTheLongestStepsTheLastValidationAndTwiceTheLastSave) {
  StopPolicy policy(100);
  policy.NoteStep(4);
  policy.NoteStep(3);
  EXPECT_FALSE(policy.TimeIsUp(100 - 2 * 4 - 5));
  EXPECT_TRUE(policy.TimeIsUp(100 - 2 * 4 - 5 + 0.1));
  policy.NoteValidation(20);
  policy.NoteValidation(10);
  EXPECT_FALSE(policy.TimeIsUp(100 - 8 - 10 - 5));
  EXPECT_TRUE(policy.TimeIsUp(100 - 8 - 10 - 5 + 0.1));
  policy.NoteSave(2);  // Shorter than the minimum that is reserved.
  EXPECT_FALSE(policy.TimeIsUp(100 - 8 - 10 - 5));
  policy.NoteSave(7);
  EXPECT_FALSE(policy.TimeIsUp(100 - 8 - 10 - 14));
  EXPECT_TRUE(policy.TimeIsUp(100 - 8 - 10 - 14 + 0.1));
}

TEST(StopPolicy, TheReducedRequestsDecide) {
  const auto code = [](std::initializer_list<Scalar> requests) {
    StepScalars scalars;
    for (const Scalar request : requests) scalars[request] = 1;
    return StopPolicy::CodeOf(scalars);
  };
  EXPECT_EQ(code({}), std::nullopt);
  EXPECT_EQ(code({Scalar::kSaveAndContinue}), std::nullopt);
  EXPECT_EQ(code({Scalar::kSaveAndRequeue}), ExitCode::kRequeue);
  EXPECT_EQ(code({Scalar::kTimeLimit}), ExitCode::kRequeue);
  EXPECT_EQ(code({Scalar::kSaveAndStop}), ExitCode::kInterrupted);
  // A user's stop has precedence over requeueing.
  EXPECT_EQ(code({Scalar::kSaveAndStop, Scalar::kSaveAndRequeue, Scalar::kTimeLimit}),
            ExitCode::kInterrupted);
}

// Each case runs in its own process, because a request cannot be withdrawn.
TEST(StopPolicy, AClosedTerminalAsksForASaveUnlessItIsToBeIgnored) {
  const auto exit_code_where = [](void (*disposition)(int)) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::signal(SIGHUP, disposition);
      StopFlags::InstallHandlers();
      std::raise(SIGHUP);
      ::_exit(StopPolicy(0).OwnRequests(0).any(Scalar::kSaveAndRequeue) ? 1 : 0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  EXPECT_EQ(exit_code_where(SIG_DFL), 1);
  EXPECT_EQ(exit_code_where(SIG_IGN), 0);  // As under nohup.
}

// This is the last test, because its requests cannot be withdrawn.
TEST(StopPolicy, SignalsAndTheLimitBecomeRequests) {
  StopFlags::InstallHandlers();
  const StopPolicy policy(100);
  EXPECT_FALSE(policy.OwnRequests(0).any(Scalar::kTimeLimit));
  EXPECT_TRUE(policy.OwnRequests(100).any(Scalar::kTimeLimit));

  EXPECT_FALSE(policy.OwnRequests(0).any(Scalar::kSaveAndContinue));
  std::raise(SIGUSR2);
  EXPECT_TRUE(policy.OwnRequests(0).any(Scalar::kSaveAndContinue));
  EXPECT_FALSE(policy.OwnRequests(0).any(Scalar::kSaveAndContinue)) << "one request, one save";

  EXPECT_FALSE(policy.OwnRequests(0).any(Scalar::kSaveAndRequeue));
  std::raise(SIGTERM);
  EXPECT_TRUE(policy.OwnRequests(0).any(Scalar::kSaveAndRequeue));
  EXPECT_TRUE(policy.OwnRequests(0).any(Scalar::kSaveAndRequeue)) << "until the run has stopped";
  EXPECT_FALSE(policy.OwnRequests(0).any(Scalar::kSaveAndStop));
}

}  // namespace
}  // namespace halflife::train
