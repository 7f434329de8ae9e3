// One optimizer step: micro-batches forward and backward, gradients reduced over ranks while
// backward runs, one small all-reduce of scalars, the optimizer's update.
//
//   StepRunner runner(config, model, arena, source, context, device);
//   const StepResult result = runner.Run(step, num_updates, flags);
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/state.h"
#include "data/token_source.h"
#include "dist/parameter_gather.h"
#include "dist/rank_context.h"
#include "dist/unit_gather.h"
#include "train/config/run_config.h"
#include "train/lora/lora.h"
#include "train/preference/reference.h"
#include "train/step/arena_optimizer.h"
#include "train/step/float8_layers.h"
#include "train/step/gradient_norm.h"
#include "train/step/gradient_sync.h"
#include "train/step/micro_batch_graph.h"
#include "train/step/shared_rows.h"
#include "train/step/step_scalars.h"

namespace halflife::train {

struct SampleRecord {
  uint64_t sample = 0;  // global number
  Hash128 tokens;       // of the row's inputs
};

// Means over pairs, with train.preference.
struct MeanRewards {
  double chosen = 0, rejected = 0;  // PairLosses::rewards
  double accuracy = 0;              // the share of pairs whose chosen answer has the larger reward
  double margin() const { return chosen - rejected; }
};

struct StepResult {
  double loss = 0;    // mean -ln p over the global number of targets; with pairs, their mean loss
  double z_loss = 0;  // mean (ln Z)^2
  double grad_norm = 0;  // of the gradient of the mean loss, before clipping; NaN if not finite
  double clip_factor = 1;
  double lr = 0;
  int64_t num_targets = 0;  // or pairs
  std::optional<MeanRewards> rewards;
  // True if nothing was updated, because a value was not finite or num_targets is 0.
  bool skipped = false;
  bool spike = false;     // skipped because the loss exceeds set_largest_loss
  std::string nonfinite;  // the value that was not finite, and its rank; empty if all were finite
  StepScalars scalars;    // reduced: flags of all ranks
  double seconds = 0;
  double data_wait_seconds = 0;  // this rank's
  // Seconds that this rank waited for other ranks: for sums of gradients, for parameters that other
  // ranks updated, and for the other slices of its rows.
  double exposed_grad_seconds = 0, exposed_param_seconds = 0, exposed_rows_seconds = 0;
  double exposed_comm_seconds() const {
    return exposed_grad_seconds + exposed_param_seconds + exposed_rows_seconds;
  }
  // Micro-batches of this rank that were replayed; none without train.cuda_graphs.
  std::optional<int64_t> num_replays;
  std::map<std::string, int64_t> comm_bytes;  // of this rank's collectives since the previous step
  std::vector<SampleRecord> samples;          // of this rank, with train.log_samples
};

class StepRunner {
 public:
  // Collective. `source` yields the rows of this rank's group (dist/mesh.h). The arena has the
  // parameters of the model or, if `lora` is not null, those of `lora`.
  StepRunner(const RunConfig& config, model::LanguageModel& model, ParameterArena& arena,
             data::TokenSource& source, dist::RankContext& context, Device device,
             Lora* lora = nullptr);
  ~StepRunner();

  // Runs step number `step` (0-based). `flags` contains this rank's own stop requests; the result
  // contains those of all ranks. `num_updates` counts applied updates and is advanced.
  // `before_update` is called before the arena changes.
  StepResult Run(int64_t step, uint64_t& num_updates, const StepScalars& flags,
                 const std::function<void()>& before_update = nullptr);

  // Sets the largest loss of a step that is not skipped. All ranks use the same loss.
  void set_largest_loss(double loss) { largest_loss_ = loss; }

  // Makes the run train on pairs: `reference` has the scores of the training split by the initial
  // model. Borrowed.
  void SetReference(const AnswerScores& reference) { reference_ = &reference; }

  // Returns the scheduled learning rate of step number `step` (0-based).
  double LearningRate(int64_t step) const;

