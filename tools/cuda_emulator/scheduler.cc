// The scheduler of a block: selects the next fiber, suspends waiting fibers, and reports errors and
// deadlocks.
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>

#include "tools/cuda_emulator/internal.h"

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim;
__thread dim3 gridDim;

namespace halflife::kernels::emu {

constinit thread_local Block* current_block = nullptr;

int FiberSet::First() const {
  for (int i = 0; i < kMaxThreads / 64; ++i) {
    if (words_[i] != 0) return 64 * i + std::countr_zero(words_[i]);
  }
  return -1;
}

int FiberSet::Last() const {
  for (int i = kMaxThreads / 64 - 1; i >= 0; --i) {
    if (words_[i] != 0) return 64 * i + 63 - std::countl_zero(words_[i]);
  }
  return -1;
}

// Returns the next number of SplitMix64. The schedule does not affect results, so the project's
// counter-based generator is not needed here.
uint64_t NextRandom(Block& block) {
  block.random += 0x9e3779b97f4a7c15u;
  uint64_t z = block.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

const char* FileName(Place place) {
  const char* name = place.file_name();
  if (name == nullptr) return "?";
  const char* slash = strrchr(name, '/');
  return slash == nullptr ? name : slash + 1;
}

namespace {

// Records the first error of the launch, then returns to the worker without resuming the block's
// fibers.
[[noreturn]] void Abandon(const char* message) {
  Block& block = *current_block;
  Launch& launch = *block.launch;
  {
    const std::lock_guard lock(launch.mutex);
    if (!launch.failed) {
      snprintf(launch.message, sizeof(launch.message), "%s", message);
      launch.failed = true;
    }
  }
  SyncRelease(&launch.sync);
  SwitchContext(*block.running, block.worker, /*from_ends=*/true);
  __builtin_unreachable();
}

const char* OrderText(Order order) {
  return order == Order::kForward ? "forward" : order == Order::kReverse ? "reverse" : "random";
}

// Example: "deadlock in block 0,0,0 of row sum (order forward): 32 threads (first 0) exited; 96
// threads (first 32) wait in __syncthreads at sum.cu:43".
[[noreturn]] void ReportDeadlock() {
  Block& block = *current_block;
  char message[2048];
  int used = snprintf(message, sizeof(message),
                      "deadlock in block %u,%u,%u of %s (order %s):", block.index.x, block.index.y,
                      block.index.z, block.launch->name, OrderText(block.launch->order));
  FiberSet reported;
  bool first_group = true;
  for (int i = 0; i < block.num_threads && used < static_cast<int>(sizeof(message)); ++i) {
    if (reported.Has(i)) continue;
    const Fiber& leader = block.fibers[i];
    int count = 0;
    for (int j = i; j < block.num_threads; ++j) {
      const Fiber& other = block.fibers[j];
      const bool same = other.exited == leader.exited &&
                        (leader.exited || (other.waits_id == leader.waits_id &&
                                           strcmp(other.waits_for, leader.waits_for) == 0 &&
                                           other.place.line() == leader.place.line() &&
                                           other.place.file_name() == leader.place.file_name()));
      if (!same) continue;
      reported.Add(j);
      ++count;
    }
    const size_t left = sizeof(message) - static_cast<size_t>(used);
    used += snprintf(message + used, left, "%s %d thread%s (first %d) ", first_group ? "" : ";",
                     count, count == 1 ? "" : "s", i);
    first_group = false;
    if (used >= static_cast<int>(sizeof(message))) break;
    const size_t rest = sizeof(message) - static_cast<size_t>(used);
    if (leader.exited) {
      used += snprintf(message + used, rest, "exited");
    } else if (leader.waits_id >= 0) {
      used += snprintf(message + used, rest, "wait in %s %d at %s:%u", leader.waits_for,
                       leader.waits_id, FileName(leader.place), leader.place.line());
    } else {
      used += snprintf(message + used, rest, "wait in %s at %s:%u", leader.waits_for,
                       FileName(leader.place), leader.place.line());
    }
  }
  Abandon(message);
}

Fiber& PickNext() {
  Block& block = *current_block;
  // Bulk copies complete as late as possible: only if no fiber is ready, and then only the copies
  // of one mbarrier.
  while (block.ready.count() == 0)
    if (!LandBulkCopies(block)) ReportDeadlock();
  int next = 0;
  switch (block.launch->order) {
    case Order::kForward:
      next = block.ready.First();
      break;
    case Order::kReverse:
      next = block.ready.Last();
      break;
    case Order::kRandom:
      next =
          block.ready[(NextRandom(block) >> 32) * static_cast<uint64_t>(block.ready.count()) >> 32];
      break;
  }
  block.ready.Remove(next);
  return block.fibers[next];
}

void SwitchTo(Fiber& from, Fiber& to, bool from_ends) {
  if (&from == &to) return;
  current_block->running = &to;
  SwitchContext(from, to, from_ends);
}

}  // namespace

void Fail(Place place, const char* format, ...) {
  Block& block = *current_block;
  const Fiber& self = Self();
  char message[2048];
  int used =
      snprintf(message, sizeof(message),
               "%s:%u: %s, block %u,%u,%u thread %u,%u,%u (warp %d lane %d): ", FileName(place),
               place.line(), block.launch->name, block.index.x, block.index.y, block.index.z,
               self.index.x, self.index.y, self.index.z, self.warp(), self.lane());
  if (used > static_cast<int>(sizeof(message)) - 1) used = sizeof(message) - 1;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message + used, sizeof(message) - static_cast<size_t>(used), format, arguments);
  va_end(arguments);
  Abandon(message);
}

void FailAt(Place place, const char* message) { Fail(place, "%s", message); }

void WaitHere(const char* what, int id, Place place) {
  Fiber& self = Self();
  self.waits_for = what;
  self.waits_id = id;
  self.place = place;
  SwitchTo(self, PickNext(), /*from_ends=*/false);
  // The fiber runs again. The built-in variables belong to the OS thread, so they must be restored.
  threadIdx = self.index;
}

void Yield() {
  Block& block = *current_block;
  Fiber& self = Self();
  // All other ready threads run first. Otherwise, in forward order, the lowest thread would poll
  // forever.
  if (block.ready.count() == 0) LandBulkCopies(block);
  if (block.ready.count() == 0) return;
  Fiber& next = PickNext();
  block.ready.Add(self.linear);
  self.waits_for = "a polling loop";
  self.waits_id = -1;
  SwitchTo(self, next, /*from_ends=*/false);
  threadIdx = self.index;
}

void FiberMain() {
  EnterContext();
  Block& block = *current_block;
  Launch& launch = *block.launch;
  threadIdx = Self().index;
  SyncAcquire(&block.begin_sync);
  try {
    launch.body(launch.argument);
  } catch (const std::exception& error) {
    Fail(Place::current(), "an exception left the kernel: %s", error.what());
  }
  Fiber& self = Self();
  CheckNoCopies(self);
  CheckNoWgmmas(self);
  if (block.num_alive == 1) CheckNoBulkCopies(block);
  self.exited = true;
  --block.num_alive;
  LaneExits(block, self);
  SyncRelease(&launch.sync);
  if (block.num_alive == 0) {
    SwitchContext(self, block.worker, /*from_ends=*/true);
  } else {
    SwitchTo(self, PickNext(), /*from_ends=*/true);
  }
  __builtin_unreachable();
}

void Fence() { __sync_synchronize(); }

}  // namespace halflife::kernels::emu
