// Launches a grid. Workers (OS threads) take blocks from a counter, and each runs the fibers of a
// block until they end.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tools/cuda_emulator/internal.h"

namespace halflife::kernels::emu {
namespace {

// Counts of all ended blocks. The members are atomic, because a mutex would order the blocks for
// ThreadSanitizer and hide races.
struct Totals {
  std::atomic<int64_t> blocks{0}, copied_bytes{0}, ldmatrix_bytes{0}, mma{0}, wgmma{0}, barriers{0};

  void Add(const Counts& block) {
    ++blocks;
    copied_bytes += block.copied_bytes;
    ldmatrix_bytes += block.ldmatrix_bytes;
    mma += block.mma;
    wgmma += block.wgmma;
    barriers += block.barriers;
  }
};
Totals totals;

// Anonymous memory. For ThreadSanitizer it is mapped again for every block. Otherwise the accesses
// of successive blocks would be reported as races, because nothing orders the blocks of a launch.
class Mapping {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes) { Map(); }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void Renew() {
    munmap(data_, bytes_);
    Map();
  }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  void Map() {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HL_CHECK_AS(ExitCode::kEnvironment, data_ != MAP_FAILED, "the CUDA emulator cannot map ",
                bytes_, " bytes: ", internal::ErrnoText(errno));
  }
  size_t bytes_;
  void* data_ = nullptr;
};

#if HL_EMU_TSAN
// ThreadSanitizer takes a millisecond to create a fiber, so fibers are reused: by later launches,
// which the host thread orders anyway, and within a launch by every fourth block of a worker.
// Blocks that are closer together stay unordered.
class TsanFibers {
 public:
  using Set = std::vector<void*>;  // the threads of a block, then its bulk-copy engine

  TsanFibers() = default;
  ~TsanFibers() {
    const std::lock_guard lock(mutex());
    for (Set& set : in_use_) {
      for (void* fiber : set) free_list().push_back(fiber);
    }
  }
  TsanFibers(const TsanFibers&) = delete;
  TsanFibers& operator=(const TsanFibers&) = delete;

  const Set& Next(size_t count) {
    if (in_use_.size() < kDistinctBlocks) {
      in_use_.push_back(Take(count));
    } else {
      in_use_.push_back(std::move(in_use_.front()));
      in_use_.pop_front();
    }
    return in_use_.back();
  }
  // Destroys the last block. After an error, its fibers never return from their calls, so they
  // cannot be reused.
  void DestroyLast() {
    for (void* fiber : in_use_.back()) __tsan_destroy_fiber(fiber);
    in_use_.pop_back();
  }

 private:
  static constexpr size_t kDistinctBlocks = 4;

  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static Set& free_list() {
    static Set fibers;
    return fibers;
  }
  static Set Take(size_t count) {
    Set set;
    const std::lock_guard lock(mutex());
    while (set.size() < count) {
      if (free_list().empty()) {
        set.push_back(__tsan_create_fiber(0));
      } else {
        set.push_back(free_list().back());
        free_list().pop_back();
      }
    }
    return set;
  }

