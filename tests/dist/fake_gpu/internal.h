// Internal to the fake: what device.cc (CUDA) and nccl.cc share. One mutex protects everything.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "dist/fake_gpu/cuda_runtime.h"
#include "dist/fake_gpu/world.h"

namespace halflife::fake {

using Clock = std::chrono::steady_clock;

struct Gpu;

// The end of an entry of a stream. Events refer to it.
struct Mark {
  bool done = false;
  double us = 0;
};

// A collective kernel of one rank. nccl.cc derives the data from it.
class Part {
 public:
  virtual ~Part() = default;
  virtual int ctas() const = 0;
  virtual int group() const = 0;
  virtual std::string name() const = 0;
  virtual void Start(double begin_us) = 0;  // the kernel is resident
  // True once the kernel has ended; sets its end in virtual time.
  virtual bool Ended(double* end_us) = 0;
};

struct Entry {
  enum class Kind : uint8_t { kMark, kKernel, kCollective } kind = Kind::kMark;
  std::vector<std::shared_ptr<Mark>> after = {};  // other streams' entries
  std::shared_ptr<Mark> end = std::make_shared<Mark>();
  double issued_us = 0;  // virtual time of the host
  double cost_us = 0;
  int sms = 0;
  bool endless = false;
  const std::atomic<bool>* released = nullptr;  // the kernel ends once it is true
  std::function<void()> body = {};
  std::shared_ptr<Part> part = nullptr;
  int64_t order = 0;  // of collectives: the number of the launch on this device
  // Once started:
  bool started = false;
  Clock::time_point due = {};
  double begin_us = 0;
};

}  // namespace halflife::fake

struct CUstream_st {
  halflife::fake::Gpu* gpu = nullptr;
  int priority = 0;
  bool blocking = true;  // ordered with the legacy default stream
  std::deque<halflife::fake::Entry> queue = {};
  double us = 0;  // virtual time of the last end
};

struct CUevent_st {
  std::shared_ptr<halflife::fake::Mark> mark = nullptr;
  bool timed = false;
};

namespace halflife::fake {

struct Gpu {
  int index = 0;
  bool dead = false;
  bool has_remote_error = false;
  int free_sms = 0;
  int64_t collectives_launched = 0, collectives_started = 0;
  double last_collective_us = 0;
  double host_us = 0;
  int group_calls = 0, live_groups = 0;
  CUstream_st legacy = {};
  std::vector<std::unique_ptr<CUstream_st>> streams = {};
  std::map<void*, size_t> memory = {};
  std::mutex driver = {};  // held by a blocked launch, with Options::driver_lock
};

// Work of a thread of NCCL's own. Returns true once it is done.
using Job = std::function<bool()>;

class World {
 public:
  explicit World(const Options& options);

  // Appends an entry and blocks while the queue is full. TryPush, for NCCL's own threads, instead
  // returns false.
  cudaError_t Push(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Entry entry);
  bool TryPush(cudaStream_t stream, Entry entry);
  bool Idle(const Gpu& gpu) const;
  // Blocks until `condition` or the end of the world.
  template <typename Condition>
  cudaError_t Block(std::unique_lock<std::mutex>& lock, Condition condition) {
    changed.wait(lock, [&] { return ended || condition(); });
    return ended ? cudaErrorLaunchFailure : cudaSuccess;
  }
  void AddJob(Job job);
  double RandomUs();  // up to max_delay_us
  Clock::time_point Soon() {
    return Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(1e3 * RandomUs()));
  }
  // Returns the stream of a handle: null is the current device's legacy stream.
  cudaStream_t Find(cudaStream_t stream);
  Gpu& current();
  // Adds to the virtual time of the calling rank. Threads that are no rank have none.
  void Spend(double us);
  double NowUs();
  void End();
  // The executor looks again at this time at the latest.
  void WakeAt(Clock::time_point time) { wake_ = std::min(wake_, time); }
  void Stop();  // ends the executor

  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::vector<Start> starts;
  int double_joins = 0, unlike = 0, num_groups = 0;
  std::map<std::string, std::shared_ptr<void>> rendezvous;  // nccl.cc's groups, by unique id

 private:
  void Execute();
  bool RunJobs();
  bool Advance(CUstream_st& stream);
  bool StartHead(CUstream_st& stream, Entry& head);
  void Finish(CUstream_st& stream, double end_us);

  std::mt19937_64 random_;
  bool stopping_ = false;
  Clock::time_point wake_;
  std::vector<std::pair<Clock::time_point, Job>> jobs_;
  std::thread executor_;
};

// Returns the world that runs now, or the last one. There is one at a time, and none is ever
// destroyed, because threads of a failed rank may still use its handles.
World& TheWorld();
int& CurrentDevice();    // of this thread
Gpu*& CurrentRankGpu();  // of this thread; null if the thread is not a rank

// Thrown through a rank that hangs or dies; Run catches it.
struct RankEnded {};

}  // namespace halflife::fake
