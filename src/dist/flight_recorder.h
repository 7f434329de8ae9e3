// Records a rank's current phase and a ring of its latest collectives. The record is a mapped file:
// it survives any end of the process, including SIGKILL, and can be read while the process runs.
// Every two seconds it is sent to the disk or the file server, so that other hosts see it, too.
//
// All functions except KeepIn and Discard are thread-safe. An operation costs two clock reads and a
// copy of 128 bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/files.h"
#include "core/trace.h"
#include "dist/request.h"

namespace halflife::dist {

namespace flight {

// The binary layout of a flight record, which FlightRecorder maps and flight_report.cc reads.
// Writer and reader must have the same byte order. Several threads write at once. An entry whose
// number is 0 is empty or being written, and readers skip it.
constexpr char kMagic[8] = {'H', 'L', 'F', 'L', 'I', 'G', 'H', 'T'};
constexpr uint32_t kVersion = 2;
constexpr uint64_t kNumEntries = 1024;

struct Entry {
  std::atomic<uint64_t> number;  // 1 + the number of earlier operations; 0: empty or being written
  int64_t issued_us;             // Unix time
  // When the operation could start: its producer and the earlier operations of its group had ended.
  // 0: not yet. Operations on the CPU are ready when they are issued.
  std::atomic<int64_t> ready_us;
  std::atomic<int64_t> ended_us;
  int64_t seq, bytes;
  int32_t index, group_size;
  uint8_t kind;                // OpKind
  std::atomic<uint8_t> state;  // OpState
  uint8_t on_device;           // 1: runs on a stream of a GPU
  char group[21];
  char what[48];
};
static_assert(sizeof(Entry) == 128);

struct Header {
  char magic[8];
  uint32_t version, rank, world_size, pid;
  char host[64], attempt[16];
  std::atomic<int64_t> alive_us;  // written four times a second
  int64_t phase_since_us, step;
  char phase[24];
  int64_t failed_us;  // 0: not failed
  char cause[496];
  std::atomic<uint64_t> num_operations;
};

struct Image {
  Header header;
  Entry entries[kNumEntries];
};

}  // namespace flight

enum class OpState : uint8_t { kIssued, kDone, kFailed };

class FlightRecorder {
 public:
  FlightRecorder(int rank, int world_size);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Moves the record, including everything recorded so far, to a file in `folder` whose name
  // contains the rank. If the file cannot be written or mapped, logs a warning and keeps the record
  // in memory. `attempt` must be equal on all ranks and different for every start.
  void KeepIn(const std::filesystem::path& folder, const std::string& attempt);
  // Removes the file. The last rank also removes the folder.
  void Discard();
  // The file that KeepIn created; empty if the record is in memory.
  const std::filesystem::path& path() const { return path_; }
  // Returns the folder of this file. Unlike path(), any thread may ask while KeepIn runs.
  std::filesystem::path Folder() const;

  // `phase` is truncated to 23 bytes.
  void EnterPhase(const char* phase, int64_t step);
  // Records why this rank fails. Only the first call has an effect.
  void Fail(const std::string& cause);

  // Also writes phases and operations that end from now on to `trace`, which is borrowed. Null
  // stops this.
  void TraceInto(Trace* trace);

  // `on_device`: the operation runs on a stream of a GPU, so it is not ready yet.
  uint64_t Begin(const std::string& group, int group_size, const Request& request, int64_t seq,
                 bool on_device = false);
  void Ready(uint64_t number);
  // Only the first call for an operation has an effect.
  void End(uint64_t number, OpState state);

  // For the watchdog of this rank.
  struct DeviceHead {
    std::string text;                     // "all_reduce 'grad_bucket' 7 (group world, seq 12)"
    int64_t issued_us = 0, ready_us = 0;  // 0: not ready
  };
  // Returns the oldest operation that has not ended, of each group whose operations run on a GPU.
  std::vector<DeviceHead> DeviceHeads() const;
  struct PhaseState {
    std::string name;
    int64_t since_us = 0, step = 0;
    int64_t num_steps = 0;  // different steps so far
    double longest_s = 0;   // of the earlier phases of this name
  };
  PhaseState Phase() const;

  // Returns the bytes of the collectives begun since the last call, by kind of group: "world",
  // "rows" (all groups of ranks that share rows), and so on. A collective counts the larger of its
  // input and output.
  std::map<std::string, int64_t> TakeBytes();

 private:
  struct Unmap {
    void operator()(flight::Image* image) const;
  };
  void Tick();
  void StopTicking();

  std::unique_ptr<flight::Image, Unmap> image_;
  std::atomic<Trace*> trace_ = nullptr;
  Fd file_;                     // of path_
  std::filesystem::path path_;  // written under mutex_
  // Held while entries and phases change, so that a thread of this process can read them.
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> bytes_;     // under mutex_
  std::map<std::string, double> longest_s_;  // by phase; under mutex_
  Stopwatch in_phase_;                       // since the phase began; under mutex_
  int64_t num_steps_ = 0;                    // under mutex_
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread ticker_;  // updates alive_us four times a second, and writes the file back
};

}  // namespace halflife::dist
