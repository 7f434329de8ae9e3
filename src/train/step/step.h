// One optimiser step: micro-batches forward and backward, gradients reduced over ranks while
// backward runs, one small all-reduce of scalars, AdamW.
//
//   StepRunner runner(config, model, arena, source, context, device);
//   const StepResult result = runner.Run(step, num_updates, flags);
#pragma once

#include <memory>
#include <vector>

#include "ckpt/state.h"
#include "core/pairwise_sum.h"
#include "data/token_source.h"
#include "dist/gradient_reducer.h"
#include "dist/rank_context.h"
#include "train/config/run_config.h"
#include "train/step/adamw.h"
#include "train/step/gradient_hooks.h"
#include "train/step/step_scalars.h"

namespace halflife::train {

struct SampleRecord {
  uint64_t sample = 0;  // global number
  Hash128 tokens;       // of the row's inputs
};

struct StepResult {
  double loss = 0;       // mean -ln p over the global number of targets
  double z_loss = 0;     // mean (ln Z)^2
  double grad_norm = 0;  // of the mean loss's gradient, before clipping; NaN where it is not finite
  double clip_factor = 1;
  double lr = 0;
  int64_t num_targets = 0;
  bool skipped = false;   // non-finite: nothing was updated
  std::string nonfinite;  // which rank, in words; empty when finite
  StepScalars scalars;    // reduced: flags of all ranks
  double seconds = 0;
  double data_wait_seconds = 0;       // this rank's
  double exposed_comm_seconds = 0;    // this rank's
  std::vector<SampleRecord> samples;  // this rank's; with train.log_samples
};

class StepRunner {
 public:
  StepRunner(const RunConfig& config, model::LanguageModel& model, ParameterArena& arena,
             data::TokenSource& source, dist::RankContext& context, Device device);

  // Step number `step` (0-based). `flags` come with this rank's own stop requests set; they return
  // reduced. `num_updates` counts applied updates and is advanced.
  StepResult Run(int64_t step, uint64_t& num_updates, const StepScalars& flags);

 private:
  void MicroBatch(int64_t index, int64_t count, StepResult& result);
  void Reduce(int64_t step, StepResult& result);
  double LearningRate(int64_t step) const;

  const RunConfig& config_;
  model::LanguageModel& model_;
  ParameterArena& arena_;
  data::TokenSource& source_;
  dist::RankContext& context_;
  Device device_;
  GradientHooks hooks_;
  dist::GradientReducer reducer_;
  AdamW optimizer_;
  PairwiseSum<double> loss_, z_loss_;  // of this step's micro-batches
  double config_identity_;             // low 32 bits of the config's hash, exact in fp64
};

}  // namespace halflife::train
