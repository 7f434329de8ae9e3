// Devices, streams and events of the fake, and the threads that run a world.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "dist/fake_gpu/internal.h"
#include "dist/local_communicator.h"
#include "dist/request.h"

namespace halflife::fake {
namespace {

std::vector<std::unique_ptr<World>>& Worlds() {
  static auto* const worlds = new std::vector<std::unique_ptr<World>>();
  return *worlds;
}

std::shared_ptr<Mark> Tail(const CUstream_st& stream) {
  return stream.queue.empty() ? nullptr : stream.queue.back().end;
}

// Orders work on the legacy default stream and on blocking streams by the host's calls.
void OrderWithLegacyStream(Gpu& gpu, const CUstream_st& stream, Entry& entry) {
  const auto await = [&](const CUstream_st& other) {
    if (std::shared_ptr<Mark> tail = Tail(other)) entry.after.push_back(std::move(tail));
  };
  if (&stream == &gpu.legacy) {
    for (const auto& other : gpu.streams)
      if (other->blocking) await(*other);
  } else if (stream.blocking) {
    await(gpu.legacy);
  }
}

bool AllDone(const Entry& entry, double* us) {
  for (const std::shared_ptr<Mark>& mark : entry.after) {
    if (!mark->done) return false;
    *us = std::max(*us, mark->us);
  }
  return true;
}

}  // namespace

World& TheWorld() {
  if (Worlds().empty()) std::abort();  // a CUDA call outside of Run
  return *Worlds().back();
}

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

Gpu*& CurrentRankGpu() {
  thread_local Gpu* gpu = nullptr;
  return gpu;
}

World::World(const Options& given) : options(given), random_(given.seed) {
  for (int rank = 0; rank < options.ranks; ++rank) {
    gpus.push_back(std::make_unique<Gpu>());
    gpus.back()->index = rank;
    gpus.back()->free_sms = options.sms;
    gpus.back()->legacy.gpu = gpus.back().get();
  }
  executor_ = std::thread([this] { Execute(); });
}

void World::Stop() {
  {
    const std::lock_guard lock(mutex);
    stopping_ = true;
  }
  changed.notify_all();
  executor_.join();
}

void World::End() {
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

double World::RandomUs() {
  return options.max_delay_us * static_cast<double>(random_() >> 11) * 0x1p-53;
}

cudaStream_t World::Find(cudaStream_t stream) {
  return stream == nullptr ? &current().legacy : stream;
}

Gpu& World::current() { return *gpus[static_cast<size_t>(CurrentDevice()) % gpus.size()]; }

void World::Spend(double us) {
  if (CurrentRankGpu() != nullptr) CurrentRankGpu()->host_us += us;
}

double World::NowUs() { return CurrentRankGpu() == nullptr ? 0 : CurrentRankGpu()->host_us; }

cudaError_t World::Push(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Entry entry) {
  if (ended) return cudaErrorLaunchFailure;
  const auto has_room = [&] { return stream->queue.size() < options.launch_queue; };
  if (!has_room()) {
    std::unique_lock driver(stream->gpu->driver, std::defer_lock);
    if (options.driver_lock) {
      lock.unlock();  // others take the driver's lock first
      driver.lock();
      lock.lock();
    }
    if (const cudaError_t error = Block(lock, has_room); error != cudaSuccess) return error;
    if (CurrentRankGpu() != nullptr)
      CurrentRankGpu()->host_us = std::max(CurrentRankGpu()->host_us, stream->us);
  }
  entry.issued_us = NowUs();
  TryPush(stream, std::move(entry));
  return cudaSuccess;
}

bool World::TryPush(cudaStream_t stream, Entry entry) {
  if (stream->queue.size() >= options.launch_queue) return false;
  if (entry.part != nullptr) entry.order = stream->gpu->collectives_launched++;
  OrderWithLegacyStream(*stream->gpu, *stream, entry);
  stream->queue.push_back(std::move(entry));
  changed.notify_all();
  return true;
}

bool World::Idle(const Gpu& gpu) const {
  return gpu.legacy.queue.empty() &&
         std::ranges::all_of(gpu.streams, [](const auto& stream) { return stream->queue.empty(); });
}

void World::AddJob(Job job) {
  jobs_.emplace_back(Soon(), std::move(job));
  changed.notify_all();
}

// --- the executor ---

void World::Execute() {
  std::unique_lock lock(mutex);
  while (!stopping_) {
    wake_ = Clock::now() + std::chrono::milliseconds(50);
    if (ended) {  // the driver ends the kernels of a dead process
      changed.wait_until(lock, wake_);
      continue;
    }
    bool progress = RunJobs();
    std::vector<CUstream_st*> streams;
    for (const auto& gpu : gpus) {
      if (gpu->dead) continue;
      streams.push_back(&gpu->legacy);
      for (const auto& stream : gpu->streams) streams.push_back(stream.get());
    }
    std::erase_if(streams, [](const CUstream_st* stream) { return stream->queue.empty(); });
    std::ranges::shuffle(streams, random_);
    std::ranges::stable_sort(streams, {}, &CUstream_st::priority);
    // After each change the most urgent stream comes first again.
    progress |= std::ranges::any_of(streams, [&](CUstream_st* stream) { return Advance(*stream); });
    if (progress) {
      changed.notify_all();
    } else {
      changed.wait_until(lock, wake_);
    }
  }
}

bool World::RunJobs() {
  const Clock::time_point now = Clock::now();
  bool progress = false;
  for (size_t i = 0; i < jobs_.size();) {
    if (jobs_[i].first <= now && jobs_[i].second()) {
      jobs_.erase(jobs_.begin() + static_cast<int64_t>(i));
      progress = true;
      continue;
    }
    if (jobs_[i].first <= now) jobs_[i].first = now + std::chrono::microseconds(100);
    WakeAt(jobs_[i].first);
    ++i;
  }
  return progress;
}

bool World::Advance(CUstream_st& stream) {
  Entry& head = stream.queue.front();
  if (!head.started) return StartHead(stream, head);
  if (head.kind == Entry::Kind::kCollective) {
    double end_us = head.begin_us;
    if (!head.part->Ended(&end_us)) return false;
    stream.gpu->free_sms += head.sms;
    Finish(stream, end_us);
    return true;
  }
  if (head.endless) return false;
  if (head.released != nullptr && !*head.released) {
    WakeAt(Clock::now() + std::chrono::microseconds(100));
    return false;
  }
  if (Clock::now() < head.due) {
    WakeAt(head.due);
    return false;
  }
  if (head.body) head.body();
  stream.gpu->free_sms += head.sms;
  Finish(stream, head.begin_us + head.cost_us);
  return true;
}

bool World::StartHead(CUstream_st& stream, Entry& head) {
  Gpu& gpu = *stream.gpu;
  double begin_us = std::max(stream.us, head.issued_us);
  if (!AllDone(head, &begin_us)) return false;
  if (head.kind == Entry::Kind::kMark) {
    Finish(stream, begin_us);
    return true;
  }
  const bool collective = head.kind == Entry::Kind::kCollective;
  if (collective && options.launch_order) {
    if (head.order != gpu.collectives_started) return false;
    begin_us = std::max(begin_us, gpu.last_collective_us);
  }
  // A collective waits until all its thread blocks fit. A kernel's blocks start one by one.
  if (gpu.free_sms < (collective ? head.sms : 1)) return false;
  head.sms = std::min(head.sms, gpu.free_sms);
  gpu.free_sms -= head.sms;
  head.started = true;
  head.begin_us = begin_us;
  head.due = Soon();
  starts.push_back({.rank = gpu.index,
                    .name = collective ? head.part->name() : "kernel",
                    .priority = stream.priority,
                    .group = collective ? head.part->group() : -1,
                    .begin_us = begin_us});
  if (collective) {
    ++gpu.collectives_started;
    gpu.last_collective_us = begin_us;
    head.part->Start(begin_us);
  }
  return true;
}

void World::Finish(CUstream_st& stream, double end_us) {
  stream.us = std::max(stream.us, end_us);
  stream.queue.front().end->us = stream.us;
  stream.queue.front().end->done = true;
  stream.queue.pop_front();
}

// --- ranks ---

cudaStream_t Rank::Stream(int priority) {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority);
  return stream;
}

void Rank::Compute(cudaStream_t stream, double us, const std::function<void()>& body, int sms) {
  std::unique_lock lock(world_.mutex);
  world_.Spend(4);
  world_.Push(lock, world_.Find(stream),
              {.kind = Entry::Kind::kKernel, .cost_us = us, .sms = sms, .body = body});
}

dist::OrderedSum OrderedSumOf(Rank& rank) {
  return [&rank](TensorRef parts, int num_parts, TensorRef out, cudaStream_t stream) {
    HL_CHECK(num_parts >= 2, num_parts, " parts; ops::SumInOrder adds at least two");
    const auto add = [=] {
      std::vector<const void*> in;
      for (int part = 0; part < num_parts; ++part)
        in.push_back(parts.Slice(part * out.count, out.count).data);
      dist::OrderedReduce(out.dtype, dist::ReduceOp::kSum, in, out.data, out.count);
    };
    rank.Compute(stream, /*us=*/5, add, /*sms=*/16);
  };
}

void Rank::ComputeForever(cudaStream_t stream) {
  std::unique_lock lock(world_.mutex);
  world_.Push(lock, world_.Find(stream), {.kind = Entry::Kind::kKernel, .sms = 1, .endless = true});
}

void Rank::ComputeUntil(cudaStream_t stream, const std::atomic<bool>& released, int sms) {
  std::unique_lock lock(world_.mutex);
  world_.Push(lock, world_.Find(stream),
              {.kind = Entry::Kind::kKernel, .sms = sms, .released = &released});
}

void Rank::Synchronize(cudaStream_t stream) { cudaStreamSynchronize(stream); }

double Rank::host_us() const {
  const std::lock_guard lock(world_.mutex);
  return world_.gpus[static_cast<size_t>(number_)]->host_us;
}

int Rank::group_calls() const {
  const std::lock_guard lock(world_.mutex);
  return world_.gpus[static_cast<size_t>(number_)]->group_calls;
}

int Rank::live_groups() const {
  const std::lock_guard lock(world_.mutex);
  return world_.gpus[static_cast<size_t>(number_)]->live_groups;
}

void Rank::Hang() {
  {
    std::unique_lock lock(world_.mutex);
    world_.Block(lock, [] { return false; });
  }
  throw RankEnded();
}

void Rank::Die() {
  {
    const std::lock_guard lock(world_.mutex);
    world_.gpus[static_cast<size_t>(number_)]->dead = true;
  }
  throw RankEnded();
}

void Rank::FailAsynchronously() {
  const std::lock_guard lock(world_.mutex);
  world_.gpus[static_cast<size_t>(number_)]->has_remote_error = true;
}

// Runs the ranks of one world.
struct Runner {
  World& world;
  const std::function<void(Rank&)>& body;
  Outcome outcome = {};
  std::mutex mutex = {};
  std::condition_variable finished = {};
  bool is_finished = false;

