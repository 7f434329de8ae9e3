// Checks the learning rate schedules: warm-up, decay, floors and the warnings about them.
#include "train/config/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
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

// Warm-up, two stages with a drop between them, and a decay; of 1000 steps.
ScheduleConfig FourPhases() {
  return {.kind = "phases",
          .phases = {{.name = "warmup", .steps = 100, .from = 0, .to = 1},
                     {.name = "stage1"},
                     {.name = "stage2", .share = 0.2, .from = 0.5},
                     {.name = "decay", .share = 0.1, .to = 0, .shape = "sqrt"}}};
}

TEST(SchedulePhases, FollowEachOther) {
  const ScheduleConfig config = FourPhases();
  const auto factor = [&](int64_t step) { return LearningRateFactor(config, step, 1000); };
  EXPECT_EQ(factor(0), 0.01);
  EXPECT_EQ(factor(99), 1);
  EXPECT_EQ(factor(100), 1);
  EXPECT_EQ(factor(699), 1);
  EXPECT_EQ(factor(700), 0.5);
  EXPECT_EQ(factor(899), 0.5);
  EXPECT_DOUBLE_EQ(factor(900), 0.5 * (1 - std::sqrt(0.01)));
  EXPECT_DOUBLE_EQ(factor(924), 0.25);
  EXPECT_EQ(factor(999), 0);
  EXPECT_EQ(StepsBeforeDecay(config, 1000), 900);
  EXPECT_EQ(ScheduleWarning(config, 1000), "");
  EXPECT_EQ(config.PhasesText(),
            "100 steps from 0 to 1, the rest, 0.2 of the run from 0.5, 0.1 of the run to 0 (sqrt)");
}

// In bits. The step before a decay of wsd has the peak rate too, so its decay has a step less.
TEST(SchedulePhases, HaveTheOtherKindsAsSpecialCases) {
  const PhaseConfig warmup = {.name = "warmup", .steps = 7, .from = 0, .to = 1};
  const auto expect_equal = [](const ScheduleConfig& kind, const ScheduleConfig& phases) {
    for (int64_t step = 0; step < 100; ++step)
      EXPECT_EQ(LearningRateFactor(kind, step, 100), LearningRateFactor(phases, step, 100))
          << kind.kind << " at " << step;
  };
  for (const char* shape : {"linear", "sqrt"})
    expect_equal(
        {.kind = "wsd", .warmup_steps = 7, .decay_steps = 20, .decay_shape = shape},
        {.kind = "phases",
         .phases = {
             warmup, {.name = "stable"}, {.name = "d", .steps = 19, .to = 0.1, .shape = shape}}});
  for (const char* shape : {"linear", "cosine"})
    expect_equal(
        {.kind = shape, .warmup_steps = 7},
        {.kind = "phases",
         .phases = {warmup, {.name = "p", .steps = 1}, {.name = "d", .to = 0.1, .shape = shape}}});
  expect_equal({.kind = "constant", .warmup_steps = 7},
               {.kind = "phases", .phases = {warmup, {.name = "stable"}}});
}

TEST(SchedulePhases, EveryShapeGoesFromOneRateToTheOther) {
  const std::map<std::string, double> middles = {
      {"linear", 0.5}, {"cosine", 0.5}, {"sqrt", 0.8 - 0.6 * std::sqrt(0.5)}, {"exponential", 0.4}};
  for (const auto& [shape, middle] : middles) {
    const Phase falls = {.begin = 10, .end = 20, .from = 0.8, .to = 0.2, .shape = shape};
    EXPECT_NEAR(falls.FactorAt(14), middle, 1e-15) << shape;
    EXPECT_NEAR(falls.FactorAt(19), 0.2, 1e-15) << shape;
    const Phase rises = {.begin = 10, .end = 20, .from = 0.2, .to = 0.8, .shape = shape};
    for (int64_t step = 10; step < 19; ++step) {
      EXPECT_LT(falls.FactorAt(step + 1), falls.FactorAt(step)) << shape;
      EXPECT_GT(rises.FactorAt(step + 1), rises.FactorAt(step)) << shape;
    }
  }
}

TEST(SchedulePhases, SharesWithASumOfOneEndWithTheRun) {
  const ScheduleConfig config = {.kind = "phases",
                                 .phases = {{.name = "a", .share = 0.1, .from = 0, .to = 1},
                                            {.name = "b", .share = 0.7},
                                            {.name = "c", .share = 0.1, .to = 0.5},
                                            {.name = "d", .share = 0.1, .to = 0.1}}};
  for (int64_t steps = 1; steps < 200; ++steps) {
    const std::vector<Phase> phases = PhasesOf(config, steps);
    EXPECT_EQ(phases.front().begin, 0);
    for (size_t i = 1; i < phases.size(); ++i) EXPECT_EQ(phases[i].begin, phases[i - 1].end);
    EXPECT_EQ(phases.back().end, steps);
    EXPECT_EQ(ScheduleWarning(config, steps), "");
  }
}

// A longer run continues the curve, and what does not fit is reported.
TEST(SchedulePhases, ThatAreCountedInStepsDoNotDependOnTheRun) {
  const ScheduleConfig config = {.kind = "phases",
                                 .phases = {{.name = "up", .steps = 10, .from = 0, .to = 1},
                                            {.name = "down", .steps = 40, .to = 0.2}}};
  for (int64_t step = 0; step < 30; ++step)
    EXPECT_EQ(LearningRateFactor(config, step, 30), LearningRateFactor(config, step, 100));
  EXPECT_EQ(LearningRateFactor(config, 99, 100), 0.2);
  EXPECT_EQ(ScheduleWarning(config, 50), "");
  EXPECT_EQ(ScheduleWarning(config, 30),
            "the phases of schedule.phase end at step 50, and the run has 30 steps (train.steps): "
            "phase down is cut, and the run ends at 0.6 x optimizer.lr. Use shorter phases or a "
            "longer run.");
  EXPECT_EQ(ScheduleWarning(config, 100),
            "the phases of schedule.phase end at step 50, and the run has 100 steps (train.steps): "
            "the learning rate then stays at 0.2 x optimizer.lr. Give one phase neither steps nor "
            "share, so that it lasts for the rest of the run, or use longer phases.");
}

}  // namespace
}  // namespace halflife::train
