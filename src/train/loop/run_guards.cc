#include "train/loop/run_guards.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "train/config/schedule.h"

namespace halflife::train {

namespace {

constexpr char kAfterSpikes[] =
    "Continue from an older step with --resume step=N and a lower optimizer.lr (with "
    "--allow-change optimizer.lr), or train on with --set train.spike_sigmas=0 --allow-change "
    "train.spike_sigmas.";

void GuardSpikeByRollback(const RunConfig& config, uint64_t step, const StepResult& result,
                          ckpt::GuardState& guard) {
  const LoopConfig& train = config.train;
  guard.spikes.push_back(step);
  std::erase_if(guard.spikes, [&](uint64_t spike) {
    return spike + static_cast<uint64_t>(train.rollback_window) <= step;
  });
  HL_CHECK_AS(ExitCode::kNonFinite,
              !RollbackIsDue(config, step, guard) ||
                  guard.rollbacks < static_cast<uint32_t>(train.max_rollbacks),
              "step ", step, ": the loss ", result.loss, " is the spike number ",
              guard.spikes.size(), " in ", train.rollback_window,
              " steps, and the run has gone back ", guard.rollbacks,
              " times already (train.max_rollbacks). No checkpoint of this step was "
              "written. ",
              kAfterSpikes);
}

void GuardSpike(const RunConfig& config, uint64_t step, const StepResult& result,
                ckpt::GuardState& guard) {
  if (config.train.max_rollbacks > 0) return GuardSpikeByRollback(config, step, result, guard);
  HL_CHECK_AS(ExitCode::kNonFinite,
              guard.consecutive_skips <= static_cast<uint32_t>(config.train.max_skips), "step ",
              step, ": the loss ", result.loss, " is ", config.train.spike_sigmas,
              " standard deviations above the losses before (", guard.consecutive_skips,
              " in a row; train.spike_sigmas, train.max_skips ", config.train.max_skips,
              "). No checkpoint of this step was written. ", kAfterSpikes);
}

}  // namespace

bool RollbackIsDue(const RunConfig& config, uint64_t step, const ckpt::GuardState& guard) {
  const LoopConfig& train = config.train;
  if (train.max_rollbacks == 0 || guard.spikes.empty() || guard.spikes.back() != step) return false;
  return guard.spikes.size() >= static_cast<size_t>(train.rollback_spikes) ||
         guard.consecutive_skips > static_cast<uint32_t>(train.max_skips);
}

std::optional<uint64_t> StepToGoBackTo(const std::vector<ckpt::StepDir>& steps,
                                       const ckpt::GuardState& guard) {
  std::optional<uint64_t> found;
  for (const ckpt::StepDir& dir : steps) {
    if (dir.kind != ckpt::StepDir::Kind::kPublished) continue;
    found = dir.step;
    if (dir.step < guard.spikes.front()) break;
  }
  return found;
}

std::string RollbackWarning(const RunConfig& config) {
  const ckpt::RetentionPolicy& kept = config.ckpt.store.retention;
  // The newest checkpoint may be one step old, and the first spike almost a window.
  const bool saves_best = config.ckpt.keeps_best_validation() && config.eval.every > 0;
  const int64_t every =
      saves_best ? std::min(config.ckpt.every, config.eval.every) : config.ckpt.every;
  const int64_t steps = (kept.keep_last - 1) * every;
  if (config.train.max_rollbacks == 0 || kept.keep_every > 0 ||
      steps >= config.train.rollback_window - 1)
    return "";
  return Concat("ckpt.keep_last ", kept.keep_last, " and ckpt.every ", config.ckpt.every,
                saves_best ? Concat(", with a save after each best validation (eval.every ",
                                    config.eval.every, "),")
                           : "",
                " keep checkpoints that span ", steps, steps == 1 ? " step" : " steps",
                ", and train.rollback_window is ", config.train.rollback_window,
                ": a rollback may find none from before the spikes. Use a larger ckpt.keep_last.");
}

void RequireStepsAreNotEpochs(const RunConfig& config, uint64_t skip_data,
                              uint64_t skipped_before) {
  const bool schedule = config.schedule.per_epoch, validates = config.eval.every_epochs > 0;
  const uint64_t skipped = skip_data + skipped_before;
  if (skipped == 0 || (!schedule && !validates)) return;
  std::vector<std::string> settings, fixes;
  if (schedule) {
    settings.emplace_back("schedule.per_epoch");
    fixes.emplace_back("--set schedule.per_epoch=false --allow-change schedule.per_epoch");
  }
  if (validates) {
    settings.emplace_back("eval.every_epochs");
    fixes.emplace_back("eval.every instead of eval.every_epochs");
  }
  HL_FAIL(ExitCode::kUsage,
          skip_data > 0 ? "--skip-data: this run would leave" : "this run has left",
          " out the data of ", skipped, skipped == 1 ? " step" : " steps", ", and ",
          Join(settings, " and "), settings.size() == 1 ? " finds" : " find",
          " the epoch from the number of steps, which would be behind the data. Use ",
          Join(fixes, " and "), skip_data > 0 ? ", or continue without --skip-data." : ".");
}

double LargestLoss(const RunConfig& config, const ckpt::GuardState& guard) {
  const std::vector<double>& losses = guard.loss_window;
  if (config.train.spike_sigmas == 0 || losses.size() < kSpikeWindow)
    return std::numeric_limits<double>::infinity();
  const auto count = static_cast<double>(losses.size());
  const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / count;
  double squares = 0;
  for (const double loss : losses) squares += (loss - mean) * (loss - mean);
  return mean + config.train.spike_sigmas * std::sqrt(squares / count);
}

// The best value is kept per metric, because a resumed run may have another one.
constexpr char kPatienceBest[] = "patience_best/", kPatienceSince[] = "patience_since";

void NotePatience(const RunConfig& config, std::map<std::string, double>& metrics) {
  if (config.train.patience == 0) return;
  const std::string metric = config.ckpt.validation_metric();
  const auto value = metrics.find(metric);
  HL_CHECK_AS(ExitCode::kUsage, value != metrics.end(), "train.patience: the validation has no ",
              metric, ". Name one of its metrics in ckpt.keep_best.");
  const std::string key = kPatienceBest + metric;
  const auto best = metrics.find(key);
  const double loss = value->second;
  const bool better = !std::isnan(loss) && (best == metrics.end() || loss < best->second);
  if (better) metrics[key] = loss;
  metrics[kPatienceSince] = better ? 0 : metrics[kPatienceSince] + 1;
}

bool OutOfPatience(const RunConfig& config, const std::map<std::string, double>& metrics) {
  const auto since = metrics.find(kPatienceSince);
  return config.train.patience > 0 && since != metrics.end() &&
         since->second >= static_cast<double>(config.train.patience);
}

void GuardNonFinite(const RunConfig& config, uint64_t step, const StepResult& result,
                    ckpt::GuardState& guard) {
  if (!result.skipped) {
    guard.consecutive_skips = 0;
    if (config.train.spike_sigmas > 0) {
      guard.loss_window.push_back(result.loss);
      if (guard.loss_window.size() > kSpikeWindow)
        guard.loss_window.erase(guard.loss_window.begin());
    }
    return;
  }
  ++guard.skipped;
  // No row had a target, which TargetGuard handles.
  if (result.nonfinite.empty() && !result.spike) return;
  ++guard.consecutive_skips;
  if (result.spike) return GuardSpike(config, step, result, guard);
  const bool stop = config.train.on_nonfinite == "stop" ||
                    guard.consecutive_skips > static_cast<uint32_t>(config.train.max_skips);
  HL_CHECK_AS(ExitCode::kNonFinite, !stop, "step ", step, ": ", result.nonfinite,
              " is not finite (", guard.consecutive_skips, " in a row; train.on_nonfinite is '",
              config.train.on_nonfinite, "', train.max_skips ", config.train.max_skips,
              "). No checkpoint of this step was written. Use a lower optimizer.lr or ",
              config.optimizer.clip_norm > 0
                  ? "a smaller optimizer.clip_norm"
                  : "clip the gradient (optimizer.clip_norm is 0, off; 1 is usual)",
              ", and name the field with --allow-change.");
}

namespace {

// For each objective, the most likely reason for a dataset without targets.
const std::map<std::string, std::string> kLikelyCauses = {
    {"next_token", "are all documents one token long, or do the rows contain no answers?"},
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
      max_in_a_row_(
          std::min(std::clamp<int64_t>(order.StepsPerEpoch(), 100, 1000), config.train.steps)) {}

void TargetGuard::NoteStep(int64_t step, const StepResult& result) {
  if (result.num_targets > 0) {
    in_a_row_ = 0;
    return;
  }
  ++in_a_row_;
  const std::string& objective = config_.model.objective.name();
  HL_CHECK_AS(ExitCode::kData, in_a_row_ < max_in_a_row_, "step ", step, ": no row of the last ",
              in_a_row_, " steps has a target of the objective ", objective,
              ", so nothing was trained. Check the dataset ", config_.data.main_path(), ": ",
              LikelyCause(objective));
}

std::string RateJumpWarning(const ResumedRate& rate, const std::string& kind, int64_t total_steps) {
  constexpr double kNotable = 0.01;  // Relative to the larger rate.
  const double jump = std::abs(rate.next - rate.last);
  const double of_schedule = std::abs(rate.next - rate.planned);
  if (jump <= of_schedule + kNotable * std::max(rate.next, rate.last)) return "";

  const std::string lr = rate.last > 0 ? Concat(rate.last) : "RATE";
  const bool constant = kind == "constant", phases = kind == "phases";
  return Concat(
      "the learning rate jumps from ", rate.last, " at step ", rate.step, " (the checkpoint) to ",
      rate.next, " at step ", rate.step + 1, " (this run's ",
      phases ? "schedule of phases" : kind + " schedule", " of ", total_steps, " steps). ",
      rate.last > 0 ? "To keep the old rate" : "To choose another rate",
      ", stop this run and start it with ",
      rate.own ? Concat("--resume step=", rate.step, " ") : "",
      constant ? "" : "--set schedule.kind=constant ", phases ? "--set 'schedule.phase=[]' " : "",
      rate.warming_up ? "--set schedule.warmup_steps=0 " : "", "--set optimizer.lr=", lr,
      constant ? "" : " --allow-change schedule.kind",
      rate.warming_up ? " --allow-change schedule.warmup_steps" : "",
      phases ? " --allow-change schedule.phase" : "", " --allow-change optimizer.lr.",
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
