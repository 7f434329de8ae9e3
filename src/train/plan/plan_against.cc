#include "train/plan/plan_against.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/median.h"
#include "dist/gradient_reducer.h"

namespace halflife::train {
namespace {

using Json = nlohmann::ordered_json;
using Unit = ComparedValue::Unit;

constexpr char kBytesOf[] = "comm_bytes/";

double MedianOf(const std::deque<Json>& steps, const char* key) {
  std::vector<double> values;
  for (const Json& step : steps)
    if (const auto at = step.find(key); at != step.end() && at->is_number())
      values.push_back(at->get<double>());
  return values.empty() ? 0 : Median(std::move(values));
}

// Which of the measured waits a collective belongs to.
enum class WaitsFor : uint8_t { kGradients, kParameters, kRows, kScalars };
WaitsFor ClassOf(const PlannedCollective& row) {
  if (row.group == "control") return WaitsFor::kScalars;
  if (row.group == "rows") return WaitsFor::kRows;
  return row.what == dist::kGradientBucket ? WaitsFor::kGradients : WaitsFor::kParameters;
}

std::string Show(Unit unit, double value) {
  if (unit == Unit::kSeconds) return Concat(Fixed(1e3 * value, 2), " ms");
  return unit == Unit::kBytes ? HumanBytes(value) : HumanCount(value);
}

}  // namespace

MeasuredStep ReadMeasuredStep(const std::filesystem::path& run_or_file) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::is_directory(run_or_file, ignored)
                                         ? run_or_file / "metrics.jsonl"
                                         : run_or_file;
  HL_CHECK_AS(ExitCode::kUsage, std::filesystem::is_regular_file(file, ignored), "--against ",
              run_or_file.string(), ": there is no ", file.string(),
              ". Use the folder of a run, or its metrics.jsonl.");
  std::istringstream lines(ReadFile(file, ExitCode::kUsage));
  std::deque<Json> steps;
  for (std::string line; std::getline(lines, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step_ms")) continue;  // A validation, or a torn line.
    steps.push_back(std::move(json));
    if (std::ssize(steps) > kMeasuredSteps) steps.pop_front();
  }
  HL_CHECK_AS(ExitCode::kUsage, !steps.empty(), file.string(),
              " has no steps to compare a plan with. Use a run that has trained some steps.");
  MeasuredStep measured = {.source = file.string(),
                           .num_steps = static_cast<int>(steps.size()),
                           .step = 1e-3 * MedianOf(steps, "step_ms"),
                           .data_wait = 1e-3 * MedianOf(steps, "data_wait_ms"),
                           .exposed_grad = 1e-3 * MedianOf(steps, "exposed_grad_ms"),
                           .exposed_param = 1e-3 * MedianOf(steps, "exposed_param_ms"),
                           .exposed_rows = 1e-3 * MedianOf(steps, "exposed_rows_ms"),
                           .tokens_per_s = MedianOf(steps, "tokens_per_s"),
                           .peak_memory_bytes = MedianOf(steps, "peak_memory_bytes")};
  // A line counts all bytes since the line before, which can include those of a validation or a
  // save.
  for (const auto& [key, value] : steps.back().items()) {
    if (!key.starts_with(kBytesOf) || !value.is_number()) continue;
    int64_t least = value.get<int64_t>();
    for (const Json& step : steps) least = std::min(least, step.value(key, int64_t{0}));
    if (least > 0) measured.bytes_by_group[key.substr(std::size(kBytesOf) - 1)] = least;
  }
  return measured;
}

std::vector<ComparedValue> Compare(const ClusterPlan& plan, const MeasuredStep& measured) {
  std::map<WaitsFor, double> waits;
  for (const PlannedCollective& row : plan.collectives) waits[ClassOf(row)] += row.exposed_seconds;
  // Waits for scalars are not recorded, so a run counts them as the rest of its step.
  const double rest = plan.step_s - plan.exposed_s() + waits[WaitsFor::kScalars];
  std::vector<ComparedValue> values = {
      {Unit::kSeconds, "step", "step", plan.step_s, measured.step},
      {Unit::kSeconds, "compute", "compute, update, scalars", rest,
       measured.step - measured.data_wait - measured.exposed_grad - measured.exposed_param -
           measured.exposed_rows},
      {Unit::kSeconds, "exposed_grad", "waiting for gradients", waits[WaitsFor::kGradients],
       measured.exposed_grad},
      {Unit::kSeconds, "exposed_param", "waiting for weights", waits[WaitsFor::kParameters],
       measured.exposed_param},
      {Unit::kSeconds, "exposed_rows", "waiting for rows", waits[WaitsFor::kRows],
       measured.exposed_rows},
      {Unit::kSeconds, "data_wait", "waiting for data", 0, measured.data_wait},
      {Unit::kPerSecond, "tokens_per_s", "tokens/s", plan.tokens_per_s, measured.tokens_per_s},
      {Unit::kBytes, "peak_memory_bytes", "memory of a rank", plan.memory.total(),
       measured.peak_memory_bytes}};
  const std::map<std::string, int64_t> planned = plan.BytesByGroup();
  std::map<std::string, std::pair<double, double>> bytes;
  for (const auto& [group, count] : planned) bytes[group].first = static_cast<double>(count);
  for (const auto& [group, count] : measured.bytes_by_group)
    bytes[group].second = static_cast<double>(count);
  for (const auto& [group, both] : bytes)
    values.push_back({Unit::kBytes, Concat(kBytesOf, group), Concat("bytes of ", group), both.first,
                      both.second});
  return values;
}

namespace {

// Returns the groups whose bytes differ from the plan. Bytes follow from the recipe and the mesh,
// so they should be equal.
std::vector<std::string> OddGroups(const std::vector<ComparedValue>& values) {
  std::vector<std::string> odd;
  for (const ComparedValue& value : values)
    if (value.key.starts_with(kBytesOf) && value.planned != value.measured)
      odd.push_back(value.key.substr(std::size(kBytesOf) - 1));
  return odd;
}

std::string WarningOf(const std::vector<ComparedValue>& values, const MeasuredStep& measured) {
  const std::vector<std::string> odd = OddGroups(values);
  if (odd.empty()) return "";
  return Concat("the bytes of ", Join(odd, ", "), " differ from those of ", measured.source,
                ": it is a run of another recipe or mesh. Plan with its config.textproto and its "
                "numbers of nodes and gpus.");
}

}  // namespace

std::string ComparisonText(const ClusterPlan& plan, const MeasuredStep& measured) {
  const std::vector<ComparedValue> values = Compare(plan, measured);
  std::ostringstream out;
  if (const std::string warning = WarningOf(values, measured); !warning.empty())
    out << "warning: " << warning << "\n";
  const auto row = [&](const std::string& name, const std::string& planned,
                       const std::string& recorded, const std::string& error) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << planned
        << std::setw(14) << recorded << std::setw(12) << error << "\n";
  };
  out << "the plan against " << measured.source << ", medians of "
      << Counted(measured.num_steps, "step") << "\n";
  row("", "planned", "measured", "error");
  for (const ComparedValue& value : values) {
    const double error = value.planned / value.measured - 1;
    row(value.name, Show(value.unit, value.planned), Show(value.unit, value.measured),
        value.measured == 0 ? "-" : Concat(error > 0 ? "+" : "", Fixed(100 * error, 1), " %"));
  }
  return out.str();
}

Json ComparisonJson(const ClusterPlan& plan, const MeasuredStep& measured) {
  const std::vector<ComparedValue> values = Compare(plan, measured);
  Json rows;
  for (const ComparedValue& value : values)
    rows[value.key] = {
        {"planned", value.planned},
        {"measured", value.measured},
        {"error", value.measured == 0 ? Json() : Json(value.planned / value.measured - 1)}};
  return {{"source", measured.source},
          {"steps", measured.num_steps},
          {"values", rows},
          {"warning", WarningOf(values, measured)}};
}

}  // namespace halflife::train
