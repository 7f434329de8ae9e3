#include <cuda_runtime.h>
#include <nccl.h>
// The headers above complete the types of nccl_group.h and must come first.
#include "dist/nccl_poller.h"

#include <condition_variable>
#include <exception>

#include "core/threads.h"

namespace halflife::dist::nccl {

constexpr auto kRound = std::chrono::milliseconds(20);

struct Poller::Shared {
  Device device;
  std::shared_ptr<DeviceWatch> watch;
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;
  std::vector<std::shared_ptr<Watched>> groups;
};

Poller::Poller(Device device, std::shared_ptr<DeviceWatch> watch)
    : exceptions_(std::uncaught_exceptions()), shared_(std::make_shared<Shared>()) {
  shared_->device = device;
  shared_->watch = std::move(watch);
  thread_ = StartThread([shared = shared_] { Run(*shared); });
}

Poller::~Poller() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->stop.notify_all();
  if (std::uncaught_exceptions() > exceptions_) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Poller::Add(std::shared_ptr<Watched> watched) {
  const std::lock_guard lock(shared_->mutex);
  shared_->groups.push_back(std::move(watched));
}

void Poller::Remove(const std::shared_ptr<Watched>& watched) {
  const std::lock_guard lock(shared_->mutex);
  std::erase(shared_->groups, watched);
}

void Poller::Run(Shared& shared) {
  cudaSetDevice(shared.device.index);
  std::unique_lock lock(shared.mutex);
  while (!shared.stopping) {
    const std::vector<std::shared_ptr<Watched>> groups = shared.groups;
    lock.unlock();
    for (const std::shared_ptr<Watched>& group : groups) group->Poll();
    shared.watch->RecordPollerRound();
    lock.lock();
    shared.stop.wait_for(lock, kRound, [&] { return shared.stopping; });
  }
  shared.watch->RecordPollerEnd();
}

}  // namespace halflife::dist::nccl
