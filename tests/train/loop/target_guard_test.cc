// A run ends with an error if an epoch passes without any target.
#include "train/loop/run_guards.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

StepResult WithTargets(int64_t num_targets) {
  StepResult result;
  result.num_targets = num_targets;
  return result;
}

data::SampleOrder EpochsOf(int64_t steps) { return {.num_windows = 8 * steps, .global_batch = 8}; }

TEST(TargetGuard, EndsAfterAnEpochThatIsNotTooShortOrTooLong) {
  RunConfig config;
  config.train.steps = 100000;
  for (const auto& [epoch, most] : {std::pair{1, 100}, {250, 250}, {5000, 1000}})
    EXPECT_EQ(TargetGuard(config, EpochsOf(epoch)).max_in_a_row(), most);
  config.train.steps = 7;
  EXPECT_EQ(TargetGuard(config, EpochsOf(250)).max_in_a_row(), 7);
}

TEST(TargetGuard, NamesTheObjectiveAndTheDataset) {
  RunConfig config;
  config.train.steps = 3;
  config.data.path = "rows.data";
  TargetGuard guard(config, EpochsOf(1));
  guard.NoteStep(1, WithTargets(0));
  guard.NoteStep(2, WithTargets(0));
  EXPECT_HL_ERROR(guard.NoteStep(3, WithTargets(0)), ExitCode::kData,
                  "step 3: no row of the last 3 steps has a target of the objective next_token",
                  "rows.data", "are all documents one token long");
}

TEST(TargetGuard, ATargetResetsTheCount) {
  RunConfig config;
  config.train.steps = 3;
  TargetGuard guard(config, EpochsOf(1));
  for (int step = 1; step < 100; ++step)
    EXPECT_NO_THROW(guard.NoteStep(step, WithTargets(step % 3 == 0 ? 1 : 0)));
}

}  // namespace
}  // namespace halflife::train
