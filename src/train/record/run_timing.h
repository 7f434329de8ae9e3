// Where the time of a run goes: the computation of each rank (RankTimes), waits of the host for its
// device (HostWaitReport), and a timeline of the first steps (RunTrace).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/trace.h"
#include "dist/communicator.h"
#include "dist/rank_context.h"
#include "ops/torch/host_waits.h"

namespace halflife::train {

// How long each rank computes per step, excluding waits for other ranks. The ranks compare their
// times regularly, so that a slow rank can be named: all others wait for it, and their steps take
// as long.
struct ComparedTimes {
  double min_s = 0, median_s = 0, max_s = 0;  // Mean seconds per step, over ranks.
  int slowest = 0;                            // The rank of max_s.
  // Number of consecutive comparisons in which this rank was the slowest and exceeded kSlow.
  int times_in_a_row = 0;
  double waited_s = 0;  // Seconds that the median rank waited for this rank during them.
  // True when waited_s passes kWaitedSeconds times 1, 2, 4, ..., from the comparison
  // kWorthAWarning in a row on. Steps of milliseconds vary by more than kSlow on a busy machine
  // without a cost that is worth a warning.
  bool worth_a_warning = false;
};

class RankTimes {
 public:
  static constexpr int kEvery = 16;         // Steps between comparisons.
  static constexpr double kSlow = 1.1;      // Relative to the median.
  static constexpr int kWorthAWarning = 3;  // Consecutive comparisons.
  static constexpr double kWaitedSeconds = 10;

  explicit RankTimes(dist::Communicator& control) : control_(control) {}  // Borrowed.

  // Collective. Compares at every kEvery-th call. Returns nullopt at other calls, and if the world
  // has one rank.
  std::optional<ComparedTimes> Add(double busy_seconds);

 private:
  dist::Communicator& control_;
  int count_ = 0;
  double sum_s_ = 0;
  int last_slow_ = -1, times_in_a_row_ = 0;
  double waited_s_ = 0, warn_at_s_ = kWaitedSeconds;
};

// Reports operations that make the host wait for the device within the steps of a run, and
// launches: `train --check-sync`.
class HostWaitReport {
 public:
  using Phases = std::map<std::string, ops::HostCounts>;

  void Add(const Phases& step);
  // Returns one line per phase with the operations that waited, as means over the steps. The last
  // line says whether the step waited for anything except the one read of its scalars.
  std::string Text() const;

 private:
  int64_t num_steps_ = 0;
  Phases sums_;
};

// The timeline of a run's first steps after its start: `train --trace FILE`. For each rank, it
// contains the steps and their phases on the host, collectives from issue until the rank has seen
// their end, the loader's reads, and saves.
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
