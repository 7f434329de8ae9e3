// Reads the flight records of a run's ranks. Reports which rank is late, the operation for which
// the others wait, and what the late rank does instead.
//
//   const std::vector<FlightRecord> records = ReadFlight(run / "flight");
//   for (const FlightFinding& finding : FlightFindings(records, now_us)) Print(finding.text);
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dist/flight_recorder.h"

namespace halflife::dist {

struct FlightOperation {
  uint64_t number = 0;  // counts this rank's operations, from 1
  std::string group;
  int group_size = 1;
  int64_t seq = 0;  // within its group; equal on all ranks for the same operation
  std::string kind, what;
  int index = 0;
  int64_t bytes = 0;
  OpState state = OpState::kIssued;
  bool on_device = false;               // runs on a stream of a GPU
  int64_t issued_us = 0, ended_us = 0;  // Unix time; 0: not ended
  // When its producer and the earlier operations of its group had ended; 0: not yet.
  int64_t ready_us = 0;
};
// "all_reduce 'grad_bucket' 3"
std::string Describe(const FlightOperation& operation);
const char* Name(OpState state);  // "issued", "done", "failed"

enum class ProcessState : uint8_t { kRuns, kStopped, kGone, kUnknown };
const char* Name(ProcessState state);

struct FlightRecord {
  int rank = 0, world_size = 1;
  int64_t pid = 0;
  std::string host, attempt;
  int64_t alive_us = 0;  // Unix time of the last sign of life, of four per second
  // The state according to /proc if the rank runs, or ran, on this host; otherwise kUnknown.
  ProcessState process = ProcessState::kUnknown;
  std::string phase;
  int64_t phase_since_us = 0, step = 0;
  std::string cause;  // why it failed; empty: no failure recorded
  int64_t failed_us = 0;
  uint64_t num_operations = 0;
  std::vector<FlightOperation> operations;  // the latest, oldest first
};

std::string FlightRecordName(int rank);  // "r00003.flight"

// Throws Error kData if the file is not a flight record.
FlightRecord ReadFlightRecord(const std::filesystem::path& path);
// Returns the records of the latest start, sorted by rank, or an empty list if there are none.
// Throws Error kData if a file is damaged.
std::vector<FlightRecord> ReadFlight(const std::filesystem::path& folder);

struct FlightFinding {
  enum class Kind : uint8_t {
    kFailed,    // a rank recorded why it fails
    kProcess,   // a rank's process is gone, stopped or silent
    kDiverged,  // a rank has not issued an operation that others of its group have, or another one,
                // or its GPU has not come to it
    kMissing    // ranks without a record
  };
  Kind kind;
  std::string text;  // a sentence
  int rank = -1;     // which it is about; -1: several
};
// Returns findings in the order of their kinds, and within a kind by time. Empty: no problem is
// visible.
std::vector<FlightFinding> FlightFindings(const std::vector<FlightRecord>& records, int64_t now_us);
// For the error message of a failed collective: one line with the findings in `folder` except the
// failures that ranks recorded themselves. Empty if there are none.
std::string WhoIsLate(const std::filesystem::path& folder) noexcept;

}  // namespace halflife::dist
