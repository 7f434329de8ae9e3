#include "train/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace halflife::train {
namespace {

int64_t DecaySteps(const ScheduleConfig& config, int64_t total_steps) {
  return config.decay_steps > 0 ? config.decay_steps : std::max<int64_t>(total_steps / 10, 1);
}

}  // namespace

int64_t StepsBeforeDecay(const ScheduleConfig& config, int64_t total_steps) {
  if (config.kind == "constant") return total_steps;
  if (config.kind != "wsd") return config.warmup_steps;
  return std::max(config.warmup_steps, total_steps - DecaySteps(config, total_steps));
}

double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) return static_cast<double>(step + 1) / config.warmup_steps;
  if (config.kind == "constant") return 1;

  const int64_t begin = StepsBeforeDecay(config, total_steps);
  const int64_t last = total_steps - 1;
  if (step < begin || total_steps == 1) return 1;
  // A decay of one step has no step at the peak. The step before it has the peak rate.
  const double progress =
      step >= last ? 1 : static_cast<double>(step - begin) / static_cast<double>(last - begin);
  const double floor = config.final_lr_ratio;
  if (config.kind == "cosine") {
    return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  HL_CHECK(config.kind == "linear" || config.kind == "wsd", "schedule kind ", config.kind);
  const bool of_root = config.kind == "wsd" && config.decay_shape == "sqrt";
  return 1 - (1 - floor) * (of_root ? std::sqrt(progress) : progress);
}

double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs) {
  return LearningRateFactor(config, epoch, max_epochs + 1);
}

std::string ScheduleWarning(const ScheduleConfig& config, int64_t total_steps) {
  const int64_t warmup = config.warmup_steps;
  if (warmup > 1 && warmup >= total_steps)
    return Concat("schedule.warmup_steps ", warmup, " is not below the run's ", total_steps,
                  " steps (train.steps): the learning rate ",
                  warmup > total_steps ? "never reaches its peak, optimizer.lr"
                                       : "reaches its peak, optimizer.lr, only in the last step",
                  ". Use fewer warm-up steps or a longer run.");
  const int64_t decay = DecaySteps(config, total_steps);
  if (config.kind == "wsd" && warmup < total_steps && decay > total_steps - warmup)
    return Concat("schedule.warmup_steps ", warmup, " and a decay of ", decay,
                  " steps (schedule.decay_steps) do not fit in the run's ", total_steps,
                  " steps (train.steps): the decay is cut to ", total_steps - warmup,
                  " steps. Shorten one of them, or use a longer run.");
  return "";
}

}  // namespace halflife::train
