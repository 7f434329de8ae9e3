#include "train/loop/save_policy.h"

#include <utility>

namespace halflife::train {

SavePolicy::SavePolicy(int64_t every, std::string on_error)
    : every_(every), on_error_(std::move(on_error)) {}

bool SavePolicy::IsDue(int64_t step, bool requested) const {
  return requested || (every_ > 0 && step % every_ == 0);
}

void SavePolicy::NoteSaved(int64_t step) {
  saved_step_ = step;
  failed_in_a_row_ = 0;
}

bool SavePolicy::GoesOnAfter(ExitCode failure) {
  ++failed_in_a_row_;
  return failure == ExitCode::kCheckpointIo && on_error_ != "stop" && failed_in_a_row_ < 2;
}

}  // namespace halflife::train
