// The timeline of a run's first steps after its start: `train --trace FILE`. For each rank, it
// contains the steps and their phases on the host, collectives from issue until the rank has seen
// their end, the loader's reads, and saves.
//
//   RunTrace trace({.file = "trace.json", .steps = 50}, context);
//   trace.Step(step, begin_us, end_us);   // writes the file after the last of them
#pragma once

#include <atomic>
#include <filesystem>

#include "core/trace.h"
#include "dist/rank_context.h"

namespace halflife::train {

struct TraceConfig {
  std::filesystem::path file;  // Empty: no trace.
  int64_t steps = 50;
};

class RunTrace {
 public:
  // Collective. Rank 0 creates the file, so a file that cannot be written is an Error kEnvironment
  // at the start.
  RunTrace(const TraceConfig& config, dist::RankContext& context);
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // Times are Unix time in microseconds. Any thread may call this.
  void Read(int64_t begin_us, int64_t end_us);
  void Save(int64_t step, int64_t begin_us, int64_t end_us);
  // Collective for the last step.
  void Step(int64_t step, int64_t begin_us, int64_t end_us);
  // Collective. Writes the trace unless it is written.
  void Finish();

 private:
  const TraceConfig config_;
  dist::RankContext& context_;
  Trace trace_;
  int64_t steps_left_;
  std::atomic<bool> open_ = false;
};

}  // namespace halflife::train
