// A timeline of a rank's activity in the Trace Event Format, which Perfetto and chrome://tracing
// can open. Thread-safe.
//
//   Trace trace(rank);
//   trace.Slice("phases", "forward", begin_us, end_us);
//   trace.Overlapping("world", "all_reduce 'grad_bucket' 3", begin_us, end_us, bytes);
//   WriteOutput(path, TraceFile({trace.Events()}), ExitCode::kEnvironment);
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace halflife {

class Trace {
 public:
  explicit Trace(int rank);

  // Adds a slice. Times are Unix time in microseconds. The slices of one track must not overlap.
  void Slice(const std::string& track, const std::string& name, int64_t begin_us, int64_t end_us);
  // For operations that may overlap others of the same track.
  void Overlapping(const std::string& track, const std::string& name, int64_t begin_us,
                   int64_t end_us, int64_t bytes);
  // Returns the events recorded so far as JSON objects, separated by commas.
  std::string Events() const;

 private:
  int TrackOf(const std::string& track);  // requires mutex_
  void Add(const std::string& event);     // requires mutex_

  const int rank_;
  mutable std::mutex mutex_;
  std::map<std::string, int> tracks_;
  int64_t num_overlapping_ = 0;
  std::string events_;
};

// Returns the content of a file with the events of several ranks. Each rank is one process of the
// timeline.
std::string TraceFile(const std::vector<std::string>& events_of_ranks);

}  // namespace halflife
