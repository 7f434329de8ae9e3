// metrics.jsonl (one line a step, one a validation, one a save), the same numbers for TensorBoard,
// and the progress line.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ckpt/store.h"
#include "core/clock.h"
#include "data/sample_order.h"
#include "eval/validation.h"
#include "train/device.h"
#include "train/record/event_log.h"
#include "train/record/rank_times.h"
#include "train/record/run_lines.h"
#include "train/step/step.h"

namespace halflife::train {

struct MetricsConfig {
  std::filesystem::path file;
  std::string attempt;  // tells steps of a replayed stretch apart
  std::string objective;
  int64_t total_steps = 0;
  int64_t log_every = 10;
  // Of all ranks, whose inputs `tokens` counts: a short step has fewer, and the rows that fill its
  // batch are none.
  data::SampleOrder order;
  int64_t seq_len = 0;
  int world_size = 1;
  double flops_per_token_6p = 0;    // 6 x parameters
  double flops_per_token_full = 0;  // forward and backward with mixing: 3 x FlopsPerToken
  std::optional<ComputePeak> peak;  // of one rank
  Device device;
};

// Rank 0 has one. Not thread-safe. `elapsed_s` of its lines counts from when it is made.
class Metrics {
 public:
  // `events`: null where TensorBoard is not asked for.
  Metrics(const MetricsConfig& config, std::unique_ptr<EventLog> events);
  ~Metrics();  // ends a progress line that stands on the terminal

  void Step(int64_t step, const StepResult& result);
  void Validation(int64_t step, const eval::ValidationResult& result);
  // `blocked_s`: what the save took the step loop.
  void Save(int64_t step, const ckpt::SaveReport& report, double blocked_s);
  void Ranks(int64_t step, const ComparedTimes& times);
  // A damaged checkpoint that was passed over on the way to `step`.
  void Damage(int64_t step, const std::string& banner);

  // These are for TensorBoard alone: words of a step, and words about this attempt.
  bool shows_texts() const { return events_ != nullptr; }
  void Text(int64_t step, const std::string& tag, const std::string& markdown);
  void Describe(const std::string& tag, const std::string& markdown);

 private:
  // Adds what every line is read against: tokens so far, elapsed_s, unix_ms and the attempt.
  void Write(nlohmann::ordered_json line);
  void Progress(int64_t step, const StepResult& result, double tokens_per_s);

  MetricsConfig config_;
  const Stopwatch clock_;
  RunLines file_;
  std::unique_ptr<EventLog> events_;
  bool terminal_;
  bool line_open_ = false;
  double mean_step_seconds_ = 0;  // exponential mean, for the ETA
};

}  // namespace halflife::train
