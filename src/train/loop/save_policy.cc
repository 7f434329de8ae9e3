#include "train/loop/save_policy.h"

#include "core/concat.h"

namespace halflife::train {
namespace {

constexpr char kBest[] = "best_";

}  // namespace

SavePolicy::SavePolicy(const SaveConfig& config)
    : every_(config.every),
      on_error_(config.on_error),
      metric_(config.keeps_best_validation() ? config.store.retention.keep_best : "") {}

bool SavePolicy::IsDue(int64_t step, bool requested) const {
  return requested || step == best_step_ || (every_ > 0 && step % every_ == 0);
}

void SavePolicy::NoteValidation(int64_t step, const std::map<std::string, double>& metrics) {
  const auto found = metrics.find(metric_);
  if (found == metrics.end() || !(found->second < best_)) return;
  best_ = found->second;
  best_step_ = step;
}

void SavePolicy::AddBest(std::map<std::string, double>& metrics) const {
  if (best_ < kNone) metrics[kBest + metric_] = best_;
}

void SavePolicy::TakeBest(std::map<std::string, double>& metrics, bool own) {
  const auto found = metrics.find(kBest + metric_);
  if (own && found != metrics.end()) best_ = saved_best_ = found->second;
  std::erase_if(metrics, [](const auto& metric) { return metric.first.starts_with(kBest); });
}

void SavePolicy::NoteSaved(int64_t step) {
  saved_step_ = step;
  failed_in_a_row_ = 0;
  if (step == best_step_) saved_best_ = best_;
}

bool SavePolicy::GoesOnAfter(ExitCode failure) {
  ++failed_in_a_row_;
  // A later validation only has to be better than the best saved one.
  best_ = saved_best_;
  return failure == ExitCode::kCheckpointIo && on_error_ != "stop" && failed_in_a_row_ < 2;
}

}  // namespace halflife::train
