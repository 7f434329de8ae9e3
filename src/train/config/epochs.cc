#include "train/config/epochs.h"

#include "core/error.h"
#include "data/token_source.h"

namespace halflife::train {

data::SampleOrder OrderOf(const RunConfig& config, const data::DatasetInfo& dataset) {
  return {.num_windows = data::NumWindows(dataset.train, dataset.row_len, config.data.seq_len),
          .global_batch = config.train.global_batch,
          .epoch_end = data::EpochEndOf(config.data.epoch_end)};
}

void ResolveSteps(RunConfig& config, const data::DatasetInfo& dataset) {
  if (config.train.max_epochs == 0) return;
  const data::SampleOrder order = OrderOf(config, dataset);
  HL_CHECK_AS(ExitCode::kUsage,
              order.num_windows > 0 &&
                  (order.epoch_end == data::EpochEnd::kFill || order.StepsPerEpoch() > 0),
              "train.max_epochs ", config.train.max_epochs, ": the training split has ",
              order.num_windows, " rows of data.seq_len ", config.data.seq_len,
              ", which do not fill a step of train.global_batch ", config.train.global_batch,
              " with data.epoch_end ", config.data.epoch_end,
              ". Use a smaller train.global_batch, or data.epoch_end short.");
  config.train.steps = order.StepsOf(config.train.max_epochs);
}

bool ValidationIsDue(const EvalConfig& config, const data::SampleOrder& order, int64_t num_steps) {
  if (config.every > 0 && num_steps % config.every == 0) return true;
  if (config.every_epochs == 0) return false;
  const int64_t epoch = order.EpochOf(static_cast<uint64_t>(num_steps));
  const int64_t before = order.EpochOf(static_cast<uint64_t>(num_steps - 1));
  return epoch / config.every_epochs > before / config.every_epochs;
}

}  // namespace halflife::train
