// What a run's folder says about it, read while it may still be written: metrics.jsonl,
// config.textproto, DONE, heartbeat.json and abort/FIRST. Only the folder has to exist; what is
// missing or unreadable is left out or told. What the recipe and the newest checkpoint mean is
// filled in by the caller, who can read them.
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

#include "report/series.h"

namespace halflife::report {

struct RunRecord {
  std::filesystem::path path;
  std::string name;  // the folder's

  // Names are those of metrics.jsonl. x is the step, which ascends strictly: a stretch that was
  // replayed after a resume has the last attempt's numbers. Truth values are 0 and 1, null is NaN.
  // `elapsed_s` counts on from attempt to attempt: it is what the run has cost up to a step.
  std::map<std::string, Series> metrics;
  const Series& metric(const std::string& key) const;  // empty: not there
  int64_t last_step() const;                           // trained; 0: none
  int64_t num_tokens() const;                          // trained on; 0: none, or unknown
  // Trained on up to a step: as the run says, which knows of steps that an epoch's end made
  // smaller; between the steps it tells of, by a straight line.
  double tokens_at(double step) const;

  std::vector<int64_t> resumes;  // first step of each attempt after the first
  int64_t replayed_steps = 0;    // trained twice or more: what the resumes cost
  double elapsed_s = 0;          // of all attempts, lost stretches too; 0: unknown
  int64_t damaged_lines = 0;     // of metrics.jsonl; an unfinished last line is not one
  std::vector<std::string> checkpoint_damage;

  bool finished = false;
  std::string failure;     // words of the rank that failed first; empty: none
  std::string last_alive;  // "2026-01-31 17:05 UTC"; empty: unknown

  std::string config_text;     // as it stands in the folder
  std::string config_problem;  // why `config` is empty

  // ReadRun leaves all from here on empty. `config_text` says:
  std::map<std::string, std::string> config;  // "optimizer.lr" -> "0.003"
  std::string model;                          // "gla + softmax in 1 of 4 layers, 4 x 192"
  std::optional<int64_t> num_parameters;
  int64_t total_steps = 0;      // 0: unknown
  int64_t tokens_per_step = 0;  // 0: unknown
  double clip_norm = 0;         // 0: off or unknown

  // The newest checkpoint says; empty before the first:
  std::optional<int> world_size;
  std::string build;
};

// Error kUsage where `path` is no folder of a run.
RunRecord ReadRun(const std::filesystem::path& path);

}  // namespace halflife::report
