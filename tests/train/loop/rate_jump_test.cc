// A run that resumes with another schedule warns if its learning rate jumps.
#include "train/loop/run_guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/config/schedule.h"

namespace halflife::train {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kPeak = 3e-3;

// Resumes a run of `steps` steps at `step` and extends it to `longer` steps.
ResumedRate Extended(const ScheduleConfig& schedule, int64_t step, int64_t steps, int64_t longer) {
  return {.step = step,
          .last = kPeak * LearningRateFactor(schedule, step - 1, steps),
          .planned = kPeak * LearningRateFactor(schedule, step - 1, longer),
          .next = kPeak * LearningRateFactor(schedule, step, longer)};
}

TEST(RateJump, ARunThatContinuesItsScheduleIsSilent) {
  for (const char* kind : {"cosine", "linear", "constant", "wsd"}) {
    const ScheduleConfig schedule = {.kind = kind, .warmup_steps = 5, .final_lr_ratio = 0};
    for (int64_t step = 1; step < 20; ++step)
      EXPECT_EQ(RateJumpWarning(Extended(schedule, step, 20, 20), kind, 20), "")
          << kind << " at " << step;
  }
}

TEST(RateJump, AnExtendedRunNamesBothRatesAndTheOptionsThatAvoidIt) {
  ResumedRate wsd = Extended({.kind = "wsd"}, 100, 100, 200);
  EXPECT_EQ(RateJumpWarning(wsd, "wsd", 200),
            "the learning rate jumps from 0.0003 at step 100 (the checkpoint) to 0.003 at step 101 "
            "(this run's wsd schedule of 200 steps). To keep the old rate, stop this run and start "
            "it with --set schedule.kind=constant --set optimizer.lr=0.0003 --allow-change "
            "schedule.kind --allow-change optimizer.lr.");
  wsd.own = true;
  wsd.before_decay = 90;
  const std::string own = RateJumpWarning(wsd, "wsd", 200);
  EXPECT_THAT(own, HasSubstr("start it with --resume step=100 --set schedule.kind=constant"));
  EXPECT_THAT(own, HasSubstr("from before the decay, start it with --resume step=90."));
  EXPECT_THAT(RateJumpWarning(Extended({.kind = "cosine"}, 100, 100, 200), "cosine", 200),
              HasSubstr("jumps from 0.0003 at step 100 (the checkpoint) to 0.00163"));
}

TEST(RateJump, TheStableStepsOfAWsdRunCanBeExtended) {
  const ScheduleConfig wsd = {.kind = "wsd", .warmup_steps = 5, .decay_steps = 10};
  const auto before = StepsBeforeDecay(wsd, 100);
  EXPECT_EQ(RateJumpWarning(Extended(wsd, before, 100, 200), "wsd", 200), "");
  EXPECT_NE(RateJumpWarning(Extended(wsd, before + 5, 100, 200), "wsd", 200), "");
}

// The warning must not suggest an option that results in a rate of 0.
TEST(RateJump, ARateOfZeroIsNotKept) {
  const std::string warning =
      RateJumpWarning({.step = 9, .last = 0, .planned = 1e-3, .next = 1e-3}, "linear", 20);
  EXPECT_THAT(warning, HasSubstr("To choose another rate, stop this run and start it with --set "
                                 "schedule.kind=constant --set optimizer.lr=RATE "));
}

TEST(RateJump, AConstantScheduleNeedsAnotherRateOnly) {
  const std::string warning =
      RateJumpWarning({.step = 9, .last = 1e-3, .planned = 2e-3, .next = 2e-3}, "constant", 20);
  EXPECT_THAT(warning, HasSubstr("--set optimizer.lr=0.001 --allow-change optimizer.lr."));
  EXPECT_THAT(warning, Not(HasSubstr("schedule.kind")));
}

// A constant schedule has a warm-up, too.
TEST(RateJump, AWarmUpIsTurnedOffToKeepTheRate) {
  EXPECT_THAT(
      RateJumpWarning({.step = 9, .last = 1e-3, .planned = 2e-4, .next = 3e-4, .warming_up = true},
                      "constant", 20),
      HasSubstr("--set schedule.warmup_steps=0 --set optimizer.lr=0.001 --allow-change "
                "schedule.warmup_steps --allow-change optimizer.lr."));
}

TEST(RateJump, AScheduleOfPhasesIsReplacedAsAWhole) {
  const std::string warning =
      RateJumpWarning({.step = 9, .last = 1e-3, .planned = 2e-3, .next = 2e-3}, "phases", 20);
  EXPECT_THAT(warning, HasSubstr("(this run's schedule of phases of 20 steps). To keep the old "
                                 "rate, stop this run and start it with --set "
                                 "schedule.kind=constant --set 'schedule.phase=[]' --set "
                                 "optimizer.lr=0.001 --allow-change schedule.kind --allow-change "
                                 "schedule.phase --allow-change optimizer.lr."));
}

TEST(RateJump, FindsTheNewestStepBeforeADecay) {
  std::map<std::string, std::string> wsd = {{"schedule.kind", "wsd"},
                                            {"schedule.warmup_steps", "5"},
                                            {"schedule.decay_steps", "20"},
                                            {"train.steps", "100"}};
  std::vector<ckpt::StepDir> steps;
  for (const uint64_t number : {100, 85, 75})
    steps.push_back({ckpt::StepDir::Kind::kPublished, number, ckpt::StepName(number)});
  const auto newest = [&](const std::map<std::string, std::string>& trajectory, uint64_t step) {
    return NewestBeforeDecay(trajectory, step, steps);
  };
  EXPECT_EQ(newest(wsd, 100), 75u);
  EXPECT_EQ(newest(wsd, 80), std::nullopt) << "the decay has not begun";
  wsd["schedule.decay_steps"] = "10";
  EXPECT_EQ(newest(wsd, 100), 85u);
  wsd["schedule.decay_steps"] = "60";
  EXPECT_EQ(newest(wsd, 100), std::nullopt) << "no such step is left";
  wsd["schedule.kind"] = "cosine";
  EXPECT_EQ(newest(wsd, 100), std::nullopt);
  EXPECT_EQ(newest({}, 100), std::nullopt);
}

}  // namespace
}  // namespace halflife::train