  std::deque<Set> in_use_;
};
#endif

class Worker {
 public:
  explicit Worker(int num_threads)
      : num_threads_(num_threads),
        page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        stacks_((StackBytes() + page_) * static_cast<size_t>(num_threads_)),
        shared_(kSharedBytes),
        copies_(sizeof(Copy) * kMaxCopies * static_cast<size_t>(num_threads_)),
        wgmmas_(sizeof(Wgmma) * kMaxWgmmas * static_cast<size_t>(num_threads_)),
        changed_(kChangedBytes * static_cast<size_t>(num_threads_)),
        tracker_(MakeTracker(num_threads_)),
        fibers_(static_cast<size_t>(num_threads_)),
        block_(std::make_unique<Block>()) {
    GuardStacks();
  }
  ~Worker() { DestroyTracker(tracker_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int num_threads() const { return num_threads_; }
  bool tracks_accesses() const { return tracker_ != nullptr; }

  void Run(Launch& launch) {
    const int64_t num_blocks = int64_t{1} * launch.grid.x * launch.grid.y * launch.grid.z;
    blockDim = launch.block;
    gridDim = launch.grid;
    for (int64_t i = launch.next_block++; i < num_blocks && !launch.failed;
         i = launch.next_block++) {
      RunBlock(launch, i);
    }
    SyncAcquire(&launch.sync);
  }

 private:
  // The arena is aligned to 1024 bytes because it starts at a page.
  static constexpr size_t kSharedBytes = kDynamicBytes + kStaticBytes + kRedZoneBytes;
  static constexpr size_t kChangedBytes = size_t{16} << 10;  // a bit per word of a stack

  void GuardStacks() {
    for (int i = 0; i < num_threads_; ++i) {
      mprotect(stacks_.data() + static_cast<size_t>(i) * (StackBytes() + page_), page_, PROT_NONE);
    }
  }

  void RunBlock(Launch& launch, int64_t linear_block) {
    if (HL_EMU_TSAN) {
      stacks_.Renew();
      GuardStacks();
      shared_.Renew();
    }
    Block& block = *block_;
    block = Block{};
    const auto x = static_cast<int64_t>(launch.grid.x), y = static_cast<int64_t>(launch.grid.y);
    block.launch = &launch;
    block.index = {static_cast<unsigned>(linear_block % x),
                   static_cast<unsigned>(linear_block / x % y),
                   static_cast<unsigned>(linear_block / x / y)};
    block.num_threads = block.num_alive = num_threads_;
    block.fibers = fibers_.data();
    block.random = launch.seed * 0x2545f4914f6cdd1du + static_cast<uint64_t>(linear_block);
    block.tracker = tracker_;
    PrepareShared(block);
    PrepareWorkerContext(block.worker);
#if HL_EMU_TSAN
    const TsanFibers::Set& tsan_fibers = tsan_fibers_.Next(static_cast<size_t>(num_threads_) + 1);
    for (int i = 0; i < num_threads_; ++i) {
      fibers_[static_cast<size_t>(i)].tsan_fiber = tsan_fibers[static_cast<size_t>(i)];
    }
    block.tsan_engine = tsan_fibers.back();
    __tsan_set_fiber_name(block.tsan_engine, "bulk copies");
#endif
    current_block = &block;
    blockIdx = block.index;
    for (int i = 0; i < num_threads_; ++i) PrepareFiber(block, i);
    StartTracking(block);

    int first = 0;
    if (launch.order == Order::kReverse) first = num_threads_ - 1;
    if (launch.order == Order::kRandom) {
      first = static_cast<int>(NextRandom(block) % static_cast<uint64_t>(num_threads_));
    }
    block.ready.Remove(first);
    block.running = &fibers_[static_cast<size_t>(first)];
    SyncRelease(&block.begin_sync);
    SwitchContext(block.worker, *block.running, /*from_ends=*/false);

#if HL_EMU_TSAN
    if (block.num_alive > 0) {
      // Orders the accesses of the abandoned threads before the next accesses of the host.
      for (const Fiber& fiber : fibers_) {
        __tsan_switch_to_fiber(fiber.tsan_fiber, __tsan_switch_to_fiber_no_sync);
        __tsan_release(&launch.sync);
        __tsan_switch_to_fiber(block.worker.tsan_fiber, __tsan_switch_to_fiber_no_sync);
      }
      tsan_fibers_.DestroyLast();
    }
#endif
    ASAN_UNPOISON_MEMORY_REGION(shared_.data(), kSharedBytes);
    totals.Add(block.counts);
    current_block = nullptr;
  }

  void PrepareShared(Block& block) {
    block.dynamic = shared_.data();
    block.statics = shared_.data() + kDynamicBytes;
    static_assert(kDynamicBytes % 1024 == 0);
    FillOnes(block.dynamic, static_cast<size_t>(block.launch->smem_bytes));
    ASAN_POISON_MEMORY_REGION(shared_.data() + block.launch->smem_bytes,
                              kSharedBytes - static_cast<size_t>(block.launch->smem_bytes));
  }

  void PrepareWorkerContext(Context& context) {
    pthread_attr_t attributes;
    if (worker_stack_bytes_ == 0 && pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &worker_stack_, &worker_stack_bytes_);
      pthread_attr_destroy(&attributes);
    }
    context.stack_bottom = worker_stack_;
    context.stack_bytes = worker_stack_bytes_;
#if HL_EMU_TSAN
    context.tsan_fiber = __tsan_get_current_fiber();
#endif
  }

  void PrepareFiber(Block& block, int i) {
    Fiber& fiber = fibers_[static_cast<size_t>(i)];
    const Fiber before = fiber;
    fiber = Fiber{};
    fiber.tsan_fiber = before.tsan_fiber;
    fiber.first_changed = before.first_changed;
    fiber.end_changed = before.end_changed;
    fiber.linear = i;
    const auto linear = static_cast<unsigned>(i);
    fiber.index = {linear % block.launch->block.x,
                   linear / block.launch->block.x % block.launch->block.y,
                   linear / block.launch->block.x / block.launch->block.y};
    fiber.copies = reinterpret_cast<Copy*>(copies_.data()) + static_cast<ptrdiff_t>(i) * kMaxCopies;
    fiber.wgmmas =
        reinterpret_cast<Wgmma*>(wgmmas_.data()) + static_cast<ptrdiff_t>(i) * kMaxWgmmas;
    fiber.changed = reinterpret_cast<uint64_t*>(changed_.data() + i * kChangedBytes);
    fiber.stack_bytes = StackBytes();
    fiber.stack_bottom = stacks_.data() + static_cast<size_t>(i) * (StackBytes() + page_) + page_;
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack_bottom, fiber.stack_bytes);
#if HL_EMU_TSAN
    char name[96];
    snprintf(name, sizeof(name), "block (%u,%u,%u) thread %d (warp %d lane %d)", block.index.x,
             block.index.y, block.index.z, i, fiber.warp(), fiber.lane());
    __tsan_set_fiber_name(fiber.tsan_fiber, name);
#endif
    PrepareContext(fiber, FiberMain, i);
    block.ready.Add(i);
    block.warps[fiber.warp()].alive |= 1u << fiber.lane();
  }

