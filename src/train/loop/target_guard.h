// What steps without a target mean to the run: one is skipped, a dataset of them ends it.
#pragma once

#include <cstdint>

#include "data/sample_order.h"
#include "train/config/run_config.h"
#include "train/step/step.h"

namespace halflife::train {

// A row may have no target: a document of one token, no answer within the row, no token that chance
// hides. All ranks know the sum, so all decide alike.
class TargetGuard {
 public:
  TargetGuard(const RunConfig& config, const data::SampleOrder& order);

  // Counts `result`, of the step with the 1-based number `step`. Error kData after most_in_a_row()
  // steps without a target.
  void NoteStep(int64_t step, const StepResult& result);

  // An epoch has met every row. Of fewer than 100 steps chance may have hidden nothing; and of 1000
  // shuffled ones without a target fewer than one in a hundred of the dataset's can have one
  // (0.99^1000 = 4e-5), which is no dataset to train on. Never more than the run has.
  int64_t most_in_a_row() const { return most_in_a_row_; }

 private:
  const RunConfig& config_;
  const int64_t most_in_a_row_;
  int64_t in_a_row_ = 0;
};

}  // namespace halflife::train