  void RunRank(dist::Communicator& control) {
    Gpu& gpu = *world.gpus[static_cast<size_t>(control.rank())];
    CurrentDevice() = control.rank();
    CurrentRankGpu() = &gpu;
    Rank rank(world, control.rank(), control);
    try {
      body(rank);
    } catch (const RankEnded&) {
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (!outcome.error) outcome.error_text = error.what();
        if (!outcome.error) outcome.error = std::current_exception();
      }
      world.End();
      CurrentRankGpu() = nullptr;
      throw;
    }
    CurrentRankGpu() = nullptr;
  }

  void GiveUpInTime() {
    std::unique_lock lock(mutex);
    const std::chrono::duration<double> limit(world.options.give_up_s);
    if (finished.wait_for(lock, limit, [&] { return is_finished; })) return;
    outcome.gave_up = true;
    lock.unlock();
    world.End();
  }
};

Outcome Run(const Options& options, const std::function<void(Rank&)>& body) {
  Worlds().push_back(std::make_unique<World>(options));
  World& world = TheWorld();
  Runner runner = {.world = world, .body = body};
  const Clock::time_point begin = Clock::now();
  std::thread monitor([&] { runner.GiveUpInTime(); });
  try {
    dist::LocalWorld::Run(options.ranks,
                          [&](dist::Communicator& control) { runner.RunRank(control); },
                          {.timeout_s = options.control_timeout_s});
  } catch (const std::exception&) {  // outcome.error has the first one
  }
  {
    const std::lock_guard lock(runner.mutex);
    runner.is_finished = true;
  }
  runner.finished.notify_all();
  monitor.join();
  world.Stop();
  runner.outcome.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
  runner.outcome.starts = world.starts;
  runner.outcome.double_joins = world.double_joins;
  runner.outcome.unlike = world.unlike;
  return runner.outcome;
}

