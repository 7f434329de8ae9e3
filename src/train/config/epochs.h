// Runs that are told in epochs: how many steps that makes, and which steps end one.
#pragma once

#include "data/dataset.h"
#include "data/sample_order.h"
#include "train/config/run_config.h"

namespace halflife::train {

// The order of the training split's samples.
data::SampleOrder OrderOf(const RunConfig& config, const data::DatasetInfo& dataset);

// Sets train.steps to what train.max_epochs makes, where it is given. Error kUsage where the split
// holds no step.
void ResolveSteps(RunConfig& config, const data::DatasetInfo& dataset);

// Whether a validation is due after `num_steps` steps, by eval.every or eval.every_epochs.
bool ValidationIsDue(const EvalConfig& config, const data::SampleOrder& order, int64_t num_steps);

}  // namespace halflife::train
