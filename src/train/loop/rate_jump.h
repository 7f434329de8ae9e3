// Whether a resumed run continues at the learning rate of its checkpoint. It does not if the run
// was extended: a schedule that had decayed is then read at an earlier point.
//
//   const std::string warning = RateJumpWarning({.step = 100, .last = 3e-4, .planned = 3e-3,
//                                                .next = 3e-3}, "wsd", 200);
//   if (!warning.empty()) HL_WARN("train", warning);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/step_dir.h"

namespace halflife::train {

struct ResumedRate {
  int64_t step = 0;    // Steps that the checkpoint has done, at least 1.
  double last = 0;     // Learning rate of the checkpoint's last step.
  double planned = 0;  // Rate of this run's schedule for that step.
  double next = 0;     // Rate of this run's schedule for the next step.
  bool own = false;    // The checkpoint is in the run's own folder.
  // If the checkpoint is in a wsd decay: the newest step in the run's folder from before it.
  std::optional<uint64_t> before_decay = {};
};

// Returns an empty string if the rate continues: the change from `last` to `next` is a change of
// the schedule itself, or within 1 % of the larger rate. Otherwise returns one line with both rates
// and the options that avoid the change. `kind` and `total_steps` are those of this run's schedule.
std::string RateJumpWarning(const ResumedRate& rate, const std::string& kind, int64_t total_steps);

// Returns the newest of `steps` (newest first) that a wsd run had trained before its decay began.
// `trajectory` contains the fields of a checkpoint's config. Returns nullopt if that run used
// another schedule, or if the checkpoint of `step` is not in the decay.
std::optional<uint64_t> NewestBeforeDecay(const std::map<std::string, std::string>& trajectory,
                                          uint64_t step, const std::vector<ckpt::StepDir>& steps);

}  // namespace halflife::train
