// How a run reacts to steps without a target: one such step is skipped, a dataset of them ends the
// run.
#pragma once

#include <cstdint>

#include "data/sample_order.h"
#include "train/config/run_config.h"
#include "train/step/step.h"

namespace halflife::train {

// A row may have no target: a document of one token, no answer within the row, or no token chosen
// for masking. All ranks know the sum, so all decide equally.
class TargetGuard {
 public:
  TargetGuard(const RunConfig& config, const data::SampleOrder& order);

  // Records `result`, the result of step `step` (1-based). Error kData after most_in_a_row()
  // consecutive steps without a target.
  void NoteStep(int64_t step, const StepResult& result);

  // The number of consecutive steps without a target after which the run ends. An epoch includes
  // every row. With fewer than 100 steps, chance may have hidden no token. After 1000 shuffled
  // steps without a target, fewer than one in a hundred steps of the dataset can have one
  // (0.99^1000 = 4e-5), which is not enough to train on. Never more than the steps of the run.
  int64_t most_in_a_row() const { return most_in_a_row_; }

 private:
  const RunConfig& config_;
  const int64_t most_in_a_row_;
  int64_t in_a_row_ = 0;
};

}  // namespace halflife::train
