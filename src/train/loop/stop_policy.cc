#include "train/loop/stop_policy.h"

#include <algorithm>

#include "train/loop/stop_flags.h"

namespace halflife::train {
namespace {

// Time reserved for a save whose duration is not known yet.
constexpr double kLeastSaveSeconds = 5;

}  // namespace

StopPolicy::StopPolicy(double time_limit_s) : time_limit_s_(time_limit_s) {}

void StopPolicy::NoteStep(double seconds) { longest_step_s_ = std::max(longest_step_s_, seconds); }

bool StopPolicy::TimeIsUp(double elapsed_s) const {
  // The work that may precede the end of the save: this step and a slower one, a validation, and
  // the save itself.
  const double ahead =
      2 * longest_step_s_ + last_validation_s_ + std::max(kLeastSaveSeconds, 2 * last_save_s_);
  return time_limit_s_ > 0 && elapsed_s + ahead > time_limit_s_;
}

StepScalars StopPolicy::OwnRequests(double elapsed_s) const {
  StepScalars flags;
  flags[Scalar::kSaveAndRequeue] = StopFlags::requeue();
  flags[Scalar::kSaveAndContinue] = StopFlags::TakeSave();
  flags[Scalar::kSaveAndStop] = StopFlags::stop();
  flags[Scalar::kTimeLimit] = TimeIsUp(elapsed_s);
  return flags;
}

std::optional<ExitCode> StopPolicy::CodeOf(const StepScalars& reduced) {
  if (reduced.any(Scalar::kSaveAndStop)) return ExitCode::kInterrupted;
  if (reduced.any(Scalar::kSaveAndRequeue) || reduced.any(Scalar::kTimeLimit))
    return ExitCode::kRequeue;
  return std::nullopt;
}

}  // namespace halflife::train
