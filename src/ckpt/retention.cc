#include "ckpt/retention.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "ckpt/manifest.h"
#include "ckpt/step_files.h"
#include "core/error.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

// Returns the metric of a good step, or NaN if it has no such metric. nullopt: the step is not
// good.
std::optional<double> MetricOfGoodStep(const std::filesystem::path& step_dir,
                                       const std::string& metric) {
  try {
    const Manifest manifest = DecodeManifest(ReadManifestBytes(step_dir), kManifestName);
    CheckCoverage(manifest, kManifestName);
    StepFiles(step_dir, manifest).CheckSizes();
    const auto found = manifest.state.metrics.find(metric);
    return found == manifest.state.metrics.end() ? std::nan("") : found->second;
  } catch (const Error& error) {
    HL_WARN("ckpt", step_dir.filename().string(), " is not counted as a good step: ", error.what());
    return std::nullopt;
  }
}

// Returns the newest step with the lowest metric, or nullopt if no step has the metric.
std::optional<size_t> BestOf(const std::vector<std::optional<double>>& metrics) {
  std::optional<size_t> best;
  for (size_t i = 0; i < metrics.size(); ++i) {
    if (!metrics[i] || std::isnan(*metrics[i])) continue;
    if (!best || *metrics[i] < *metrics[*best]) best = i;
  }
  return best;
}

}  // namespace

std::vector<RetentionChoice> PlanRetention(
    const std::filesystem::path& ckpt_dir, const RetentionPolicy& policy,
    const std::function<bool(const std::filesystem::path&)>& is_good) {
  HL_CHECK(policy.keep_last >= 2, "keep_last ", policy.keep_last, " must be at least 2");
  std::vector<RetentionChoice> choices;
  std::vector<std::optional<double>> metrics;  // nullopt: not good.
  for (StepDir& step : ListPublished(ckpt_dir)) {
    metrics.push_back(MetricOfGoodStep(step.path, policy.keep_best));
    const bool has_metric = metrics.back() && !std::isnan(*metrics.back());
    choices.push_back({std::move(step), true, "", has_metric});
  }
  const auto stays_good = [&](size_t i) {
    if (is_good && metrics[i] && !is_good(choices[i].step.path)) metrics[i] = std::nullopt;
    return metrics[i].has_value();
  };
  int num_good = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    RetentionChoice& choice = choices[i];
    if (!metrics[i] || (num_good < policy.keep_last && !stays_good(i))) {
      choice.reason = "does not verify: kept for people, not counted";
    } else if (++num_good <= policy.keep_last) {
      choice.reason = Concat("one of the newest ", policy.keep_last);
    } else if (IsPinned(choice.step.path)) {
      choice.reason = "pinned by its KEEP file";
    } else if (policy.keep_every > 0 && choice.step.step % policy.keep_every == 0) {
      choice.reason = Concat("every ", policy.keep_every, " steps");
    } else {
      choice.keep = false;
      choice.reason = Concat("older than the newest ", policy.keep_last);
    }
  }
  if (policy.keep_best.empty()) return choices;
  while (const auto best = BestOf(metrics)) {
    const bool good = choices[*best].keep || stays_good(*best);
    if (!choices[*best].keep) {
      choices[*best].keep = true;
      choices[*best].reason = good ? Concat("best ", policy.keep_best)
                                   : "does not verify: kept for people, not counted";
    }
    if (good) break;
  }
  return choices;
}

void ApplyRetention(const std::filesystem::path& ckpt_dir,
                    const std::vector<RetentionChoice>& choices) {
  for (const RetentionChoice& choice : choices) {
    if (!choice.keep) MoveToTrash(ckpt_dir, choice.step.path);
  }
  EmptyTrash(ckpt_dir);
}

void DeleteSuperseded(const std::filesystem::path& ckpt_dir,
                      const std::vector<StepDir>& before) noexcept {
  try {
    for (const StepDir& step : ListSteps(ckpt_dir)) {
      if (step.kind == StepDir::Kind::kSuperseded && !IsPinned(step.path) &&
          std::ranges::find(before, step.path, &StepDir::path) == before.end())
        MoveToTrash(ckpt_dir, step.path);
    }
  } catch (const std::exception& error) {
    HL_WARN("ckpt", "superseded steps were not deleted: ", error.what());
  }
  EmptyTrash(ckpt_dir);
}

}  // namespace halflife::ckpt
