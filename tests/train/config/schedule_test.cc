// Checks the learning rate schedules: warm-up, decay, floors and the warnings about them.
#include "train/config/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/paths.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

TEST(Schedule, WarmUpIsLinearAndReachesOne) {
  const ScheduleConfig config{.kind = "cosine", .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 0, 100), 0.25);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 3, 100), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 4, 100), 1.0);
}

TEST(Schedule, EveryDecayEndsAtItsFloor) {
  for (const char* kind : {"cosine", "linear", "wsd"}) {
    const ScheduleConfig config{.kind = kind, .warmup_steps = 10, .final_lr_ratio = 0.2};
    EXPECT_NEAR(LearningRateFactor(config, 999, 1000), 0.2, 1e-12) << kind;
    double previous = 1;
    for (int step = 10; step < 1000; ++step) {
      const double factor = LearningRateFactor(config, step, 1000);
      EXPECT_LE(factor, previous) << kind << " at " << step;
      EXPECT_GE(factor, 0.2 - 1e-12) << kind << " at " << step;
      previous = factor;
    }
  }
}

TEST(Schedule, GoldenMiddles) {
  // linear: half-way between 1 and 0 of steps 0..100. cosine: the same point, by symmetry.
  EXPECT_DOUBLE_EQ(LearningRateFactor({.kind = "linear", .final_lr_ratio = 0}, 50, 101), 0.5);
  EXPECT_NEAR(LearningRateFactor({.kind = "cosine", .final_lr_ratio = 0}, 50, 101), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(LearningRateFactor({.kind = "constant"}, 999, 1000), 1);
}

TEST(Schedule, WsdHoldsThenDecaysOverItsOwnLength) {
  const ScheduleConfig config{
      .kind = "wsd", .warmup_steps = 5, .decay_steps = 20, .final_lr_ratio = 0};
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 50, 100), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 80, 100), 1);
  EXPECT_LT(LearningRateFactor(config, 81, 100), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 99, 100), 0);
}

// 1 - sqrt of the way through the decay, which has 16 steps behind step 84.
TEST(Schedule, WsdDecaysByARoot) {
  ScheduleConfig config{.kind = "wsd", .decay_steps = 16, .final_lr_ratio = 0};
  config.decay_shape = "sqrt";
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 85, 102), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 86, 102), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 101, 102), 0);
  EXPECT_NEAR(LearningRateFactor(config, 86 + 5, 102), 1 - std::sqrt(5 / 15.), 1e-15);
  config.final_lr_ratio = 0.2;
  EXPECT_NEAR(LearningRateFactor(config, 86 + 5, 102), 1 - 0.8 * std::sqrt(5 / 15.), 1e-15);
}

// The learning rates of the ReBased runs: 3e-3, over 64 epochs.
TEST(Schedule, OneRateAnEpoch) {
  const ScheduleConfig config{.kind = "cosine", .final_lr_ratio = 0, .per_epoch = true};
  const auto rate = [&](int64_t epoch) {
    return 3e-3 * LearningRateFactorOfEpoch(config, epoch, 64);
  };
  EXPECT_DOUBLE_EQ(rate(0), 3e-3);
  EXPECT_NEAR(rate(1), 2.99819e-3, 5e-9);
  EXPECT_NEAR(rate(32), 1.5e-3, 1e-15);
  EXPECT_NEAR(rate(63), 1.81e-6, 5e-9);
}

// Property 21 of D2D, on its recipe. The original code trains its first update with a rate of 0.
// Here update n has the rate of the original update n + 1, so no update is wasted.
TEST(Schedule, D2dRisesForThreeThousandUpdatesAndEndsAtZero) {
  const RunConfig config =
      LoadRunConfig(std::string(test::kSourceDir) + "/launch/recipes/d2d_124m.textproto", {});
  const int64_t steps = config.train.steps;
  const auto rate_of_update = [&](int64_t update) {
    return update == 0
               ? 0
               : config.optimizer.lr * LearningRateFactor(config.schedule, update - 1, steps);
  };
  EXPECT_EQ(steps, 178507);
  EXPECT_NEAR(rate_of_update(0), 0, 1e-15);
  EXPECT_NEAR(rate_of_update(1500), 2.5e-4, 1e-15);
  EXPECT_NEAR(rate_of_update(3000), 5e-4, 1e-15);
  EXPECT_NEAR(rate_of_update(steps), 0, 1e-15);
  const int64_t middle = (3000 + steps) / 2;
  EXPECT_NEAR(rate_of_update(middle), 2.5e-4, 1e-8);  // Half a cosine is odd about its middle.
}

