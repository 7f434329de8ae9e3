// A timeline of what a rank did, in the Trace Event Format, which Perfetto and chrome://tracing
// open. Thread-safe.
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

  // Times are Unix time in microseconds. Slices of one track come one after the other.
  void Slice(const std::string& track, const std::string& name, int64_t begin_us, int64_t end_us);
  // What runs beside others of its track.
  void Overlapping(const std::string& track, const std::string& name, int64_t begin_us,
                   int64_t end_us, int64_t bytes);
  // JSON objects with commas between them.
  std::string Events() const;

 private:
  int TrackOf(const std::string& track);  // under mutex_
  void Add(const std::string& event);     // likewise

  const int rank_;
  mutable std::mutex mutex_;
  std::map<std::string, int> tracks_;
  int64_t num_overlapping_ = 0;
  std::string events_;
};

// The file that holds the events of several ranks, a process of the timeline each.
std::string TraceFile(const std::vector<std::string>& events_of_ranks);

}  // namespace halflife
