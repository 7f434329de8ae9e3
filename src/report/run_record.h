// Reads the folder of a run, which may still be running: metrics.jsonl, config.textproto, DONE,
// heartbeat.json and abort/FIRST. Only the folder must exist. Missing files are skipped, and
// unreadable parts are reported in the record. The caller fills in the fields that depend on the
// recipe and the newest checkpoint.
//
//   const RunRecord run = ReadRun("runs/first");
//   for (const Point& point : run.metric("loss")) ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/axis.h"

namespace halflife::report {

struct RunRecord {
  std::filesystem::path path;
  std::string name;  // Name of the folder.

  // Names are those in metrics.jsonl. x is the step, which ascends strictly: steps that were
  // repeated after a resume have the values of the last attempt. Booleans are 0 and 1, null is NaN.
  // `elapsed_s` accumulates over all attempts: it is the total time of the run up to a step.
  std::map<std::string, Series> metrics;
  const Series& metric(const std::string& key) const;  // Empty if there is no such metric.
  int64_t last_step() const;                           // Last trained step. 0: none.
  int64_t num_tokens() const;                          // Tokens trained on. 0: none or unknown.
  // Returns the tokens trained on up to a step, as recorded by the run (steps at the end of an
  // epoch may be smaller), interpolated linearly between recorded steps.
  double tokens_at(double step) const;

  std::vector<int64_t> resumes;  // First step of each attempt after the first.
  int64_t replayed_steps = 0;    // Steps trained more than once because of resumes.
  double elapsed_s = 0;          // Time of all attempts, including lost steps. 0: unknown.
  // Damaged lines of metrics.jsonl, not counting an incomplete last line.
  int64_t damaged_lines = 0;
  std::vector<std::string> checkpoint_damage;

  bool finished = false;
  std::string failure;     // Message of the rank that failed first. Empty: no failure.
  std::string last_alive;  // "2026-01-31 17:05 UTC". Empty: unknown.

  std::string config_text;     // Content of the file in the folder.
  std::string config_problem;  // Why `config` is empty.

  // ReadRun leaves the following fields empty. These depend on `config_text`:
  std::map<std::string, std::string> config;  // "optimizer.lr" -> "0.003"
  std::string model;                          // "gla + softmax in 1 of 4 layers, 4 x 192"
  std::optional<int64_t> num_parameters;
  int64_t total_steps = 0;      // 0: unknown.
  int64_t tokens_per_step = 0;  // 0: unknown.
  double clip_norm = 0;         // 0: off or unknown.

  // These depend on the newest checkpoint, and are empty before the first one:
  std::optional<int> world_size;
  std::string build;
};

std::string UtcMinute(int64_t unix_ms);  // "2026-01-31 17:05 UTC"

// Throws kUsage if `path` is not the folder of a run.
RunRecord ReadRun(const std::filesystem::path& path);

}  // namespace halflife::report
