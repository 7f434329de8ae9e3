// Ends the process of a rank that is stuck, in a world whose ranks have GPUs. There, waits of the
// host for a collective have no deadline, because only the watchdog knows which ranks may be late.
//
// Two threads per rank share the work. The poller of the NCCL groups asks the GPU what has ended
// and writes it into the rank's flight record. The watchdog reads this record four times a second.
// It calls neither CUDA, NCCL nor MPI and takes no lock that such a call holds, because these calls
// may never return.
//
//   const Watchdog watchdog(context.flight(), watch, {.timeout_s = 180},
//                           [&](const CommFailure& failure) { EndWorld(failure); });
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/device_watch.h"
#include "dist/flight_recorder.h"

namespace halflife::dist {

// Seconds. The first steps have five times as long, because kernels are compiled and files opened.
struct WatchLimits {
  double timeout_s = 180;  // comm.timeout_s. Infinity: the watchdog finds nothing.
  double data_s = 600;     // of the phase "data"
  double save_s = 3600;    // of the phase "save", whose own waits have their own limits
  double poller_s = 30;    // between two rounds of the poller
  int64_t num_first_steps = 3;
  double interval_s = 0.25;  // between two looks
};

// The state of a rank as its watchdog sees it.
struct WatchSnapshot {
  int64_t now_us = 0;                                  // Unix time, as all times here
  std::vector<FlightRecorder::DeviceHead> heads = {};  // the oldest operation of each group
  DeviceWatch::State device = {};
  FlightRecorder::PhaseState phase = {};
  bool late_rank_has_time = false;  // a late rank is alive, in a phase that may still take longer
};

// Returns what is wrong, or nothing. The first row that applies decides:
//
//   an asynchronous error                                      its kind
//   no round of the poller for poller_s                        timeout: the driver does not answer
//   an NCCL call longer than its limit                         timeout
//   an operation ready for timeout_s, no late rank with time   timeout: another rank is late
//   an operation issued 4 x timeout_s ago and not ready        timeout: this rank's GPU is late
//   the phase is older than its limit, no late rank with time  timeout
//
// The limit of forward, backward, reduce and update is 2 x timeout_s, and at least ten times the
// longest such phase so far. Phases other than these, data and save have no limit.
std::optional<CommFailure> Judge(const WatchSnapshot& snapshot, const WatchLimits& limits);

// Finds out that the Unix clock was set (a step of NTP, a virtual machine that goes on), because
// all times of a snapshot are Unix times. Waits that began before then count from then.
class ClockJump {
 public:
  // Two clocks, read at the same moment.
  struct Clocks {
    int64_t steady_us = 0, unix_us = 0;
  };
  explicit ClockJump(const Clocks& start) : since_(start) {}
  // Returns true, and logs it, if the clocks have moved apart by more than a second since the start
  // or the last jump.
  bool Update(const Clocks& now);
  // Replaces times that the clock showed before the last jump by the time of this jump. Does not
  // change 0, which means none.
  void Correct(WatchSnapshot& snapshot) const;
  // The Unix time at which the last jump was found; 0: there was none.
  int64_t at_us() const { return at_us_; }

 private:
  Clocks since_;  // the start or the last jump
  int64_t at_us_ = 0;
};

class Watchdog {
 public:
  // `on_failure` is called once, on the watchdog's thread, and should end the process.
  using OnFailure = std::function<void(const CommFailure& failure)>;
  // `flight` is borrowed.
  Watchdog(FlightRecorder& flight, std::shared_ptr<const DeviceWatch> device, WatchLimits limits,
           OnFailure on_failure);
  // Waits for on_failure if it was called, so a process that is about to end does not unwind.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();
  std::optional<CommFailure> Look(ClockJump& jump);

  FlightRecorder& flight_;
  const std::shared_ptr<const DeviceWatch> device_;
  const WatchLimits limits_;
  const OnFailure on_failure_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// Returns true if a rank that others wait for is alive and in a phase (data or save) that has not
// reached its limit. Reads the flight records in `folder`. A phase that began before `jump_us`
// counts from then.
bool LateRankHasTime(const std::filesystem::path& folder, const WatchLimits& limits, int64_t now_us,
                     int64_t jump_us = 0) noexcept;

}  // namespace halflife::dist
