// Compares a plan with the steps that a run recorded (`--plan ... --against RUN`), phase by phase.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/plan/cluster_plan.h"

namespace halflife::train {

// Medians of the last steps that rank 0 recorded, at most kMeasuredSteps. Seconds.
inline constexpr int kMeasuredSteps = 100;
struct MeasuredStep {
  std::string source = {};  // The file.
  int num_steps = 0;
  double step = 0, data_wait = 0, exposed_grad = 0, exposed_param = 0, exposed_rows = 0;
  double tokens_per_s = 0, peak_memory_bytes = 0;
  std::map<std::string, int64_t> bytes_by_group = {};  // Bytes in the last step.
};
// Reads metrics.jsonl of a run's folder, or a file of this form. Throws Error kUsage if it has no
// steps.
MeasuredStep ReadMeasuredStep(const std::filesystem::path& run_or_file);

struct ComparedValue {
  enum class Unit : uint8_t { kSeconds, kPerSecond, kBytes } unit = Unit::kSeconds;
  std::string key = {}, name = {};  // In JSON and in the text.
  double planned = 0, measured = 0;
};
std::vector<ComparedValue> Compare(const ClusterPlan& plan, const MeasuredStep& measured);
// Returns a table. An error is (planned - measured) / measured.
std::string ComparisonText(const ClusterPlan& plan, const MeasuredStep& measured);
nlohmann::ordered_json ComparisonJson(const ClusterPlan& plan, const MeasuredStep& measured);

}  // namespace halflife::train
