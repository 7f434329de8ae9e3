#include "train/loop/rate_jump.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/concat.h"
#include "train/config/schedule.h"

namespace halflife::train {

std::string RateJumpWarning(const ResumedRate& rate, const std::string& kind, int64_t total_steps) {
  constexpr double kNotable = 0.01;  // Relative to the larger rate.
  const double jump = std::abs(rate.next - rate.last);
  const double of_schedule = std::abs(rate.next - rate.planned);
  if (jump <= of_schedule + kNotable * std::max(rate.next, rate.last)) return "";

  const std::string lr = rate.last > 0 ? Concat(rate.last) : "RATE";
  const bool constant = kind == "constant";
  return Concat(
      "the learning rate jumps from ", rate.last, " at step ", rate.step, " (the checkpoint) to ",
      rate.next, " at step ", rate.step + 1, " (this run's ", kind, " schedule of ", total_steps,
      " steps). ", rate.last > 0 ? "To keep the old rate" : "To choose another rate",
      ", stop this run and start it with ",
      rate.own ? Concat("--resume step=", rate.step, " ") : "",
      constant ? "" : "--set schedule.kind=constant ", "--set optimizer.lr=", lr,
      constant ? "" : " --allow-change schedule.kind", " --allow-change optimizer.lr.",
      rate.before_decay ? Concat(" To continue from before the decay, start it with --resume step=",
                                 *rate.before_decay, ".")
                        : "");
}

std::optional<uint64_t> NewestBeforeDecay(const std::map<std::string, std::string>& trajectory,
                                          uint64_t step, const std::vector<ckpt::StepDir>& steps) {
  const auto text = [&](const char* field) {
    const auto found = trajectory.find(field);
    return found == trajectory.end() ? "" : found->second.c_str();
  };
  const auto number = [&](const char* field) { return std::strtoll(text(field), nullptr, 10); };
  if (text("schedule.kind") != std::string("wsd")) return std::nullopt;
  const ScheduleConfig schedule = {.kind = "wsd",
                                   .warmup_steps = number("schedule.warmup_steps"),
                                   .decay_steps = number("schedule.decay_steps")};
  const auto before = static_cast<uint64_t>(StepsBeforeDecay(schedule, number("train.steps")));
  const auto newest = std::ranges::find_if(
      steps, [&](const ckpt::StepDir& dir) { return dir.step > 0 && dir.step <= before; });
  if (step <= before || newest == steps.end()) return std::nullopt;
  return newest->step;
}

}  // namespace halflife::train