  // With parallel.zero_stage > 0: sends every rank the parameters that other ranks hold, as at the
  // start of a run. Collective. Run does this too, while the next forward begins.
  void ShareParameters();
  // Calls `observe` from now on when a phase of Run begins: data, forward and backward of each
  // micro-batch, reduce, update.
  void ObservePhases(std::function<void(const char*)> observe) { observe_ = std::move(observe); }
  // Call this before the parameters are read outside of Run and not through the model. Parameters
  // of a unit of ZeRO stage 3 must be read layer by layer instead, on all ranks: the model awaits
  // each layer by itself. Collective.
  void AwaitParameters();
  // Layers in ascending order.
  void AwaitLayer(int64_t layer);
  // Returns the number of micro-batches that were replayed, with train.cuda_graphs.
  int64_t num_replays() const { return graph_ ? graph_->num_replays() : 0; }
  // Returns the ranks that share this rank's rows; null if none do.
  const model::SequenceParallel* parallel() const {
    return rows_.parallel ? &*rows_.parallel : nullptr;
  }

 private:
  double largest_loss_ = std::numeric_limits<double>::infinity();

  at::Tensor PositionIds(const data::Batch& batch) const;
  // The pairs of a micro-batch and their scores by the initial model.
  struct Pairs {
    PairRows rows;
    at::Tensor reference;
    at::Tensor sums = {};  // SumPairs, after the forward pass
  };
  Pairs PairsOf(const data::Batch& batch) const;
  at::Tensor WeighTokens(const at::Tensor& token_losses);
  void MicroBatch(int64_t index, int64_t count, StepResult& result);
  at::Tensor RunMicroBatch(const eval::BatchTensors& batch, int64_t index, int64_t count);
  at::Tensor ReplayMicroBatch(const eval::BatchTensors& batch, int64_t index, int64_t count);
  at::Tensor Differentiate(const eval::BatchTensors& batch, bool awaits,
                           const std::function<void()>& begin_backward);
  double ReadSums(StepResult& result);
  void TakeRewards(StepResult& result) const;
  void Reduce(int64_t step, StepResult& result);
  std::vector<dist::Fragment> OwnGradients() const;
  void StartGather();
  std::vector<dist::Communicator*> StreamGroups();
  void CountStreamWaits(bool count);
  void TakeHostWaits(StepResult& result);
  void TakeExposedSeconds(StepResult& result);
  void Enter(const char* phase);

  const RunConfig& config_;
  model::LanguageModel& model_;
  ParameterArena& arena_;
  Lora* const lora_;  // null: all weights are trained
  data::TokenSource& source_;
  dist::RankContext& context_;
  Device device_;
  SharedRows rows_;
  // The groups of sums and gathers. A null shard group is the world. `units` has the ranks of the
  // shard group, for the weights of ZeRO stage 3.
  struct Groups {
    // slices: all ranks in the order of their slices; null: the shard group.
    std::unique_ptr<dist::Communicator> shard, replica, units, slices;
    dist::ShardGroups Of(dist::Communicator& world) const {
      return {shard ? *shard : world, replica.get()};
    }
    dist::Communicator* Slices(dist::Communicator& world) const {
      return slices ? slices.get() : Of(world).shard;
    }
  };
  static Groups MakeGroups(const RunConfig& config, dist::RankContext& context);

  Groups groups_;
  Float8Layers float8_;
  GradientSync gradients_;
  std::optional<dist::ParameterGather> gather_;  // set if each rank updates only its slices
  std::optional<dist::UnitGather> units_;        // with ZeRO stage 3
  GradientNorm norm_;                            // of the gradients that this rank holds
  ArenaOptimizer optimizer_;
  std::function<void(const char*)> observe_;  // null: no observer
  int64_t step_ = 0;                          // being taken, from 1
  bool forward_follows_ = false;              // another micro-batch of the step
  std::vector<at::Tensor> losses_;  // of a micro-batch: [2] its loss and z loss, or SumPairs
  const AnswerScores* reference_ = nullptr;  // null: the run does not train on pairs
  std::optional<Pairs> pairs_;               // of the micro-batch
  std::optional<MicroBatchGraph> graph_;     // with train.cuda_graphs
  bool lora_is_stale_ = true;                // its A or B changed after the last Refresh
  double config_identity_;                   // low 32 bits of the config's hash, exact in fp64
};

}  // namespace halflife::train
