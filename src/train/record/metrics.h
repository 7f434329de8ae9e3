// metrics.jsonl (one line per step, validation and save), the same numbers for TensorBoard, and the
// progress line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ckpt/store.h"
#include "core/clock.h"
#include "core/json_text.h"
#include "data/blend.h"
#include "data/sample_order.h"
#include "eval/validation.h"
#include "train/device.h"
#include "train/record/event_log.h"
#include "train/record/run_timing.h"
#include "train/step/step.h"

namespace halflife::train {

// A file of JSON lines that does not affect training. If the disk is full, temporarily or
// permanently, lines are lost, but the run continues and existing lines remain complete.
class RunLines {
 public:
  // Throws Error kEnvironment if the file cannot be opened. A run does not start without it.
  explicit RunLines(const std::filesystem::path& path);
  // Does not throw, because the save policy decides whether a run continues. Warns of the first
  // lost line, and logs when lines can be written again.
  void Append(const nlohmann::ordered_json& line);

 private:
  void CutBack() const;

  const std::filesystem::path path_;
  JsonlWriter file_;
  // End of the last complete line, while a line is being written and after a failed write.
  std::optional<uintmax_t> whole_;
  int64_t num_lost_ = 0;  // Consecutive lost lines.
};

// The scores of a validation set. The metrics of the unnamed set have no suffix.
struct SetResult {
  std::string name;
  // For pairs: the mean loss, the accuracy, and the number of pairs as num_targets.
  eval::ValidationResult result;
  std::optional<double> reward_margin = {};  // only of pairs
  std::string suffix() const { return name.empty() ? "" : "/" + name; }
};

struct MetricsConfig {
  std::filesystem::path file;
  std::string attempt;  // Distinguishes steps that several attempts repeat.
  std::string objective;
  int64_t total_steps = 0;
  int64_t log_every = 10;
  // The order of samples over all ranks, whose inputs `tokens` counts. A short step has fewer rows,
  // and padding rows do not count.
  data::SampleOrder order;
  uint64_t skipped_steps = 0;          // Steps of the order that the run has left out.
  const data::Blend* blend = nullptr;  // Borrowed. Null for a single dataset.
  int64_t seq_len = 0;
  int world_size = 1;
  double flops_per_token_6p = 0;    // 6 x parameters.
  double flops_per_token_full = 0;  // Forward and backward, including mixing: 3 x FlopsPerToken.
  std::optional<ComputePeak> peak;  // Per rank.
  Device device;
};

// Rank 0 has one. Not thread-safe. `elapsed_s` counts from construction.
class Metrics {
 public:
  // `events` is null if TensorBoard is off.
  Metrics(const MetricsConfig& config, std::unique_ptr<EventLog> events);
  ~Metrics();  // Ends a progress line on the terminal.

  void Step(int64_t step, const StepResult& result);
  // Writes the scores of all sets in one line.
  void Validation(int64_t step, const std::vector<SetResult>& sets);
  // `blocked_s`: seconds that the step loop waited for the save.
  void Save(int64_t step, const ckpt::SaveReport& report, double blocked_s);
  void Ranks(int64_t step, const ComparedTimes& times);
  // Records a damaged checkpoint that was skipped on the way to `step`.
  void Damage(int64_t step, const std::string& banner);

  // Only for TensorBoard: texts of a step, and texts about this attempt.
  bool shows_texts() const { return events_ != nullptr; }
  void Text(int64_t step, const std::string& tag, const std::string& markdown);
  void Describe(const std::string& tag, const std::string& markdown);

 private:
  // Adds the fields of every line: tokens so far, elapsed_s, unix_ms and the attempt.
  void Write(nlohmann::ordered_json line);
  // Logs how long the rest of the run takes, once, when steps are as fast as they will be.
  void Forecast(int64_t step) const;
  static constexpr int kStepsBeforeForecast = 20;

  void Progress(int64_t step, const StepResult& result, double tokens_per_s);

  MetricsConfig config_;
  const Stopwatch clock_;
  RunLines file_;
  std::unique_ptr<EventLog> events_;
  bool terminal_;
  bool line_open_ = false;
  int64_t num_steps_ = 0;         // Steps of this attempt.
  double mean_step_seconds_ = 0;  // Exponential mean, for the ETA.
};

}  // namespace halflife::train
