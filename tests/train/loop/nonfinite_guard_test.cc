// Checks when steps with non-finite values are skipped and when the run stops.
#include "train/loop/run_guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

using testing::HasSubstr;

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

// The losses 2 and 4 in turn have the mean 3 and the standard deviation 1.
TEST(SpikeGuard, AcceptsLossesUpToTheirDeviation) {
  RunConfig config = Config("skip", 2);
  ckpt::GuardState guard;
  StepResult result;
  for (size_t i = 0; i < 3 * kSpikeWindow; ++i) {
    result.loss = i % 2 == 0 ? 2 : 4;
    GuardNonFinite(config, i + 1, result, guard);
  }
  EXPECT_TRUE(guard.loss_window.empty()) << "of a guard that is off";
  config.train.spike_sigmas = 5;
  for (size_t i = 0; i < 3 * kSpikeWindow; ++i) {
    EXPECT_EQ(std::isinf(LargestLoss(config, guard)), i < kSpikeWindow) << i;
    result.loss = i % 2 == 0 ? 2 : 4;
    GuardNonFinite(config, i + 1, result, guard);
  }
  EXPECT_EQ(guard.loss_window.size(), kSpikeWindow);
  EXPECT_NEAR(LargestLoss(config, guard), 3 + 5, 1e-12);
  StepResult spike;
  spike.loss = 9;
  spike.skipped = spike.spike = true;
  GuardNonFinite(config, 1, spike, guard);
  GuardNonFinite(config, 2, spike, guard);
  EXPECT_NEAR(LargestLoss(config, guard), 8, 1e-12) << "a spike does not raise the limit";
  EXPECT_HL_ERROR(GuardNonFinite(config, 3, spike, guard), ExitCode::kNonFinite,
                  "step 3: the loss 9 is 5 standard deviations above", "3 in a row",
                  "--resume step=N");
}

TEST(SpikeGuard, GoesBackAfterSeveralSpikesInItsWindow) {
  RunConfig config = Config("skip", 9);
  config.train.spike_sigmas = 5;
  config.train.max_rollbacks = 2;
  config.train.rollback_spikes = 2;
  config.train.rollback_window = 10;
  ckpt::GuardState guard;
  StepResult spike;
  spike.skipped = spike.spike = true;
  const auto is_due = [&](uint64_t step) {
    GuardNonFinite(config, step, spike, guard);
    GuardNonFinite(config, step + 1, StepResult{}, guard);
    EXPECT_FALSE(RollbackIsDue(config, step + 1, guard)) << "after a step that is no spike";
    return RollbackIsDue(config, step, guard);
  };
  EXPECT_FALSE(is_due(100));
  EXPECT_FALSE(is_due(110)) << "10 steps later";
  EXPECT_TRUE(is_due(119));
  EXPECT_EQ(guard.spikes, (std::vector<uint64_t>{110, 119}));
  guard.rollbacks = 2;
  EXPECT_HL_ERROR(is_due(121), ExitCode::kNonFinite, "the run has gone back 2 times already");
  config.train.max_rollbacks = 0;
  EXPECT_FALSE(RollbackIsDue(config, 121, guard));

  // The steps of a folder, newest first.
  const std::vector<ckpt::StepDir> steps = {{.step = 115}, {.step = 105}, {.step = 95}};
  EXPECT_EQ(StepToGoBackTo(steps, {.spikes = {110, 119}}), 105u);
  EXPECT_EQ(StepToGoBackTo(steps, {.spikes = {95, 119}}), 95u) << "none is from before";
  EXPECT_EQ(StepToGoBackTo({}, {.spikes = {95}}), std::nullopt);
}

TEST(SpikeGuard, WarnsIfCheckpointsAreDeletedBeforeARollbackNeedsThem) {
  RunConfig config = Config("skip", 9);
  config.train.max_rollbacks = 2;
  config.train.rollback_window = 100;
  config.ckpt.every = 49;
  config.ckpt.store.retention.keep_last = 3;
  EXPECT_EQ(RollbackWarning(config),
            "ckpt.keep_last 3 and ckpt.every 49 keep checkpoints that span 98 steps, and "
            "train.rollback_window is 100: a rollback may find none from before the spikes. Use a "
            "larger ckpt.keep_last.");
  // At step 251, the spikes are at 152 or later, and steps 150, 200 and 250 are kept.
  config.ckpt.every = 50;
  EXPECT_EQ(RollbackWarning(config), "");
  // Saves of the best validation count as well.
  config.ckpt.store.retention.keep_best = "val_loss";
  config.eval.every = 10;
  EXPECT_THAT(RollbackWarning(config),
              HasSubstr("ckpt.every 50, with a save after each best validation (eval.every 10), "
                        "keep checkpoints that span 20 steps"));
  config.ckpt.store.retention.keep_best = "";
  config.ckpt.every = 5;
  config.ckpt.store.retention.keep_every = 50;
  EXPECT_EQ(RollbackWarning(config), "");
  config = RunConfig();
  config.ckpt.every = 1;
  EXPECT_EQ(RollbackWarning(config), "") << "without rollbacks";
}

TEST(Patience, EndsAfterValidationsWithoutANewBest) {
  RunConfig config;
  config.train.patience = 2;
  std::map<std::string, double> metrics;
  const auto validate = [&](double loss) {
    metrics["val_loss"] = loss;
    NotePatience(config, metrics);
    return OutOfPatience(config, metrics);
  };
  EXPECT_FALSE(OutOfPatience(config, metrics));
  for (const double loss : {3.0, 3.5, 2.5, 2.5}) EXPECT_FALSE(validate(loss)) << loss;
  EXPECT_TRUE(validate(2.6));
  config.train.patience = 3;  // A resume may allow more.
  EXPECT_FALSE(OutOfPatience(config, metrics));
  config.ckpt.store.retention.keep_best = "val_loss/code";
  EXPECT_HL_ERROR(NotePatience(config, metrics), ExitCode::kUsage,
                  "train.patience: the validation has no val_loss/code. Name one");
}

TEST(Patience, ComparesValuesOfOneMetricAndNeverWithNan) {
  RunConfig config;
  config.train.patience = 2;
  std::map<std::string, double> metrics;
  const auto validate = [&](double loss, double of_code) {
    metrics["val_loss"] = loss;
    metrics["val_loss/code"] = of_code;
    NotePatience(config, metrics);
    return OutOfPatience(config, metrics);
  };
  EXPECT_FALSE(validate(NAN, 5));
  EXPECT_FALSE(validate(1.0, 5)) << "better than NaN";
  EXPECT_FALSE(validate(1.5, 5));
  config.ckpt.store.retention.keep_best = "val_loss/code";  // As a resumed run may choose.
  for (const double of_code : {4.0, 3.0, 3.5}) EXPECT_FALSE(validate(2.0, of_code)) << of_code;
  EXPECT_TRUE(validate(0.5, 3.5));
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