void EndWorld() { TheWorld().End(); }

}  // namespace halflife::fake

// --- CUDA's API ---

using halflife::fake::Entry;
using halflife::fake::Gpu;
using halflife::fake::Mark;
using halflife::fake::TheWorld;
using halflife::fake::World;

namespace {

using Lock = std::unique_lock<std::mutex>;

// A blocked launch may hold the driver's lock, which queries then wait for.
Lock LockDriver(World& world, Gpu& gpu) {
  return world.options.driver_lock ? Lock(gpu.driver) : Lock();
}

// A rank sees an end only once its own clock has reached it. A poll that is early in virtual time
// moves the clock.
cudaError_t Observe(World& world, bool done, double us) {
  if (world.ended) return cudaErrorLaunchFailure;
  if (!done) return cudaErrorNotReady;
  if (halflife::fake::CurrentRankGpu() == nullptr || us <= world.NowUs()) return cudaSuccess;
  world.Spend(5);
  return cudaErrorNotReady;
}

// Blocks until the device has nothing to do, as calls that free or allocate memory do.
cudaError_t AwaitDevice(World& world, Lock& lock) {
  Gpu& gpu = world.current();
  const cudaError_t error = world.Block(lock, [&] { return world.Idle(gpu); });
  if (Gpu* const own = halflife::fake::CurrentRankGpu())
    for (const auto& stream : gpu.streams) own->host_us = std::max(own->host_us, stream->us);
  return error;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "the world of the fake has ended" : "see cuda_runtime.h";
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
  halflife::fake::CurrentDevice() = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  const std::string id = std::to_string(TheWorld().options.same_gpu ? 0 : device);
  std::strncpy(text, ("0000:0" + id + ":00.0").c_str(), static_cast<size_t>(size) - 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Lock lock(TheWorld().mutex);
  return AwaitDevice(TheWorld(), lock);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const Lock lock(TheWorld().mutex);
  Gpu& gpu = TheWorld().current();
  gpu.streams.push_back(std::make_unique<CUstream_st>());
  *stream = gpu.streams.back().get();
  (*stream)->gpu = &gpu;
  (*stream)->priority = std::clamp(priority, -5, 0);
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  return cudaSuccess;
}

// The work of a destroyed stream still runs, so the stream is kept.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  World& world = TheWorld();
  Gpu& gpu = stream == nullptr ? world.current() : *stream->gpu;
  const Lock driver = LockDriver(world, gpu);
  const Lock lock(world.mutex);
  stream = world.Find(stream);
  return Observe(world, stream->queue.empty(), stream->us);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  stream = world.Find(stream);
  const cudaError_t error = world.Block(lock, [&] { return stream->queue.empty(); });
  if (Gpu* const own = halflife::fake::CurrentRankGpu())
    own->host_us = std::max(own->host_us, stream->us);
  return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.Spend(1);
  if (event->mark == nullptr) return cudaSuccess;  // never recorded
  return world.Push(lock, world.Find(stream), {.after = {event->mark}});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(TheWorld().mutex);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.Spend(1);
  event->mark = std::make_shared<Mark>();
  return world.Push(lock, world.Find(stream), {.end = event->mark});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  World& world = TheWorld();
  const Lock driver = LockDriver(world, world.current());
  const Lock lock(world.mutex);
  if (event->mark == nullptr) return cudaSuccess;
  return Observe(world, event->mark->done, event->mark->us);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Lock lock(TheWorld().mutex);
  if (!begin->timed || !end->timed) return cudaErrorInvalidResourceHandle;
  if (begin->mark == nullptr || end->mark == nullptr) return cudaErrorInvalidResourceHandle;
  if (!begin->mark->done || !end->mark->done) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(1e-3 * (end->mark->us - begin->mark->us));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (const cudaError_t error = AwaitDevice(world, lock); error != cudaSuccess) return error;
  *memory = std::malloc(bytes);
  world.current().memory[*memory] = bytes;
  return cudaSuccess;
}

// Leaves the memory allocated and fills it with NaN, so that a late reader finds wrong values.
cudaError_t cudaFree(void* memory) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t error = AwaitDevice(world, lock); error != cudaSuccess) return error;
  const auto at = world.current().memory.find(memory);
  if (at == world.current().memory.end()) return cudaErrorInvalidValue;
  std::memset(memory, 0xff, at->second);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.Spend(4);
  return world.Push(lock, world.Find(stream),
                    {.kind = Entry::Kind::kKernel, .cost_us = 2, .sms = 1, .body = [=] {
                       std::memset(memory, value, bytes);
                     }});
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  world.Spend(4);
  return world.Push(lock, world.Find(stream),
                    {.kind = Entry::Kind::kKernel, .cost_us = 2, .sms = 1, .body = [=] {
                       if (to != from) std::memmove(to, from, bytes);
                     }});
}
