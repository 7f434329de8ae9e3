// Checks when steps with non-finite values are skipped and when the run stops.
#include "train/loop/run_guards.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

RunConfig Config(const std::string& on_nonfinite, int max_skips) {
  RunConfig config;
  config.train.on_nonfinite = on_nonfinite;
  config.train.max_skips = max_skips;
  return config;
}

StepResult Skipped() {
  StepResult result;
  result.skipped = true;
  result.nonfinite = "the loss of rank 1";
  return result;
}

TEST(NonFiniteGuard, CountsWhatIsSkippedAndForgivesAfterAFiniteStep) {
  const RunConfig config = Config("skip", 2);
  ckpt::GuardState guard;
  for (uint64_t step = 1; step <= 6; step += 3) {
    GuardNonFinite(config, step, Skipped(), guard);
    GuardNonFinite(config, step + 1, Skipped(), guard);
    EXPECT_EQ(guard.consecutive_skips, 2u);
    GuardNonFinite(config, step + 2, StepResult{}, guard);
    EXPECT_EQ(guard.consecutive_skips, 0u);
  }
  EXPECT_EQ(guard.skipped, 4u);
}

TEST(NonFiniteGuard, StopsAfterMoreInARowThanAllowed) {
  const RunConfig config = Config("skip", 2);
  ckpt::GuardState guard{.consecutive_skips = 2};
  EXPECT_HL_ERROR(GuardNonFinite(config, 12, Skipped(), guard), ExitCode::kNonFinite,
                  "step 12: the loss of rank 1 is not finite (3 in a row", "train.max_skips 2",
                  "a smaller optimizer.clip_norm");
}

// Such a step gives no evidence about whether the run is finite.
TEST(NonFiniteGuard, AStepWithoutATargetIsOnlySkipped) {
  ckpt::GuardState guard{.consecutive_skips = 2};
  StepResult empty;
  empty.skipped = true;
  for (uint64_t step = 1; step <= 9; ++step) GuardNonFinite(Config("stop", 0), step, empty, guard);
  EXPECT_EQ(guard.skipped, 9u);
  EXPECT_EQ(guard.consecutive_skips, 2u);
}

TEST(NonFiniteGuard, StopsAtOnceWhereTheRecipeSaysSo) {
  RunConfig config = Config("stop", 100);
  config.optimizer.clip_norm = 0;
  ckpt::GuardState guard;
  EXPECT_HL_ERROR(GuardNonFinite(config, 1, Skipped(), guard), ExitCode::kNonFinite,
                  "train.on_nonfinite is 'stop'", "clip the gradient");
  GuardNonFinite(config, 2, StepResult{}, guard);
}

}  // namespace
}  // namespace halflife::train
