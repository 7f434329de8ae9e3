// Runs whose length is given in epochs: how many steps that makes, and which steps end an epoch.
#pragma once

#include "data/dataset.h"
#include "data/sample_order.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Returns the order of the samples of the training split.
data::SampleOrder OrderOf(const RunConfig& config, const data::DatasetInfo& dataset);

// Sets train.steps from train.max_epochs, if that is set. Error kUsage if the training split does
// not fill a single step.
void ResolveSteps(RunConfig& config, const data::DatasetInfo& dataset);

// Returns whether a validation is due after `num_steps` steps, by eval.every or eval.every_epochs.
bool ValidationIsDue(const EvalConfig& config, const data::SampleOrder& order, int64_t num_steps);

}  // namespace halflife::train
