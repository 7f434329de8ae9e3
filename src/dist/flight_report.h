// Reads the flight records of a run's ranks and says who is late, for what, and doing what.
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
  uint64_t number = 0;  // on its rank, from 1
  std::string group;
  int group_size = 1;
  int64_t seq = 0;  // in its group: equal on all ranks for one operation
  std::string kind, what;
  int index = 0;
  int64_t bytes = 0;
  OpState state = OpState::kIssued;
  int64_t issued_us = 0, ended_us = 0;  // Unix time; 0: has not ended
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
  int64_t alive_us = 0;  // Unix time of its last sign of life, four a second
  // What /proc says where the rank is, or was, on this host; kUnknown for another host.
  ProcessState process = ProcessState::kUnknown;
  std::string phase;
  int64_t phase_since_us = 0, step = 0;
  std::string cause;  // why it failed; empty: it has not said
  int64_t failed_us = 0;
  uint64_t num_operations = 0;
  std::vector<FlightOperation> operations;  // the latest, oldest first
};

std::string FlightRecordName(int rank);  // "r00003.flight"

// Error kData for what is no flight record.
FlightRecord ReadFlightRecord(const std::filesystem::path& path);
// Those of the latest start, by rank. Error kData where a file is damaged; empty where there is
// none.
std::vector<FlightRecord> ReadFlight(const std::filesystem::path& folder);

struct FlightFinding {
  enum class Kind : uint8_t {
    kFailed,    // a rank said why it fails
    kProcess,   // a rank's process is gone, stopped or silent
    kDiverged,  // a rank has not issued an operation that others of its group have, or another one
    kMissing    // ranks without a record
  };
  Kind kind;
  std::string text;  // a sentence
};
// In this order, within a kind by time. Empty: nothing stands out.
std::vector<FlightFinding> FlightFindings(const std::vector<FlightRecord>& records, int64_t now_us);
// Of a failed collective: what the records in `folder` say beside the ranks' own words, as one
// line; empty where there are none, or nothing stands out.
std::string WhoIsLate(const std::filesystem::path& folder) noexcept;

}  // namespace halflife::dist
