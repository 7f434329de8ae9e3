#include "train/step/step.h"

#include <cmath>

#include "core/clock.h"
#include "core/error.h"
#include "eval/batch_tensors.h"
#include "train/device.h"
#include "train/step/gradient_norm.h"

namespace halflife::train {
StepRunner::StepRunner(const RunConfig& config, model::LanguageModel& model, ParameterArena& arena,
                       data::TokenSource& source, dist::RankContext& context, Device device)
    : config_(config),
      model_(model),
      arena_(arena),
      source_(source),
      context_(context),
      device_(device),
      hooks_(model.parameters(), arena),
      reducer_(arena.layout(), context.world(), RefOf(arena.grads()), CurrentStream(device)),
      optimizer_(arena,
                 {.beta1 = config.optimizer.beta1,
                  .beta2 = config.optimizer.beta2,
                  .eps = config.optimizer.eps,
                  .weight_decay = config.optimizer.weight_decay},
                 config.optimizer.decay_all),
      config_identity_(static_cast<double>(HashBytes(ToText(config)).lo & 0xffffffffu)) {}

void StepRunner::MicroBatch(int64_t index, int64_t count, StepResult& result) {
  data::Batch batch = source_.Next();
  eval::ApplyObjective(model_.objective(), config_.train.seed, batch);
  const eval::BatchTensors tensors = eval::ToTensors(batch, ToTorch(device_));
  const model::ForwardContext context{.slice = &tensors.slice,
                                      .training = true,
                                      .z_loss_weight = config_.train.z_loss,
                                      .num_targets = batch.num_targets,
                                      .seed = config_.train.seed,
                                      .samples = batch.samples};
  const model::LossSums sums = model_.Loss(tensors.inputs, tensors.targets, context);
  // A sum over targets times a constant: the division by the global number of targets happens in
  // the optimiser, so no collective has to run first and no mean of means is formed.
  const double scale = 1.0 / (config_.train.global_batch * config_.data.seq_len);
  const bool last = index == count - 1;
  hooks_.BeginMicroBatch(index, count, last ? &reducer_ : nullptr);
  if (last) reducer_.BeginStep();
  sums.objective.mul(scale).backward();
  hooks_.EndMicroBatch();

  loss_.Add(sums.loss.item<double>());
  z_loss_.Add(sums.z_loss.item<double>());
  result.num_targets += batch.num_targets;
  if (config_.train.log_samples) {
    const size_t row_bytes = batch.seq_len * sizeof(int32_t);
    for (int64_t row = 0; row < batch.batch_size; ++row) {
      if (batch.samples[row] == data::kNoSample) break;  // padding follows
      result.samples.push_back(
          {batch.samples[row], HashBytes(batch.inputs.data() + row * batch.seq_len, row_bytes)});
    }
  }
}

void StepRunner::Reduce(int64_t step, StepResult& result) {
  reducer_.Finish();
  StepScalars& scalars = result.scalars;
  result.loss = loss_.Total();
  result.z_loss = z_loss_.Total();
  const double squares = SumOfSquares(arena_.layout(), arena_.grads());
  const bool bad_loss = !std::isfinite(result.loss);
  scalars[Scalar::kGradSquares] = std::isfinite(squares) ? squares : 0;
  scalars[Scalar::kNonFiniteGrads] = std::isfinite(squares) ? 0 : 1;
  scalars[Scalar::kNonFiniteRankSum] = bad_loss ? context_.rank() + 1 : 0;
  scalars[Scalar::kNonFiniteRanks] = bad_loss ? 1 : 0;
  scalars[Scalar::kLossSum] = bad_loss ? 0 : result.loss;
  scalars[Scalar::kZLossSum] = bad_loss ? 0 : result.z_loss;
  scalars[Scalar::kNumTargets] = static_cast<double>(result.num_targets);
  scalars[Scalar::kStep] = static_cast<double>(step);
  scalars[Scalar::kConfigHash] = config_identity_;
  scalars.Reduce(context_.control());

  result.num_targets = static_cast<int64_t>(scalars[Scalar::kNumTargets]);
  HL_CHECK_AS(ExitCode::kData, result.num_targets > 0, "step ", step + 1,
              " has no token with a target: are all documents one token long?");
  result.loss = scalars[Scalar::kLossSum] / result.num_targets;
  result.z_loss = scalars[Scalar::kZLossSum] / result.num_targets;
  if (scalars.any(Scalar::kNonFiniteRanks)) {
    result.loss = std::nan("");
    result.nonfinite = scalars[Scalar::kNonFiniteRanks] == 1
                           ? Concat("the loss of rank ", scalars[Scalar::kNonFiniteRankSum] - 1)
                           : Concat("the loss of ", scalars[Scalar::kNonFiniteRanks], " ranks");
  } else if (scalars.any(Scalar::kNonFiniteGrads)) {
    result.nonfinite = "the gradient";
  }
}

double StepRunner::LearningRate(int64_t step) const {
  const ScheduleConfig& schedule = config_.schedule;
  const int64_t epoch = source_.order().EpochOf(static_cast<uint64_t>(step));
  return config_.optimizer.lr *
         (schedule.per_epoch ? LearningRateFactorOfEpoch(schedule, epoch, config_.train.max_epochs)
                             : LearningRateFactor(schedule, step, config_.train.steps));
}

StepResult StepRunner::Run(int64_t step, uint64_t& num_updates, const StepScalars& flags) {
  const Stopwatch watch;
  source_.TakeWaitSeconds();
  StepResult result;
  result.scalars = flags;
  const int64_t num_micro =
      config_.train.global_batch / (config_.train.micro_batch * context_.world_size());
  loss_ = z_loss_ = {};
  for (int64_t micro = 0; micro < num_micro; ++micro) MicroBatch(micro, num_micro, result);
  Reduce(step, result);

  // The arena holds the gradient of (sum of losses) / (G T); this makes it that of the mean over
  // targets.
  const double to_mean = static_cast<double>(config_.train.global_batch * config_.data.seq_len) /
                         static_cast<double>(result.num_targets);
  result.grad_norm =
      result.scalars.any(Scalar::kNonFiniteGrads)
          ? std::nan("")
          : static_cast<float>(std::sqrt(result.scalars[Scalar::kGradSquares]) * to_mean);
  result.lr = LearningRate(step);
  const bool finite_norm = std::isfinite(result.grad_norm);
  if (config_.optimizer.clip_norm > 0 && finite_norm) {
    result.clip_factor = std::min(1.0, config_.optimizer.clip_norm / (result.grad_norm + 1e-6));
  }
  if (!finite_norm && result.nonfinite.empty()) result.nonfinite = "the gradient's norm";
  result.skipped = !result.nonfinite.empty();
  if (!result.skipped) {
    optimizer_.Update(result.lr, to_mean * result.clip_factor, ++num_updates);
  }
  result.data_wait_seconds = source_.TakeWaitSeconds();
  result.exposed_comm_seconds = reducer_.exposed_seconds();
  result.seconds = watch.Seconds();
  return result;
}

}  // namespace halflife::train
