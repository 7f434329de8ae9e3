#include <cuda_runtime.h>
#include <nccl.h>
// The headers above complete the types of nccl_group.h and must come first.
#include "dist/nccl_group.h"

#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "core/log.h"
#include "dist/flight_recorder.h"

namespace halflife::dist::nccl {
namespace {

// A group call usually settles within this time. Sleeping costs at least 50 us.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kPollInterval = std::chrono::microseconds(50);
// A group adds up finished waits, whose events it can use again, each time that so many are unread.
constexpr size_t kMaxStreamWaits = 4096;

ncclConfig_t MakeConfig(GroupRole role) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // non-blocking, so that a deadline can end a rendezvous with a dead rank
  // Operations of several groups then fit on the GPU next to each other and next to compute.
  config.maxCTAs = role == GroupRole::kRows ? 8 : 16;
  return config;
}

CommFailure NcclFailure(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  return {result == ncclRemoteError ? CommFailure::Kind::kPeerLost : CommFailure::Kind::kLibrary,
          Concat(what, ": NCCL: ", ncclGetErrorString(result), "; ", ncclGetLastError(comm),
                 ". Set NCCL_DEBUG=INFO for details.")};
}

// Returns NCCL's answer about the calls made so far: ncclInProgress, ncclSuccess or an error.
ncclResult_t AskState(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked == ncclSuccess ? state : asked;
}

}  // namespace

void CheckCuda(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  throw CommError({CommFailure::Kind::kLibrary, Concat(what, ": CUDA: ", cudaGetErrorString(result),
                                                       " (", cudaGetErrorName(result), ")")});
}

Event::Event(unsigned flags) {
  CheckCuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
}

Event::~Event() {
  if (cudaEventDestroy(event_) != cudaSuccess) HL_WARN("dist", "cudaEventDestroy failed");
}

void Event::Record(cudaStream_t stream, const std::string& what) const {
  CheckCuda(cudaEventRecord(event_, stream), what);
}

bool Event::Happened(const std::string& what) const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  CheckCuda(state, what);
  return true;
}

// --- what a poller shares with its groups ---

Watched::Watched(std::string name, std::shared_ptr<DeviceWatch> watch)
    : name_(std::move(name)), watch_(std::move(watch)) {}

void Watched::Track(std::shared_ptr<const Launch> launch) {
  const std::lock_guard lock(launches_mutex_);
  launches_.push_back(std::move(launch));
}

void Watched::StopTracking() {
  const std::lock_guard lock(launches_mutex_);
  launches_.clear();
}

void Watched::Poll() {
  if (has_failed_) return;
  try {
    PollLaunches();
    PollErrors();
  } catch (const CommError& error) {
    has_failed_ = true;
    watch_->Fail({error.kind(), error.message()});
  }
}

void Watched::PollLaunches() {
  while (true) {
    std::shared_ptr<const Launch> head;
    {
      const std::lock_guard lock(launches_mutex_);
      if (launches_.empty()) return;
      head = launches_.front();
    }
    // The lock is not held here: these calls may never return when the GPU is stuck.
    const bool ready = head_is_ready_ || head->ready.Happened(head->what);
    const bool done = ready && head->done.Happened(head->what);
    const std::lock_guard lock(launches_mutex_);
    if (launches_.empty()) return;  // StopTracking was called
    for (const Launch::Record& record : head->records) {
      if (ready && !head_is_ready_) record.recorder->Ready(record.number);
      if (done) record.recorder->End(record.number, OpState::kDone);
    }
    head_is_ready_ = ready && !done;
    if (!done) return;
    launches_.pop_front();
  }
}

void Watched::PollErrors() {
  // A thread that is inside an NCCL call of this group polls by itself. Two threads must not poll
  // one communicator at the same time.
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock.owns_lock() || comm == nullptr) return;
  const ncclResult_t state = AskState(comm);
  if (state != ncclSuccess && state != ncclInProgress)
    throw CommError(NcclFailure(state, comm, Concat("group ", name_)));
}

// --- the group ---

Group::Group(Device device, std::string name, const NcclOptions& options)
    : device_(device),
      name_(std::move(name)),
      options_(options),
      exceptions_(std::uncaught_exceptions()),
      watched_(std::make_shared<Watched>(name_, options.watch)) {}

Group::~Group() {
  watched_->StopTracking();
  // The end of a process releases what a failed group holds. Any call here may never return.
  if (is_aborted_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    Close();
  } catch (const std::exception& error) {
    HL_WARN("dist", "closing group ", name_, ": ", error.what());
  }
}

void Group::Close() {
  if (stream_ == nullptr) return;
  Select();
  const std::string what = Concat("the end of group ", name_);
  const Clock::time_point deadline = DeadlineIn(options_.timeout_s);
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaStreamQuery(stream_)) == cudaErrorNotReady && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPollInterval);
  }
  CheckCuda(state, what);
  const std::lock_guard lock(watched_->mutex);
  const ncclComm_t comm = std::exchange(watched_->comm, nullptr);
  if (comm != nullptr) {
    ncclResult_t result = ncclCommFinalize(comm);
    while (result == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPollInterval);
      result = AskState(comm);
    }
    if (result == ncclSuccess) result = ncclCommDestroy(comm);
    if (result != ncclSuccess) throw CommError(NcclFailure(result, comm, what));
  }
  CheckCuda(cudaFree(scratch_), what);
  for (void* const block : staging_) CheckCuda(cudaFree(block), what);
  CheckCuda(cudaStreamDestroy(stream_), what);
}

