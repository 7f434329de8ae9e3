// Internal to the NCCL communicator: one non-blocking ncclComm_t with its stream and the launches
// that have not ended. For nccl_*.cc files, which include <cuda_runtime.h> and <nccl.h> first.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dist/nccl_communicator.h"
#include "dist/request.h"

namespace halflife::dist::nccl {

using Clock = std::chrono::steady_clock;

void CheckCuda(cudaError_t result, const std::string& what);

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  void Record(cudaStream_t stream, const std::string& what) const;
  // Throws CommError kLibrary if the device has failed.
  bool Happened(const std::string& what) const;

 private:
  cudaEvent_t event_ = nullptr;
};

// The operations of one group call, from their issue to their end.
struct Launch {
  explicit Launch(std::string text) : what(std::move(text)) {}
  const std::string what;
  Event ready;  // the producers and all earlier operations of the group have ended
  Event done;
  struct Record {
    FlightRecorder* recorder;
    uint64_t number;
  };
  std::vector<Record> records = {};
};

// The part of a group that its poller shares. It outlives the group if the poller still uses it.
class Watched {
 public:
  Watched(std::string name, std::shared_ptr<DeviceWatch> watch);

  void Track(std::shared_ptr<const Launch> launch);
  // Stops writing flight records. Does not wait for a poller that is inside a CUDA call.
  void StopTracking();
  // Runs one round of the poller: records which launches have become ready or have ended, and
  // reports an asynchronous error. Never waits for a thread that is inside an NCCL call.
  void Poll();

  std::mutex mutex;  // held during NCCL calls with `comm`
  ncclComm_t comm = nullptr;

 private:
  void PollLaunches();
  void PollErrors();

  const std::string name_;
  const std::shared_ptr<DeviceWatch> watch_;
  std::mutex launches_mutex_;
  std::deque<std::shared_ptr<const Launch>> launches_;  // in the order of issue
  bool head_is_ready_ = false;
  bool has_failed_ = false;
};

class Group {
 public:
  Group(Device device, std::string name, const NcclOptions& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Joins `size` ranks that share the 128 bytes of `id`.
  void Init(const std::string& id, int rank, int size, GroupRole role);

  // Runs `enqueue(comm)` and waits until NCCL has accepted the operation. Throws kAborted after
  // Abort.
  template <typename Enqueue>
  void Use(const std::string& what, Enqueue enqueue) {
    const std::lock_guard lock(watched_->mutex);
    ThrowIfAborted(what);
    Settle(enqueue(watched_->comm), what, options_.timeout_s);
  }
  // Throws kAborted after Abort, or kPeerLost or kLibrary for an asynchronous error.
  void CheckHealth(const std::string& what);
  void ThrowIfAborted(const std::string& what) const;
  // Makes all pending and later operations throw. Calls neither NCCL nor CUDA.
  void Abort(const std::string& cause) noexcept;

  void Select() const;  // makes the device current on this thread
  cudaStream_t stream() const { return stream_; }
  const NcclOptions& options() const { return options_; }
  void* scratch() const { return scratch_; }  // 4 bytes on the device, for barriers
  // Returns device memory for operations of this group. The next operation overwrites its contents.
  void* Staging(size_t bytes, const std::string& what);
  const std::shared_ptr<Watched>& watched() const { return watched_; }

  // Makes `consumer` wait for the event, and measures the time for TakeStreamWaits if that counts.
  void WaitOn(cudaStream_t consumer, const Event& event, const char* tag, const std::string& what);
  std::map<std::string, double> TakeStreamWaits();
  void CountStreamWaits(bool count) { counts_waits_ = count; }

 private:
  void MakeStream(GroupRole role);
  // Polls a non-blocking call until it completes.
  void Settle(ncclResult_t result, const std::string& what, double limit_s);
  void Poll(ncclResult_t result, const std::string& what, Clock::time_point deadline);
  void Close();  // first lets queued operations end, within the timeout
  void AddFinishedWaits();

  struct StreamWait {
    const char* tag;
    std::unique_ptr<Event> begin, end;
  };

  const Device device_;
  const std::string name_;
  const NcclOptions options_;
  const int exceptions_;  // exceptions in flight when the group was made
  const std::shared_ptr<Watched> watched_;
  mutable std::mutex cause_mutex_;  // Abort may be called from any thread
  std::string aborted_;             // the cause; empty: not aborted
  std::atomic<bool> is_aborted_{false};
  cudaStream_t stream_ = nullptr;
  void* scratch_ = nullptr;
  // Operations that use a smaller block may still be queued when a larger one is allocated.
  std::vector<void*> staging_;
  size_t staging_bytes_ = 0;  // of the last block
  bool counts_waits_ = true;
  std::vector<StreamWait> waits_;
  std::map<std::string, double> wait_seconds_;  // by tag: finished waits that were not yet taken
  std::vector<std::unique_ptr<Event>> spare_events_;
};

}  // namespace halflife::dist::nccl