  int num_threads_;
  size_t page_;
  Mapping stacks_, shared_, copies_, wgmmas_, changed_;
  Tracker* tracker_;
  std::vector<Fiber> fibers_;
  std::unique_ptr<Block> block_;
#if HL_EMU_TSAN
  TsanFibers tsan_fibers_;
#endif
  void* worker_stack_ = nullptr;
  size_t worker_stack_bytes_ = 0;
};

// Workers of earlier launches. Without them, a short launch would spend most of its time on mapping
// the stacks and touching their pages. The kinds with a sanitizer use new workers, because it would
// not see that the memory of an earlier launch is no longer valid.
class IdleWorkers {
 public:
  std::unique_ptr<Worker> Take(int num_threads) {
    const std::lock_guard lock(mutex_);
    const auto found = workers_.find({num_threads, TracksAccesses()});
    if (found == workers_.end()) return std::make_unique<Worker>(num_threads);
    std::unique_ptr<Worker> worker = std::move(found->second);
    workers_.erase(found);
    return worker;
  }
  void Put(std::unique_ptr<Worker> worker) {
    if (HL_EMU_ASAN || HL_EMU_TSAN) return;
    const std::lock_guard lock(mutex_);
    const std::pair key(worker->num_threads(), worker->tracks_accesses());
    workers_.emplace(key, std::move(worker));
  }

 private:
  std::mutex mutex_;
  std::multimap<std::pair<int, bool>, std::unique_ptr<Worker>> workers_;
};

Order OrderOf(const char* text) {
  const std::string order = text == nullptr ? "forward" : text;
  if (order == "forward") return Order::kForward;
  if (order == "reverse") return Order::kReverse;
  if (order == "random") return Order::kRandom;
  HL_FAIL(ExitCode::kUsage, "HL_EMU_ORDER is '", order, "'. Use forward, reverse or random.");
}

int64_t NumberOf(const char* variable, int64_t fallback) {
  const char* text = getenv(variable);
  if (text == nullptr) return fallback;
  char* end = nullptr;
  const long long value = strtoll(text, &end, 10);
  HL_CHECK_AS(ExitCode::kUsage, end != text && *end == 0 && value >= 1, variable, " is '", text,
              "'. Use a whole number of at least 1.");
  return value;
}

}  // namespace

Counts CountsSoFar() {
  return {totals.blocks, totals.copied_bytes, totals.ldmatrix_bytes,
          totals.mma,    totals.wgmma,        totals.barriers};
}

void RunErased(dim3 grid, dim3 block, int smem_bytes, const char* name, void (*body)(void*),
               void* argument) {
  HL_CHECK(current_block == nullptr, name, ": launched from inside a kernel");
  Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.smem_bytes = smem_bytes;
  launch.name = name;
  launch.body = body;
  launch.argument = argument;
  launch.order = OrderOf(getenv("HL_EMU_ORDER"));
  launch.seed = static_cast<uint64_t>(NumberOf("HL_EMU_SEED", 1));
  const int64_t processors = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
  const int64_t num_blocks = int64_t{1} * grid.x * grid.y * grid.z;
  const int64_t num_workers = std::min(num_blocks, NumberOf("HL_EMU_WORKERS", processors));

  // The workers are returned after all OS threads have ended, because their fibers must not be
  // reused within this launch.
  static IdleWorkers idle;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int64_t i = 0; i < num_workers; ++i)
    workers.push_back(idle.Take(static_cast<int>(block.x * block.y * block.z)));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < workers.size(); ++i) {
    threads.emplace_back([&launch, worker = workers[i].get()] { worker->Run(launch); });
  }
  workers[0]->Run(launch);
  for (std::thread& thread : threads) thread.join();
  for (std::unique_ptr<Worker>& worker : workers) idle.Put(std::move(worker));
  if (launch.failed) HL_FAIL(ExitCode::kInternal, launch.message);
}

}  // namespace halflife::kernels::emu
