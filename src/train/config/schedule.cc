#include "train/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace halflife::train {

double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) return static_cast<double>(step + 1) / config.warmup_steps;
  if (config.kind == "constant") return 1;

  int64_t begin = config.warmup_steps;  // first step of the decay
  if (config.kind == "wsd") {
    const int64_t tenth = std::max<int64_t>(total_steps / 10, 1);
    const int64_t decay = config.decay_steps > 0 ? config.decay_steps : tenth;
    begin = std::max(begin, total_steps - decay);
  }
  const int64_t last = total_steps - 1;
  if (step < begin || total_steps == 1) return 1;
  // A decay of one step has no step of its own at the peak, which the one before it has.
  const double progress =
      step >= last ? 1 : static_cast<double>(step - begin) / static_cast<double>(last - begin);
  const double floor = config.final_lr_ratio;
  if (config.kind == "cosine") {
    return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  HL_CHECK(config.kind == "linear" || config.kind == "wsd", "schedule kind ", config.kind);
  return 1 - (1 - floor) * progress;
}

double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs) {
  return LearningRateFactor(config, epoch, max_epochs + 1);
}

}  // namespace halflife::train