// The first and the last step of the decay are the same step, so the fraction between them is
// undefined.
TEST(Schedule, ADecayOfOneStepEndsAtItsFloor) {
  for (int64_t steps = 2; steps < 20; ++steps) {
    const ScheduleConfig wsd{.kind = "wsd", .final_lr_ratio = 0.2};
    EXPECT_DOUBLE_EQ(LearningRateFactor(wsd, steps - 2, steps), 1) << steps;
    EXPECT_DOUBLE_EQ(LearningRateFactor(wsd, steps - 1, steps), 0.2) << steps;
  }
  for (const char* kind : {"cosine", "linear"}) {
    const ScheduleConfig config{.kind = kind, .warmup_steps = 2, .final_lr_ratio = 0.2};
    EXPECT_DOUBLE_EQ(LearningRateFactor(config, 1, 3), 1) << kind;
    EXPECT_NEAR(LearningRateFactor(config, 2, 3), 0.2, 1e-15) << kind;
  }
}

TEST(Schedule, ARunOfOneStepHasThePeak) {
  for (const char* kind : {"cosine", "linear", "wsd", "constant"})
    EXPECT_DOUBLE_EQ(LearningRateFactor({.kind = kind, .final_lr_ratio = 0.2}, 0, 1), 1) << kind;
}

TEST(Schedule, StepsBeforeTheDecayAreAtThePeakOrBelow) {
  EXPECT_EQ(StepsBeforeDecay({.kind = "constant", .warmup_steps = 5}, 100), 100);
  EXPECT_EQ(StepsBeforeDecay({.kind = "cosine", .warmup_steps = 5}, 100), 5);
  EXPECT_EQ(StepsBeforeDecay({.kind = "wsd", .warmup_steps = 5}, 100), 90);
  EXPECT_EQ(StepsBeforeDecay({.kind = "wsd", .warmup_steps = 5, .decay_steps = 30}, 100), 70);
  EXPECT_EQ(StepsBeforeDecay({.kind = "wsd", .warmup_steps = 80, .decay_steps = 30}, 100), 80);
}

TEST(Schedule, AWarmUpThatFillsTheRunIsReported) {
  const auto warning = [](const char* kind, int64_t warmup, int64_t steps) {
    return ScheduleWarning({.kind = kind, .warmup_steps = warmup}, steps);
  };
  for (const char* kind : {"cosine", "linear", "constant", "wsd"}) {
    EXPECT_EQ(warning(kind, 99, 1000), "") << kind;
    EXPECT_EQ(warning(kind, 1, 1), "") << kind;
    EXPECT_EQ(warning(kind, 200, 100),
              "schedule.warmup_steps 200 is not below the run's 100 steps (train.steps): the "
              "learning rate never reaches its peak, optimizer.lr. Use fewer warm-up steps or a "
              "longer run.")
        << kind;
    EXPECT_THAT(warning(kind, 100, 100), testing::HasSubstr("only in the last step")) << kind;
  }
}

TEST(Schedule, AWsdDecayThatIsCutIsReported) {
  const auto warning = [](int64_t warmup, int64_t decay) {
    return ScheduleWarning({.kind = "wsd", .warmup_steps = warmup, .decay_steps = decay}, 100);
  };
  EXPECT_EQ(warning(80, 20), "");
  EXPECT_EQ(warning(80, 50),
            "schedule.warmup_steps 80 and a decay of 50 steps (schedule.decay_steps) do not fit in "
            "the run's 100 steps (train.steps): the decay is cut to 20 steps. Shorten one of them, "
            "or use a longer run.");
  EXPECT_THAT(warning(95, 0), testing::HasSubstr("a decay of 10 steps"));
  EXPECT_EQ(ScheduleWarning({.kind = "linear", .warmup_steps = 80, .decay_steps = 50}, 100), "");
}

TEST(Schedule, RunShorterThanItsWarmUp) {
  const ScheduleConfig config{.kind = "cosine", .warmup_steps = 10};
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 9, 10), 1);
}

}  // namespace
}  // namespace halflife::train
