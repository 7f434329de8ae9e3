#include <cuda_runtime.h>
#include <nccl.h>
// The headers above complete the types of nccl_group.h and must come first.
#include "dist/nccl_group.h"

#include <cstring>
#include <thread>
#include <utility>

#include "core/log.h"

namespace halflife::dist::nccl {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

ncclConfig_t MakeConfig() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // non-blocking, so that a deadline can end a rendezvous with a dead rank
  return config;
}

}  // namespace

void CheckCuda(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  throw CommError({CommFailure::Kind::kLibrary, Concat(what, ": CUDA: ", cudaGetErrorString(result),
                                                       " (", cudaGetErrorName(result), ")")});
}

Event::Event() {
  CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

Event::~Event() {
  if (cudaEventDestroy(event_) != cudaSuccess) HL_WARN("dist", "cudaEventDestroy failed");
}

Group::Group(Device device, std::string name, const NcclOptions& options)
    : device_(device), name_(std::move(name)), options_(options) {
  Select();
  int least = 0, greatest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  // Low priority: gradients have the whole backward pass to travel, so compute goes first.
  CheckCuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, least), "stream");
  CheckCuda(cudaMalloc(&scratch_, sizeof(int32_t)), "barrier scratch");
  CheckCuda(cudaMemset(scratch_, 0, sizeof(int32_t)), "barrier scratch");
}

Group::~Group() {
  try {
    Close();
  } catch (const std::exception& error) {
    HL_WARN("dist", "closing group ", name_, ": ", error.what());
    Abort("its group could not be closed");
  }
  if (cudaFree(scratch_) != cudaSuccess || cudaStreamDestroy(stream_) != cudaSuccess) {
    HL_WARN("dist", "releasing the stream of group ", name_, " failed");
  }
}

void Group::Close() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  Select();
  const std::string what = Concat("the end of group ", name_);
  const Clock::time_point deadline = DeadlineIn(options_.timeout_s);
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaStreamQuery(stream_)) == cudaErrorNotReady && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPollInterval);
  }
  CheckCuda(state, what);
  Settle(ncclCommFinalize(comm_), what, deadline);
  const ncclResult_t result = ncclCommDestroy(std::exchange(comm_, nullptr));
  if (result != ncclSuccess) HL_WARN("dist", what, ": NCCL: ", ncclGetErrorString(result));
}

void Group::Select() const { CheckCuda(cudaSetDevice(device_.index), "cudaSetDevice"); }

void Group::Init(const std::string& id, int rank, int size) {
  ncclUniqueId unique;
  HL_CHECK(id.size() == sizeof unique, "NCCL's unique id has ", id.size(), " bytes");
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = MakeConfig();
  const std::lock_guard lock(mutex_);
  Settle(ncclCommInitRankConfig(&comm_, size, unique, rank, &config),
         Concat("NCCL rendezvous of group ", name_, ", rank ", rank, " of ", size),
         DeadlineIn(options_.init_timeout_s));
  ReadPlace();
}

std::shared_ptr<Group> Group::Split(int color, int key, std::string name) {
  Select();
  auto made = std::make_shared<Group>(device_, std::move(name), options_);
  const std::string what = Concat("split of group ", name_, " into ", made->name_);
  const Clock::time_point deadline = DeadlineIn(options_.init_timeout_s);
  ncclConfig_t config = MakeConfig();
  Use(what, deadline, [&](ncclComm_t comm) {
    const ncclResult_t begun =
        ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &made->comm_, &config);
    // NCCL 2.28 returns success although this group is still busy with the split and rejects all
    // other calls.
    return begun == ncclSuccess ? ncclInProgress : begun;
  });
  if (color < 0) return nullptr;
  AwaitHandle(*made, what, deadline);
  const std::lock_guard lock(made->mutex_);
  made->Settle(ncclInProgress, what, deadline);
  made->ReadPlace();
  return made;
}

void Group::AwaitHandle(Group& made, const std::string& what, Clock::time_point deadline) {
  while (std::atomic_ref(made.comm_).load() == nullptr) {
    CheckHealth(what);
    if (Clock::now() > deadline) {
      throw CommError({CommFailure::Kind::kTimeout, Concat("timeout: ", what)});
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void Group::ReadPlace() {
  HL_CHECK(
      ncclCommUserRank(comm_, &rank_) == ncclSuccess && ncclCommCount(comm_, &size_) == ncclSuccess,
      "NCCL does not know this rank's place in group ", name_);
}

void Group::ThrowIfAborted(const std::string& what) const {
  if (aborted_.empty()) return;
  throw CommError({CommFailure::Kind::kAborted, Concat(what, ": stopped because ", aborted_)});
}

void Group::Settle(ncclResult_t result, const std::string& what, Clock::time_point deadline) {
  while (result == ncclInProgress) {
    if (abort_asked_) throw CommError({CommFailure::Kind::kAborted, what + ": aborted"});
    if (Clock::now() > deadline) {
      throw CommError({CommFailure::Kind::kTimeout, Concat("timeout: ", what)});
    }
    std::this_thread::sleep_for(kPollInterval);
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  const bool peer = result == ncclRemoteError;
  throw CommError({peer ? CommFailure::Kind::kPeerLost : CommFailure::Kind::kLibrary,
                   Concat(what, ": NCCL: ", ncclGetErrorString(result), "; ",
                          ncclGetLastError(comm_), " (set NCCL_DEBUG=INFO for details)")});
}

void Group::CheckHealth(const std::string& what) {
  const std::lock_guard lock(mutex_);
  ThrowIfAborted(what);
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result != ncclInProgress) Settle(result, what, Clock::now());
}

void Group::Abort(const std::string& cause) noexcept {
  abort_asked_ = true;
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) return;
  aborted_ = cause;
  if (comm_ != nullptr && ncclCommAbort(comm_) != ncclSuccess) {
    HL_WARN("dist", "ncclCommAbort of group ", name_, " failed");
  }
  comm_ = nullptr;
}

}  // namespace halflife::dist::nccl
