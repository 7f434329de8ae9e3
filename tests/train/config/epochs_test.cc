// train.max_epochs determines the number of steps and the times of validations.
#include "train/config/plan.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

data::DatasetInfo Rows(int64_t count) {
  data::DatasetInfo info;
  info.train = {.num_tokens = 16 * count, .num_documents = count};
  info.row_len = 16;
  return info;
}

TEST(Epochs, DetermineTheNumberOfSteps) {
  RunConfig config = ParseRunConfig(
      "train { global_batch: 512 max_epochs: 64 steps: 7 } data { seq_len: 16 }", "recipe", {});
  for (const auto& [end, steps] :
       {std::pair{"short", 64 * 196}, {"drop", 64 * 195}, {"fill", 64 * 100000 / 512}}) {
    config.data.epoch_end = end;
    ResolveSteps(config, Rows(100000));
    EXPECT_EQ(config.train.steps, steps) << end;
  }
  data::DatasetInfo text;
  text.train.num_tokens = 16 * 1024 + 1;  // 1024 windows and the target of the last one.
  config.data.epoch_end = "short";
  ResolveSteps(config, text);
  EXPECT_EQ(config.train.steps, 64 * 2);

  config.train.max_epochs = 0;
  config.train.steps = 7;
  ResolveSteps(config, Rows(100000));
  EXPECT_EQ(config.train.steps, 7);

  config.train.max_epochs = 1;
  config.data.epoch_end = "drop";
  EXPECT_HL_ERROR(ResolveSteps(config, Rows(511)), ExitCode::kUsage, "511 rows",
                  "or data.epoch_end short.");
}

TEST(Epochs, ValidationsAtTheEndOfEpochs) {
  const data::SampleOrder order = {
      .num_windows = 10, .global_batch = 4, .epoch_end = data::EpochEnd::kShort};
  std::vector<int64_t> due, every_other;
  for (int64_t step = 1; step <= 12; ++step) {
    if (ValidationIsDue({.every_epochs = 1}, order, step)) due.push_back(step);
    if (ValidationIsDue({.every = 5, .every_epochs = 2}, order, step)) every_other.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{3, 6, 9, 12}));
  EXPECT_EQ(every_other, (std::vector<int64_t>{5, 6, 10, 12}));
}

}  // namespace
}  // namespace halflife::train
