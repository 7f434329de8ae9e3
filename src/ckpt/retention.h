// Decides which steps a run folder keeps, and deletes the others. At least two good steps remain.
//
//   // Lists the steps to delete, with reasons.
//   for (const RetentionChoice& choice : PlanRetention(ckpt_dir, policy)) ...
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/step_dir.h"

namespace halflife::ckpt {

struct RetentionPolicy {
  int keep_last = 3;      // at least 2
  int keep_every = 0;     // also keep steps divisible by this; 0: off
  std::string keep_best;  // also keep the step with the lowest value of this metric; empty: off
};

struct RetentionChoice {
  StepDir step;
  bool keep = true;
  std::string reason;
  bool has_metric = false;  // that of keep_best
};

// Published steps, the newest first. A step whose manifest or sizes do not verify is kept and
// counts for nothing; likewise one that `is_good` refuses, which is asked of each that would be
// among the newest or the best.
std::vector<RetentionChoice> PlanRetention(
    const std::filesystem::path& ckpt_dir, const RetentionPolicy& policy,
    const std::function<bool(const std::filesystem::path& step_dir)>& is_good = nullptr);

// Renames the victims into .trash, then empties it. Error kCheckpointIo when a rename fails.
void ApplyRetention(const std::filesystem::path& ckpt_dir,
                    const std::vector<RetentionChoice>& choices);

}  // namespace halflife::ckpt
