// Checks when a run stops: time limit, signals and a closed terminal.
#include "train/loop/stop_policy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

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

// Runs `check` in a process of its own, because a request cannot be withdrawn.
void InOwnProcess(const std::function<void()>& check) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    check();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST(StopPolicy, AClosedTerminalAsksForASaveUnlessItIsToBeIgnored) {
  const auto raise_where = [](void (*disposition)(int), bool saves) {
    InOwnProcess([&] {
      std::signal(SIGHUP, disposition);
      StopFlags::InstallHandlers();
      std::raise(SIGHUP);
      EXPECT_EQ(StopPolicy(0).OwnRequests(0).any(Scalar::kSaveAndRequeue), saves);
    });
  };
  raise_where(SIG_DFL, true);
  raise_where(SIG_IGN, false);  // As under nohup.
}

TEST(StopPolicy, SignalsAndTheLimitBecomeRequests) {
  InOwnProcess([] {
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
  });
}

}  // namespace
}  // namespace halflife::train
