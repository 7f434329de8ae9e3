#include "train/loop/target_guard.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace halflife::train {
namespace {

// For each objective, the most likely reason for a dataset without targets.
const std::map<std::string, std::string> kLikelyCauses = {
    {"next_token", "are all documents one token long, or do no answers stand within the rows?"},
    {"masked_token", "is model.objective.masked_token.rate too small for any token to be hidden?"},
    {"labelled", "do its rows have labels?"},
    {"classification", "does no document begin within its rows?"}};

std::string LikelyCause(const std::string& objective) {
  const auto found = kLikelyCauses.find(objective);
  return found == kLikelyCauses.end() ? "does the objective suit it?" : found->second;
}

}  // namespace

TargetGuard::TargetGuard(const RunConfig& config, const data::SampleOrder& order)
    : config_(config),
      most_in_a_row_(
          std::min(std::clamp<int64_t>(order.StepsPerEpoch(), 100, 1000), config.train.steps)) {}

void TargetGuard::NoteStep(int64_t step, const StepResult& result) {
  if (result.num_targets > 0) {
    in_a_row_ = 0;
    return;
  }
  ++in_a_row_;
  const std::string& objective = config_.model.objective.name();
  HL_CHECK_AS(ExitCode::kData, in_a_row_ < most_in_a_row_, "step ", step, ": no row of the last ",
              in_a_row_, " steps has a target of the objective ", objective,
              ", so nothing was trained. Check the dataset ", config_.data.path, ": ",
              LikelyCause(objective));
}

}  // namespace halflife::train