void Group::Select() const { CheckCuda(cudaSetDevice(device_.index), "cudaSetDevice"); }

void Group::MakeStream(GroupRole role) {
  Select();
  int least = 0, greatest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  const int priority = role == GroupRole::kRows         ? greatest
                       : role == GroupRole::kParameters ? std::max(kComputePriority, greatest)
                                                        : least;
  CheckCuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "stream");
  CheckCuda(cudaMalloc(&scratch_, sizeof(int32_t)), "barrier scratch");
  CheckCuda(cudaMemsetAsync(scratch_, 0, sizeof(int32_t), stream_), "barrier scratch");
}

void* Group::Staging(size_t bytes, const std::string& what) {
  if (staging_bytes_ < bytes) {
    CheckCuda(cudaMalloc(&staging_.emplace_back(nullptr), bytes), what);
    staging_bytes_ = bytes;
  }
  return staging_.back();
}

void Group::Init(const std::string& id, int rank, int size, GroupRole role) {
  MakeStream(role);
  ncclUniqueId unique;
  HL_CHECK(id.size() == sizeof unique, "NCCL's unique id has ", id.size(), " bytes");
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = MakeConfig(role);
  const std::string what = Concat("NCCL rendezvous of group ", name_);
  const std::lock_guard lock(watched_->mutex);
  ThrowIfAborted(what);
  Settle(ncclCommInitRankConfig(&watched_->comm, size, unique, rank, &config), what,
         options_.init_timeout_s);
}

void Group::ThrowIfAborted(const std::string& what) const {
  if (!is_aborted_) return;
  const std::lock_guard lock(cause_mutex_);
  throw CommError({CommFailure::Kind::kAborted, Concat(what, ": stopped because ", aborted_)});
}

void Group::Settle(ncclResult_t result, const std::string& what, double limit_s) {
  if (result == ncclSuccess) return;
  options_.watch->BeginCall(what, limit_s);
  try {
    Poll(result, what, DeadlineIn(limit_s));
    options_.watch->EndCall();
  } catch (const CommError& error) {
    options_.watch->EndCall();
    Abort(error.message());
    throw;
  }
}

void Group::Poll(ncclResult_t result, const std::string& what, Clock::time_point deadline) {
  const Clock::time_point begin = Clock::now();
  while (result == ncclInProgress) {
    ThrowIfAborted(what);
    if (Clock::now() > deadline)
      throw CommError({CommFailure::Kind::kTimeout, Concat("timeout: ", what)});
    if (Clock::now() - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
    result = AskState(watched_->comm);
  }
  if (result != ncclSuccess) throw CommError(NcclFailure(result, watched_->comm, what));
}

void Group::CheckHealth(const std::string& what) {
  ThrowIfAborted(what);
  const std::lock_guard lock(watched_->mutex);
  const ncclResult_t result = AskState(watched_->comm);
  if (result == ncclSuccess || result == ncclInProgress) return;
  const CommFailure failure = NcclFailure(result, watched_->comm, what);
  Abort(failure.text);
  throw CommError(failure);
}

void Group::Abort(const std::string& cause) noexcept {
  const std::lock_guard lock(cause_mutex_);
  if (is_aborted_) return;
  aborted_ = cause;
  is_aborted_ = true;
}

void Group::WaitOn(cudaStream_t consumer, const Event& event, const char* tag,
                   const std::string& what) {
  // A wait that cannot idle the stream needs no events.
  if (event.Happened(what)) return;
  if (!counts_waits_) return CheckCuda(cudaStreamWaitEvent(consumer, event.get(), 0), what);
  const auto timed = [&] {
    if (spare_events_.empty()) return std::make_unique<Event>(cudaEventDefault);
    std::unique_ptr<Event> spare = std::move(spare_events_.back());
    spare_events_.pop_back();
    return spare;
  };
  StreamWait wait = {.tag = tag, .begin = timed(), .end = timed()};
  wait.begin->Record(consumer, what);
  CheckCuda(cudaStreamWaitEvent(consumer, event.get(), 0), what);
  wait.end->Record(consumer, what);
  if (waits_.size() % kMaxStreamWaits == kMaxStreamWaits - 1) AddFinishedWaits();
  waits_.push_back(std::move(wait));
}

void Group::AddFinishedWaits() {
  const std::string what = Concat("the waits of group ", name_);
  std::erase_if(waits_, [&](StreamWait& wait) {
    if (!wait.end->Happened(what)) return false;
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, wait.begin->get(), wait.end->get()), what);
    wait_seconds_[wait.tag] += 1e-3 * static_cast<double>(milliseconds);
    spare_events_.push_back(std::move(wait.begin));
    spare_events_.push_back(std::move(wait.end));
    return true;
  });
}

std::map<std::string, double> Group::TakeStreamWaits() {
  AddFinishedWaits();
  return std::exchange(wait_seconds_, {});
}

}  // namespace halflife::dist::nccl
