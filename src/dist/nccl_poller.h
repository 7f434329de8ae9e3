// Internal to the NCCL communicator: a thread that polls the GPU for operations that have become
// ready or have ended, and NCCL for asynchronous errors. One per device of a process.
#pragma once

#include <memory>
#include <thread>

#include "dist/nccl_group.h"

namespace halflife::dist::nccl {

class Poller {
 public:
  Poller(Device device, std::shared_ptr<DeviceWatch> watch);
  // Joins the thread. While an exception unwinds, the thread is left behind instead, because it may
  // be inside a CUDA call that never returns.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  void Add(std::shared_ptr<Watched> watched);
  void Remove(const std::shared_ptr<Watched>& watched);

 private:
  struct Shared;
  static void Run(Shared& shared);

  const int exceptions_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace halflife::dist::nccl
