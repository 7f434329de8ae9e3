// Internal to the NCCL communicator: one non-blocking ncclComm_t with its stream, shared by the
// communicator and its operations. For nccl_*.cc files, which include <cuda_runtime.h> and <nccl.h>
// first.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "dist/nccl_communicator.h"
#include "dist/request.h"

namespace halflife::dist::nccl {

using Clock = std::chrono::steady_clock;

void CheckCuda(cudaError_t result, const std::string& what);

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Group {
 public:
  Group(Device device, std::string name, const NcclOptions& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Joins `size` ranks that share the 128 bytes of `id`.
  void Init(const std::string& id, int rank, int size);
  // Returns null for a negative color.
  std::shared_ptr<Group> Split(int color, int key, std::string name);

  // Runs `enqueue(comm)` and waits until NCCL has accepted the operation. Throws kAborted after
  // Abort.
  template <typename Enqueue>
  void Use(const std::string& what, Clock::time_point deadline, Enqueue enqueue) {
    const std::lock_guard lock(mutex_);
    ThrowIfAborted(what);
    Settle(enqueue(comm_), what, deadline);
  }
  // Throws kAborted after Abort, or kPeerLost or kLibrary for an asynchronous error.
  void CheckHealth(const std::string& what);
  void Abort(const std::string& cause) noexcept;

  void Select() const;  // makes the device current on this thread
  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  const NcclOptions& options() const { return options_; }
  void* scratch() const { return scratch_; }  // 4 bytes on the device, for barriers

 private:
  void ThrowIfAborted(const std::string& what) const;
  // Polls a non-blocking call until it completes.
  void Settle(ncclResult_t result, const std::string& what, Clock::time_point deadline);
  // Waits until NCCL's own thread has set the handle of a group that is split from this one.
  void AwaitHandle(Group& made, const std::string& what, Clock::time_point deadline);
  void ReadPlace();
  void Close();  // first lets queued operations end, within the timeout

  const Device device_;
  const std::string name_;
  const NcclOptions options_;
  std::mutex mutex_;                      // Abort may be called from any thread
  std::atomic<bool> abort_asked_{false};  // ends a Settle that holds the mutex
  ncclComm_t comm_ = nullptr;
  std::string aborted_;  // the cause; empty: not aborted
  cudaStream_t stream_ = nullptr;
  void* scratch_ = nullptr;
  int rank_ = 0, size_ = 1;
};

}  // namespace halflife::dist::nccl
