// The reports of the threads that use a rank's GPU, for the rank's Watchdog. The watchdog itself
// calls neither CUDA nor NCCL, because such calls may never return when a GPU is stuck.
//
// All functions are thread-safe. The lock is held only while values are copied, and never during a
// call of CUDA, NCCL or MPI.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/clock.h"
#include "dist/communicator.h"

namespace halflife::dist {

class DeviceWatch {
 public:
  struct State {
    std::string call = {};                    // NCCL call that a thread is in; empty: none
    int64_t call_since_us = 0;                // Unix time
    double call_limit_s = 0;                  // seconds after which the call is late
    int64_t poller_us = 0;                    // Unix time of the poller's last round; 0: no poller
    std::optional<CommFailure> failure = {};  // an asynchronous error of NCCL or CUDA
  };

  void BeginCall(std::string what, double limit_s) {
    const std::lock_guard lock(mutex_);
    state_.call = std::move(what);
    state_.call_since_us = UnixMicroseconds();
    state_.call_limit_s = limit_s;
  }
  void EndCall() {
    const std::lock_guard lock(mutex_);
    state_.call.clear();
  }
  void RecordPollerRound() {
    const std::lock_guard lock(mutex_);
    state_.poller_us = UnixMicroseconds();
  }
  void RecordPollerEnd() {
    const std::lock_guard lock(mutex_);
    state_.poller_us = 0;
  }
  // Keeps only the first failure.
  void Fail(CommFailure failure) {
    const std::lock_guard lock(mutex_);
    if (!state_.failure) state_.failure = std::move(failure);
  }
  State Read() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  mutable std::mutex mutex_;
  State state_;
};

}  // namespace halflife::dist
