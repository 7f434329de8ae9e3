#include "train/step/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/clock.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/pairwise_sum.h"
#include "dist/mesh.h"
#include "eval/batch_tensors.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/ordered_sum.h"
#include "ops/torch/tensor_views.h"
#include "train/config/plan.h"
#include "train/device.h"

namespace halflife::train {

namespace {

// Returns the parameters of each layer, by LanguageModel::LayerOf + 1.
std::vector<std::vector<int>> ParamsOfLayers(const model::LanguageModel& model) {
  std::vector<std::vector<int>> layers(model.config().num_layers + 2);
  for (int param = 0; param < model.parameters().size(); ++param)
    layers[1 + model.LayerOf(param)].push_back(param);
  return layers;
}

// Returns one list with all parameters, because those of LoRA are all needed before the first
// layer.
std::vector<std::vector<int>> AllAtOnce(const model::ParameterSet& parameters) {
  std::vector<int> all(static_cast<size_t>(parameters.size()));
  std::iota(all.begin(), all.end(), 0);
  return {all};
}

}  // namespace

StepRunner::Groups StepRunner::MakeGroups(const RunConfig& config, dist::RankContext& context) {
  const dist::DataMesh mesh = MeshOf(config, context.rank(), context.world_size());
  dist::ProcessGroup shard = mesh.ShardGroup();
  Groups groups;
  if (!shard.is_world) groups.shard = dist::Split(context.world(), shard);
  if (mesh.has_replicas()) {
    groups.replica = dist::Split(context.world(), mesh.ReplicaGroup());
    const auto optimizer = config.optimizer.algorithm.Make(config.optimizer.adamw);
    if (optimizer->matrix_rule() != nullptr)
      groups.slices = dist::Split(context.world(), mesh.SliceGroup());
  }
  if (config.parallel.zero_stage < 3) return groups;
  shard.name = "units";
  groups.units = dist::Split(context.world(), shard, dist::GroupRole::kParameters);
  return groups;
}

StepRunner::StepRunner(const RunConfig& config, model::LanguageModel& model, ParameterArena& arena,
                       data::TokenSource& source, dist::RankContext& context, Device device,
                       Lora* lora)
    : config_(config),
      model_(model),
      arena_(arena),
      lora_(lora),
      source_(source),
      context_(context),
      device_(device),
      rows_(ShareRows(config, context, device)),
      groups_(MakeGroups(config, context)),
      float8_(config, model.parameters()),
      gradients_(arena, groups_.Of(context.world()), GradientSync::Options::Of(config)),
      norm_(OwnGradients(), arena.grads()),
      optimizer_(arena, config.optimizer, groups_.Slices(context.world())),
      config_identity_(static_cast<double>(HashBytes(ToText(config)).lo & 0xffffffffu)) {
  if (config.parallel.grad_reduce == "ordered") context.world().SumInOrder(ops::SumInOrder);
  gradients_.Attach(lora == nullptr ? model.parameters() : lora->parameters());
  if (lora != nullptr) lora->PassGradients();
  // A device that checks each launch gains nothing from graphs.
  if (config.train.cuda_graphs && (!device.is_cuda() || ops::DeviceGraph::IsOn(ToTorch(device))))
    graph_.emplace(
        ToTorch(device),
        [this](const eval::BatchTensors& batch) {
          return Differentiate(batch, /*awaits=*/false, [this] { gradients_.BeginRecorded(); });
        },
        model.LayerOfFixedDocuments());
  CountStreamWaits(false);
  if (!arena.sliced()) return;
  gather_.emplace(arena.layout(), groups_.Of(context.world()), arena.ComputedArrays(),
                  lora == nullptr ? ParamsOfLayers(model) : AllAtOnce(lora->parameters()),
                  config.parallel.num_prefetched());
  if (groups_.units) {
    units_.emplace(arena.UnitParts(*groups_.units, *gather_));
    model.SetAwaitLayer([this](int64_t layer) { AwaitLayer(layer); });
  }
}

StepRunner::~StepRunner() { model_.SetAwaitLayer({}); }

// Returns the fragments that this rank updates, by their index in arena.grads(). Gradients of
// frozen parameters do not count.
std::vector<dist::Fragment> StepRunner::OwnGradients() const {
  std::vector<dist::Fragment> own = arena_.updated_fragments();
  const std::vector<ParameterRule> rules = RulesOf(config_.optimizer, arena_.layout().specs());
  std::erase_if(own, [&](const dist::Fragment& part) { return rules[part.param].frozen; });
  for (dist::Fragment& part : own)
    part.arena_begin = arena_.layout().PlaceOf(part.arena_begin, arena_.grads_division());
  return own;
}

void StepRunner::ShareParameters() {
  float8_.Invalidate();
  lora_is_stale_ = true;
  if (!gather_) return;
  gather_->StartAll(ops::CurrentStream(device_));
  if (units_) units_->Invalidate();
  gather_->AwaitAll();
}

void StepRunner::StartGather() {
  if (!gather_) return;
  gather_->Start(ops::CurrentStream(device_));
  if (units_) units_->Invalidate();
}

void StepRunner::AwaitParameters() {
  if (gather_) gather_->AwaitAll();
  if (lora_ != nullptr && std::exchange(lora_is_stale_, false)) lora_->Refresh();
}

void StepRunner::AwaitLayer(int64_t layer) {
  if (lora_ != nullptr) return;  // all parameters are awaited before the first layer
  if (units_) {
    units_->AwaitForward(static_cast<int>(layer) + 1, ops::CurrentStream(device_));
  } else if (gather_) {
    gather_->Await(static_cast<int>(layer) + 1);
  }
}

void StepRunner::Enter(const char* phase) {
  context_.flight().EnterPhase(phase, step_);
  if (observe_) observe_(phase);
  HL_FAULT_POINT(Concat("train.", phase), ExitCode::kInternal);
}

// [B, T of this rank] int64.
at::Tensor StepRunner::PositionIds(const data::Batch& batch) const {
  std::vector<int64_t> ids =
      data::AssignPositionIds(config_.data.positions, config_.train.seed, batch);
  const at::Tensor whole = at::from_blob(ids.data(), {batch.batch_size, batch.seq_len}, at::kLong);
  // Clone, because `ids` is destroyed here: a slice of one row and an upload to a CPU are views.
  const at::Tensor own = (rows_.parallel ? rows_.parallel->TokensOf(whole) : whole).clone();
  return ops::Upload(own, ToTorch(device_));
}

// Returns [2], the sums of the losses, or SumPairs. Calls `begin_backward` between forward and
// backward.
at::Tensor StepRunner::Differentiate(const eval::BatchTensors& batch, bool awaits,
                                     const std::function<void()>& begin_backward) {
  std::function<void(int64_t layer)> await_layer, await_backward;
  if (awaits) await_layer = [this](int64_t layer) { AwaitLayer(layer); };
  if (units_)
    await_backward = [this](int64_t layer) {
      units_->AwaitBackward(static_cast<int>(layer) + 1, forward_follows_,
                            ops::CurrentStream(device_));
    };
  std::function<at::Tensor(const at::Tensor&)> weigh;
  if (pairs_) weigh = [this](const at::Tensor& losses) { return WeighTokens(losses); };
  const model::ForwardContext context{.slice = &batch.slice,
                                      .training = true,
                                      .dropout = !pairs_,  // Their reference is without it.
                                      .z_loss_weight = config_.train.z_loss,
                                      .num_targets = batch.num_targets,
                                      .recompute = RecomputeOf(config_),
                                      .seed = config_.train.seed,
                                      .samples = batch.samples,
                                      .weigh = weigh,
                                      .await_layer = await_layer,
                                      .await_backward = await_backward};
  Enter("forward");
  const model::LossSums sums = model_.Loss(batch.inputs, batch.targets, context);
  // The sum over targets times a constant. The optimizer's update divides by the global number of
  // targets, so backward need not wait for a collective, and no mean of means is formed.
  const double scale = 1.0 / (config_.train.global_batch * config_.data.seq_len);
  begin_backward();
  Enter("backward");
  sums.objective.mul(scale).backward();
  if (rows_.parallel) rows_.parallel->group->Settle();
  gradients_.EndMicroBatch();
  return pairs_ ? pairs_->sums : at::stack({sums.loss, sums.z_loss});
}

StepRunner::Pairs StepRunner::PairsOf(const data::Batch& batch) const {
  std::vector<int64_t> rows;
  for (const uint64_t sample : batch.samples)
    rows.push_back(sample == data::kNoSample ? -1 : source_.WindowOf(sample));
  const at::Device device = ToTorch(device_);
  PairRows pairs(batch, device, parallel());
  const at::Tensor reference = ops::Upload(reference_->Of(rows, pairs.max_pairs()), device);
  return {.rows = std::move(pairs), .reference = reference};
}

// Returns the weights of the losses of the tokens. The ranks that share rows compare the same
// pairs, and the first of them counts the losses.
at::Tensor StepRunner::WeighTokens(const at::Tensor& token_losses) {
  const at::Tensor policy = pairs_->rows.Sums(token_losses).contiguous();
  if (rows_.ranks) {
    const cudaStream_t stream = ops::CurrentStream(device_);
    rows_.ranks->AllReduce(ops::RefOf(policy), dist::ReduceOp::kSum, {"pairs", 0}, stream)
        .WaitOn(stream);
  }
  const PairLosses losses =
      ComparePairs(config_.train.preference, {.policy = policy, .reference = pairs_->reference},
                   pairs_->rows.lengths());
  // In fp32, like the losses of tokens: their sums in fp64 are exact on any number of ranks.
  const at::Tensor sums = SumPairs(losses).to(at::kFloat);
  pairs_->sums = rows_.ranks && rows_.ranks->rank() > 0 ? at::zeros_like(sums) : sums;
  return pairs_->rows.AtTokens(losses.weights);
}

at::Tensor StepRunner::RunMicroBatch(const eval::BatchTensors& batch, int64_t index,
                                     int64_t count) {
  return Differentiate(batch, /*awaits=*/true, [&] { gradients_.BeginMicroBatch(index, count); });
}

// The gradients start at zero, so every replayed micro-batch adds to them.
at::Tensor StepRunner::ReplayMicroBatch(const eval::BatchTensors& batch, int64_t index,
                                        int64_t count) {
  if (index == 0) {
    AwaitParameters();
    float8_.Refresh();  // the recorded graph reads the copies
    arena_.grads().zero_();
  }
  if (device_.is_cuda()) Enter("forward");  // a replay on the GPU does not call Differentiate
  const at::Tensor losses = graph_->Run(batch);
  if (index == count - 1) gradients_.SumReplayed();  // only on one rank
  return losses;
}

void StepRunner::MicroBatch(int64_t index, int64_t count, StepResult& result) {
  forward_follows_ = index < count - 1;
  Enter("data");
  data::Batch batch = source_.Next();
  eval::ApplyObjective(model_.objective(), config_.train.seed, batch);
  eval::BatchTensors tensors = rows_.parallel
                                   ? eval::ToTensors(batch, ToTorch(device_), *rows_.parallel)
                                   : eval::ToTensors(batch, ToTorch(device_));
  if (!config_.data.positions.plain()) tensors.slice.given_position_ids = PositionIds(batch);
  if (reference_ != nullptr) pairs_.emplace(PairsOf(batch));
  // With several ranks, the last micro-batch is not replayed: its gradients are sent during
  // backward, which a recorded graph cannot do.
  const bool replays = graph_ && (index < count - 1 || context_.world_size() == 1);
  losses_.push_back(replays ? ReplayMicroBatch(tensors, index, count)
                            : RunMicroBatch(tensors, index, count));
  if (gradients_.sums_each_micro_batch()) {
    Enter("reduce");
    gradients_.JoinMicroBatch();
  }
  const bool names_rows = rows_.ranks == nullptr || rows_.ranks->rank() == 0;
  result.num_targets += !pairs_ ? tensors.num_targets : names_rows ? pairs_->rows.num_pairs() : 0;
  if (config_.train.log_samples && names_rows) {
    const size_t row_bytes = batch.seq_len * sizeof(int32_t);
    for (int64_t row = 0; row < batch.batch_size; ++row) {
      if (batch.samples[row] == data::kNoSample) break;  // padding follows
      result.samples.push_back(
          {batch.samples[row], HashBytes(batch.inputs.data() + row * batch.seq_len, row_bytes)});
    }
  }
}

// Sets the sums of the losses and returns the sum of squares of this rank's gradients. The host
// reads all results of a step in one copy, so it waits for the GPU once.
double StepRunner::ReadSums(StepResult& result) {
  const at::Tensor losses = at::cat(losses_).to(at::kDouble);
  const at::Tensor sums = ops::ReadBack(at::cat({losses, norm_.PartialSums()}));
  const std::span<const double> values(sums.const_data_ptr<double>(),
                                       static_cast<size_t>(sums.numel()));
  const auto num_sums = static_cast<size_t>(losses_[0].numel());
  const auto total = [&](size_t index) {
    PairwiseSum<double> sum;
    for (size_t micro = 0; micro < losses_.size(); ++micro)
      sum.Add(values[num_sums * micro + index]);
    return sum.Total();
  };
  result.loss = total(0);
  if (pairs_)
    result.rewards = {.chosen = total(1), .rejected = total(2), .accuracy = total(3)};
  else
    result.z_loss = total(1);
  return norm_.Sum(values.subspan(num_sums * losses_.size()));
}

// Turns the sums of all ranks to means.
void StepRunner::TakeRewards(StepResult& result) const {
  if (!result.rewards) return;
  const auto mean = [&](Scalar sum) { return result.scalars[sum] / result.num_targets; };
  result.rewards = {.chosen = mean(Scalar::kChosenRewardSum),
                    .rejected = mean(Scalar::kRejectedRewardSum),
                    .accuracy = mean(Scalar::kNumPreferred)};
}

void StepRunner::Reduce(int64_t step, StepResult& result) {
  Enter("reduce");
  if (!gradients_.sums_each_micro_batch()) gradients_.Finish();
  StepScalars& scalars = result.scalars;
  const double squares = ReadSums(result);
  const bool bad_loss = !std::isfinite(result.loss);
  // The values of all ranks are added. If each rank holds all gradients, each contributes an equal
  // part.
  scalars[Scalar::kGradSquares] =
      std::isfinite(squares) ? squares * (arena_.sliced() ? context_.world_size() : 1) : 0;
  scalars[Scalar::kNonFiniteGrads] = std::isfinite(squares) ? 0 : 1;
  scalars[Scalar::kNonFiniteRankSum] = bad_loss ? context_.rank() + 1 : 0;
  scalars[Scalar::kNonFiniteRanks] = bad_loss ? 1 : 0;
  scalars[Scalar::kLossSum] = bad_loss ? 0 : result.loss;
  scalars[Scalar::kZLossSum] = bad_loss ? 0 : result.z_loss;
  if (result.rewards && !bad_loss) {
    scalars[Scalar::kChosenRewardSum] = result.rewards->chosen;
    scalars[Scalar::kRejectedRewardSum] = result.rewards->rejected;
    scalars[Scalar::kNumPreferred] = result.rewards->accuracy;
  }
  scalars[Scalar::kNumTargets] = static_cast<double>(result.num_targets);
  scalars[Scalar::kStep] = static_cast<double>(step);
  scalars[Scalar::kConfigHash] = config_identity_;
  scalars.Reduce(context_.control());

  result.num_targets = static_cast<int64_t>(scalars[Scalar::kNumTargets]);
  // Without targets there is no mean, so the loss is NaN.
  result.loss = scalars[Scalar::kLossSum] / result.num_targets;
  result.z_loss = scalars[Scalar::kZLossSum] / result.num_targets;
  TakeRewards(result);
  if (scalars.any(Scalar::kNonFiniteRanks)) {
    result.loss = std::nan("");
    result.nonfinite = scalars[Scalar::kNonFiniteRanks] == 1
                           ? Concat("the loss of rank ", scalars[Scalar::kNonFiniteRankSum] - 1)
                           : Concat("the loss of ", scalars[Scalar::kNonFiniteRanks], " ranks");
  } else if (scalars.any(Scalar::kNonFiniteGrads)) {
    result.nonfinite = "the gradient";
  }
}

// Returns the groups that streams wait for.
std::vector<dist::Communicator*> StepRunner::StreamGroups() {
  std::vector<dist::Communicator*> groups = {&context_.world(),     groups_.shard.get(),
                                             groups_.replica.get(), groups_.units.get(),
                                             groups_.slices.get(),  rows_.ranks.get()};
  std::erase(groups, nullptr);
  return groups;
}

void StepRunner::CountStreamWaits(bool count) {
  if (!device_.is_cuda()) return;
  for (dist::Communicator* const group : StreamGroups()) group->CountStreamWaits(count);
}

// Sets the times that the host has waited since the last call.
void StepRunner::TakeHostWaits(StepResult& result) {
  result.exposed_grad_seconds = gradients_.TakeWaitSeconds();
  double& param = result.exposed_param_seconds = optimizer_.TakeWaitSeconds();
  if (gather_) param += gather_->TakeWaitSeconds();
  if (units_) param += units_->TakeWaitSeconds();
  result.exposed_rows_seconds = rows_.parallel ? rows_.parallel->group->TakeWaitSeconds() : 0;
}

// Sets the times that the step has waited. On a GPU, they are those that streams idled, by events.
// Waits of an update have not ended when a step returns, so they are part of the next step's.
void StepRunner::TakeExposedSeconds(StepResult& result) {
  TakeHostWaits(result);
  if (!device_.is_cuda()) return;
  double grad = 0, param = 0, rows = 0;
  for (dist::Communicator* const group : StreamGroups()) {
    for (const auto& [what, seconds] : group->TakeStreamWaits()) {
      double& sum = group == rows_.ranks.get()      ? rows
                    : what == dist::kGradientBucket ? grad
                                                    : param;
      sum += seconds;
    }
  }
  result.exposed_grad_seconds = grad;
  result.exposed_param_seconds = param;
  result.exposed_rows_seconds = rows;
}

double StepRunner::LearningRate(int64_t step) const {
  const ScheduleConfig& schedule = config_.schedule;
  const int64_t epoch = source_.order().EpochOf(static_cast<uint64_t>(step));
  return config_.optimizer.lr *
         (schedule.per_epoch ? LearningRateFactorOfEpoch(schedule, epoch, config_.train.max_epochs)
                             : LearningRateFactor(schedule, step, config_.train.steps));
}

StepResult StepRunner::Run(int64_t step, uint64_t& num_updates, const StepScalars& flags,
                           const std::function<void()>& before_update) {
  const Stopwatch watch;
  source_.TakeWaitSeconds();
  StepResult result;
  TakeHostWaits(result);  // waits of a start, a validation or a save, which do not count
  CountStreamWaits(true);
  result.scalars = flags;
  step_ = step + 1;
  const int64_t num_micro = NumMicroBatches(config_, context_.world_size());
  if (lora_ != nullptr) AwaitParameters();
  losses_.clear();
  const int64_t replays_before = num_replays();
  for (int64_t micro = 0; micro < num_micro; ++micro) MicroBatch(micro, num_micro, result);
  if (graph_) result.num_replays = num_replays() - replays_before;
  Reduce(step, result);

  // The arena holds the gradient of (sum of losses) / (G T). This factor turns it into the gradient
  // of the mean over targets.
  const double to_mean = static_cast<double>(config_.train.global_batch * config_.data.seq_len) /
                         static_cast<double>(result.num_targets);
  const bool has_targets = result.num_targets > 0;
  result.grad_norm =
      result.scalars.any(Scalar::kNonFiniteGrads) || !has_targets
          ? std::nan("")
          : static_cast<float>(std::sqrt(result.scalars[Scalar::kGradSquares]) * to_mean);
  result.lr = LearningRate(step);
  const bool finite_norm = std::isfinite(result.grad_norm);
  if (config_.optimizer.clip_norm > 0 && finite_norm) {
    result.clip_factor = std::min(1.0, config_.optimizer.clip_norm / (result.grad_norm + 1e-6));
  }
  if (has_targets && !finite_norm && result.nonfinite.empty())
    result.nonfinite = "the gradient's norm";
  result.spike = has_targets && result.nonfinite.empty() && result.loss > largest_loss_;
  result.skipped = !has_targets || !result.nonfinite.empty() || result.spike;
  if (!result.skipped) {
    Enter("update");
    if (before_update) before_update();
    optimizer_.Update(result.lr, to_mean * result.clip_factor, ++num_updates);
    lora_is_stale_ = true;
    float8_.Invalidate();
    StartGather();
  }
  result.data_wait_seconds = source_.TakeWaitSeconds();
  TakeExposedSeconds(result);
  CountStreamWaits(false);
  result.comm_bytes = context_.flight().TakeBytes();
  result.seconds = watch.Seconds();
  return result;
}

}  // namespace halflife::train
