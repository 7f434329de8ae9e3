// Checks when a checkpoint is due and which failed saves end the run.
#include "train/loop/run_saves.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halflife::train {
namespace {

SaveConfig Config(int64_t every, const std::string& on_error, const std::string& keep_best = "") {
  return {.every = every, .on_error = on_error, .store = {.retention = {.keep_best = keep_best}}};
}

TEST(SavePolicy, IsDueAtEveryIntervalAndOnRequest) {
  const SavePolicy policy(Config(10, "warn"));
  EXPECT_FALSE(policy.IsDue(9, false));
  EXPECT_TRUE(policy.IsDue(10, false));
  EXPECT_FALSE(policy.IsDue(11, false));
  EXPECT_TRUE(policy.IsDue(11, true));
}

// RUN@best takes its measure from the name.
TEST(SavePolicy, NamesTheLossIfTheLowestIsKept) {
  std::map<std::string, double> metrics = {{"loss", 2.5}};
  SavePolicy(Config(10, "warn")).AddBest(metrics);
  EXPECT_EQ(metrics.size(), 1u);
  SavePolicy(Config(10, "warn", "loss")).AddBest(metrics);
  EXPECT_EQ(metrics.at("best_loss"), 2.5);
}

TEST(SavePolicy, WithoutAnIntervalOnlyRequestsSave) {
  const SavePolicy policy(Config(0, "warn"));
  EXPECT_FALSE(policy.IsDue(10, false));
  EXPECT_TRUE(policy.IsDue(10, true));
}

TEST(SavePolicy, KnowsWhichStepIsSaved) {
  SavePolicy policy(Config(10, "warn"));
  EXPECT_FALSE(policy.IsSaved(0));
  policy.NoteSaved(10);
  EXPECT_TRUE(policy.IsSaved(10));
  EXPECT_FALSE(policy.IsSaved(20));
  policy.GoesOnAfter(ExitCode::kCheckpointIo);
  EXPECT_TRUE(policy.IsSaved(10)) << "a failed save takes nothing away";
}

TEST(SavePolicy, OutlivesOneFailureBetweenTwoSaves) {
  SavePolicy policy(Config(10, "warn"));
  EXPECT_TRUE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
  policy.NoteSaved(20);
  EXPECT_TRUE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
  EXPECT_FALSE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
}

TEST(SavePolicy, EndsAtTheFirstFailureWhereTheRecipeSaysSo) {
  SavePolicy policy(Config(10, "stop"));
  EXPECT_FALSE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
}

TEST(SavePolicy, IsDueAfterAValidationThatIsTheBestSoFar) {
  SavePolicy policy(Config(0, "warn", "val_loss"));
  const double losses[] = {3, 2, 2, 2.5, std::nan(""), 1};
  const bool due[] = {true, true, false, false, false, true};
  for (int64_t step = 0; step < 6; ++step) {
    policy.NoteValidation(step, {{"loss", -1}, {"val_loss", losses[step]}});
    EXPECT_EQ(policy.IsDue(step, false), due[step]) << step;
    if (due[step]) policy.NoteSaved(step);
  }
  EXPECT_FALSE(policy.IsDue(6, false));
}

TEST(SavePolicy, OnlyTheMetricThatIsKeptMakesOneDue) {
  for (const char* kept : {"", "loss", "val_error"}) {
    SavePolicy policy(Config(0, "warn", kept));
    policy.NoteValidation(1, {{"loss", 1}, {"val_loss", 1}});
    EXPECT_FALSE(policy.IsDue(1, false)) << kept;
  }
}

TEST(SavePolicy, OnlyASavedBestCounts) {
  SavePolicy policy(Config(0, "warn", "val_loss"));
  policy.NoteValidation(1, {{"val_loss", 3}});
  policy.NoteSaved(1);
  policy.NoteValidation(2, {{"val_loss", 1}});
  policy.GoesOnAfter(ExitCode::kCheckpointIo);
  policy.NoteValidation(3, {{"val_loss", 2}});
  EXPECT_TRUE(policy.IsDue(3, false));
}

TEST(SavePolicy, TheBestTravelsWithACheckpoint) {
  SavePolicy first(Config(0, "warn", "val_loss"));
  std::map<std::string, double> metrics = {{"val_loss", 2}};
  first.NoteValidation(7, metrics);
  first.AddBest(metrics);
  for (const bool own : {true, false}) {
    std::map<std::string, double> stored = metrics;
    SavePolicy resumed(Config(0, "warn", "val_loss"));
    resumed.TakeBest(stored, own);
    EXPECT_EQ(stored, (std::map<std::string, double>{{"val_loss", 2}}));
    resumed.NoteValidation(8, {{"val_loss", 2.5}});
    EXPECT_EQ(resumed.IsDue(8, false), !own);
    resumed.NoteValidation(9, {{"val_loss", 1}});
    EXPECT_TRUE(resumed.IsDue(9, false));
  }
  std::map<std::string, double> stored = metrics;
  SavePolicy other(Config(0, "warn", "val_error"));
  other.TakeBest(stored, true);
  other.NoteValidation(8, {{"val_error", 9}});
  EXPECT_TRUE(other.IsDue(8, false)) << "another metric's best";
}

TEST(SavePolicy, OnlyStorageErrorsAreTolerated) {
  for (const ExitCode code : {ExitCode::kInternal, ExitCode::kPeerLost, ExitCode::kEnvironment}) {
    SavePolicy policy(Config(10, "warn"));
    EXPECT_FALSE(policy.GoesOnAfter(code)) << static_cast<int>(code);
  }
}

}  // namespace
}  // namespace halflife::train
