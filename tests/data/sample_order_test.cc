// The samples of each step, with every rule for the end of an epoch.
#include "data/sample_order.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::data {
namespace {

// The ReBased runs on 100,000 rows. For lengths below 512 they use batches of 512 rows, and the
// last batch of an epoch is smaller. For longer rows, 256, 128 or 64 rows are processed at a time,
// a step has 512 rows, and an incomplete last step is dropped.
TEST(SampleOrder, StepsOfAPublishedEpoch) {
  const SampleOrder whole_batch = {
      .num_windows = 100000, .global_batch = 512, .epoch_end = EpochEnd::kShort};
  EXPECT_EQ(whole_batch.StepsPerEpoch(), 196);
  EXPECT_EQ(whole_batch.NumSamples(195), 160);
  EXPECT_EQ(whole_batch.NumSamples(196), 512);
  EXPECT_EQ(whole_batch.StepsOf(64), 12544);

  const SampleOrder accumulated = {
      .num_windows = 100000, .global_batch = 512, .epoch_end = EpochEnd::kDrop};
  EXPECT_EQ(accumulated.StepsPerEpoch(), 195);
  const int64_t left_out = 100000 - 195 * 512;
  EXPECT_EQ((left_out + 255) / 256, 1) << "micro-batches of 512 tokens";
  EXPECT_EQ((left_out + 127) / 128, 2) << "of 1024";
  EXPECT_EQ((left_out + 63) / 64, 3) << "of 2048";
}

// Compares with a loop over all steps.
TEST(SampleOrder, StepsTakeEachEpochsSamplesInOrder) {
  for (const EpochEnd end : {EpochEnd::kFill, EpochEnd::kShort, EpochEnd::kDrop}) {
    for (const int64_t windows : {8, 9, 11, 24}) {
      const SampleOrder order = {.num_windows = windows, .global_batch = 4, .epoch_end = end};
      uint64_t sample = 0, seen = 0;
      for (uint64_t step = 0; step < 40; ++step) {
        const auto left = windows - static_cast<int64_t>(sample % static_cast<uint64_t>(windows));
        if (end == EpochEnd::kDrop && left < 4) sample += static_cast<uint64_t>(left);
        EXPECT_EQ(order.FirstSample(step), sample) << windows << " windows, step " << step;
        EXPECT_EQ(order.StepAt(sample), step);
        EXPECT_EQ(order.NumSamplesBefore(step), seen);
        EXPECT_EQ(order.EpochOf(step), static_cast<int64_t>(sample) / windows);
        const int64_t rows = end == EpochEnd::kShort && left < 4 ? left : 4;
        EXPECT_EQ(order.NumSamples(step), rows);
        sample += static_cast<uint64_t>(rows);
        seen += static_cast<uint64_t>(rows);
      }
    }
  }
}

TEST(SampleOrder, NamesAndPlacesThatAreNone) {
  EXPECT_EQ(EpochEndOf("fill"), EpochEnd::kFill);
  EXPECT_EQ(EpochEndOf("short"), EpochEnd::kShort);
  EXPECT_EQ(EpochEndOf("drop"), EpochEnd::kDrop);
  EXPECT_HL_ERROR(EpochEndOf("keep"), ExitCode::kUsage, "'keep'", "fill, short or drop");
  const SampleOrder order = {.num_windows = 10, .global_batch = 4, .epoch_end = EpochEnd::kShort};
  EXPECT_HL_ERROR(order.StepAt(9), ExitCode::kInternal, "sample 9 does not begin a step");
}

}  // namespace
}  // namespace halflife::data
