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
  int keep_last = 3;      // At least 2.
  int keep_every = 0;     // Also keeps steps divisible by this; 0: off.
  std::string keep_best;  // Also keeps the step with the lowest value of this metric; empty: off.
};

struct RetentionChoice {
  StepDir step;
  bool keep = true;
  std::string reason;
  bool has_metric = false;  // The metric of keep_best.
};

// Returns the choice for each published step, the newest first. A step whose manifest or sizes do
// not verify is kept and not counted, and so is a step that `is_good` rejects. `is_good` is only
// called for steps that would be among the newest or the best.
std::vector<RetentionChoice> PlanRetention(
    const std::filesystem::path& ckpt_dir, const RetentionPolicy& policy,
    const std::function<bool(const std::filesystem::path& step_dir)>& is_good = nullptr);

// Renames the steps to delete into .trash and empties it. Throws Error kCheckpointIo if a rename
// fails.
void ApplyRetention(const std::filesystem::path& ckpt_dir,
                    const std::vector<RetentionChoice>& choices);

// Deletes the steps that were renamed to .superseded since `before`, a list of all steps, except
// those with a KEEP file. A failure is logged.
void DeleteSuperseded(const std::filesystem::path& ckpt_dir,
                      const std::vector<StepDir>& before) noexcept;

}  // namespace halflife::ckpt
