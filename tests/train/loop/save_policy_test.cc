#include "train/loop/save_policy.h"

#include <gtest/gtest.h>

namespace halflife::train {
namespace {

TEST(SavePolicy, IsDueAtEveryIntervalAndOnRequest) {
  const SavePolicy policy(10, "warn");
  EXPECT_FALSE(policy.IsDue(9, false));
  EXPECT_TRUE(policy.IsDue(10, false));
  EXPECT_FALSE(policy.IsDue(11, false));
  EXPECT_TRUE(policy.IsDue(11, true));
}

TEST(SavePolicy, WithoutAnIntervalOnlyRequestsSave) {
  const SavePolicy policy(0, "warn");
  EXPECT_FALSE(policy.IsDue(10, false));
  EXPECT_TRUE(policy.IsDue(10, true));
}

TEST(SavePolicy, KnowsWhichStepIsSaved) {
  SavePolicy policy(10, "warn");
  EXPECT_FALSE(policy.IsSaved(0));
  policy.NoteSaved(10);
  EXPECT_TRUE(policy.IsSaved(10));
  EXPECT_FALSE(policy.IsSaved(20));
  policy.GoesOnAfter(ExitCode::kCheckpointIo);
  EXPECT_TRUE(policy.IsSaved(10)) << "a failed save takes nothing away";
}

TEST(SavePolicy, OutlivesOneFailureBetweenTwoSaves) {
  SavePolicy policy(10, "warn");
  EXPECT_TRUE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
  policy.NoteSaved(20);
  EXPECT_TRUE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
  EXPECT_FALSE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
}

TEST(SavePolicy, EndsAtTheFirstFailureWhereTheRecipeSaysSo) {
  SavePolicy policy(10, "stop");
  EXPECT_FALSE(policy.GoesOnAfter(ExitCode::kCheckpointIo));
}

TEST(SavePolicy, OutlivesNothingButStorage) {
  for (const ExitCode code : {ExitCode::kInternal, ExitCode::kPeerLost, ExitCode::kEnvironment}) {
    SavePolicy policy(10, "warn");
    EXPECT_FALSE(policy.GoesOnAfter(code)) << static_cast<int>(code);
  }
}

}  // namespace
}  // namespace halflife::train
