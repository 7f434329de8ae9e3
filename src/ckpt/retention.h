// Which steps a run folder keeps, and the deletion of the others. Never fewer than two good steps
// remain.
//
//   // What goes and why.
//   for (const RetentionChoice& choice : PlanRetention(ckpt_dir, policy)) ...
#pragma once

#include <filesystem>
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
};

// Published steps, the newest first. A step whose manifest does not verify is kept and counts for
// nothing.
std::vector<RetentionChoice> PlanRetention(const std::filesystem::path& ckpt_dir,
                                           const RetentionPolicy& policy);

// Renames the victims into .trash, then empties it. Error kCheckpointIo when a rename fails.
void ApplyRetention(const std::filesystem::path& ckpt_dir,
                    const std::vector<RetentionChoice>& choices);

}  // namespace halflife::ckpt
