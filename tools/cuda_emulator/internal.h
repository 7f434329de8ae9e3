// The internal types of the emulator: fibers, blocks and launches. Only the emulator's sources
// include this header.
//
// For ThreadSanitizer, these sources are built with HL_EMU_TSAN and without -fsanitize=thread;
// otherwise the scheduler's own state would be reported as races. Loads and stores that an emulated
// instruction makes for its lane go through access.cc, which is instrumented. Code that runs on a
// fiber must not call functions that the sanitizer intercepts (memcpy, memset, malloc), because the
// sanitizer would see the emulator's memory through them.
#pragma once

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "tools/cuda_emulator/counts.h"
#include "tools/cuda_emulator/emulator.h"

#if defined(__SANITIZE_ADDRESS__)
#define HL_EMU_ASAN 1
#include <sanitizer/asan_interface.h>
#else
#define HL_EMU_ASAN 0
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#ifndef HL_EMU_TSAN
#define HL_EMU_TSAN 0
#endif
#if HL_EMU_TSAN
#include <sanitizer/tsan_interface.h>
// Entry points of the instrumentation. No header declares them.
extern "C" void __tsan_func_entry(void* call_pc);
extern "C" void __tsan_func_exit();
#endif

#if defined(__x86_64__) && !defined(HL_EMU_UCONTEXT)
#define HL_EMU_ASM_SWITCH 1
#else
#define HL_EMU_ASM_SWITCH 0
#endif

namespace halflife::kernels::emu {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxWarps = kMaxThreads / 32;
inline constexpr int kNumBarriers = 16;
inline constexpr int kRedZoneBytes = 1024;
inline constexpr int kMaxCuts = 128;  // cuts of a SmemCarver per kernel
inline constexpr int kMaxSharedBytes = 227 * 1024;
inline constexpr int kDynamicBytes = kMaxSharedBytes + kMaxCuts * kRedZoneBytes;  // with red zones
inline constexpr int kMaxStaticBytes = 48 * 1024;
inline constexpr int kStaticBytes = 80 * 1024;  // with red zones
inline constexpr int kMaxStatics = 64;
inline constexpr int kMaxCopies = 512;  // cp.async in flight per thread
inline constexpr int kMaxMbarriers = 64;
inline constexpr int kMaxBulkCopies = 256;
inline constexpr int kMaxWgmmas = 64;  // wgmma in flight per thread

// ---- clocks of the tracker (tracker.cc) ----

// The accesses that precede a barrier, for the threads that pass it.
struct Snapshot;
struct SyncCell {
  Snapshot* clocks = nullptr;                            // null: nothing has been released into it
  Snapshot* joined = nullptr;                            // the last view that `clocks` includes
  Snapshot *acquired_by = nullptr, *acquired = nullptr;  // a view, and that view with `clocks`
};
void ClearCell(SyncCell& cell);  // for the next phase

// ---- annotations for the sanitizers ----

inline void SyncRelease([[maybe_unused]] void* object) {
#if HL_EMU_TSAN
  __tsan_release(object);
#endif
}
inline void SyncAcquire([[maybe_unused]] void* object) {
#if HL_EMU_TSAN
  __tsan_acquire(object);
#endif
}
// Adds the caller's line to ThreadSanitizer's stack traces, because the functions of the emulator
// are not instrumented.
class EntryFrame {
 public:
  explicit EntryFrame([[maybe_unused]] void* return_address) {
#if HL_EMU_TSAN
    __tsan_func_entry(return_address);
#endif
  }
  ~EntryFrame() {
#if HL_EMU_TSAN
    __tsan_func_exit();
#endif
  }
};
#define HL_EMU_ENTRY const EntryFrame entry_frame(__builtin_return_address(0))

// Loads and stores for the running lane. The sanitizers see them (access.cc).
void LoadForLane16(uint32_t (&to)[4], const void* from);
void StoreForLane16(void* to, const uint32_t (&from)[4]);
uint32_t LoadForLane4(const void* from);
void StoreForLane4(void* to, uint32_t from);
uint16_t LoadForLane2(const void* from);

// ---- fibers ----

struct Context {
#if HL_EMU_ASM_SWITCH
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* asan_fake = nullptr;
  void* tsan_fiber = nullptr;
};

struct Copy {
  void* smem;
  const void* global;
  Place place;
  int group;
  int bytes;  // 4 or 16
  bool valid;
};

struct Wgmma {
  float* accumulator;
  float a[2][16];  // the thread's rows of operand A, if A is in registers
  uint64_t desc_a, desc_b;
  Place place;
  int group;
  bool a_in_registers;
  bool b_of_rows;  // B is stored as [16, 64], otherwise as [64, 16]
  bool first;      // first of a chain: `saved` holds the accumulator's previous value
  float saved[32];
  const uint32_t* registers;  // of A; null: in shared memory
  uint32_t saved_a[4];
  // The units of 16 bytes of A and B whose accesses this thread tracks, and what had written them
  // when the wgmma was issued.
  const void *unit_a, *unit_b;
  uint64_t writers_a, writers_b;
};

struct Fiber : Context {
  int linear = 0;
  uint3 index = {};
  bool exited = false;
  const char* waits_for = nullptr;
  int waits_id = -1;  // number or address of the barrier; -1: none
  Place place;
  Copy* copies = nullptr;  // [kMaxCopies]
  int num_copies = 0;
  int copy_group = 0;       // the open (uncommitted) group
  Wgmma* wgmmas = nullptr;  // [kMaxWgmmas]
  int num_wgmmas = 0;
  uint32_t issued_wgmmas = 0;  // since the block's start
  int wgmma_group = 0;
  bool wgmma_fenced = false;
  bool uses_wgmma = false;

  // For the tracker.
  Snapshot* view = nullptr;     // which accesses of other threads precede those that follow
  uint64_t released = 0;        // the snapshot that includes `view`; 0: none
  int32_t clock = 0;            // of the thread's own accesses
  int32_t fenced = 0;           // up to which its stores precede its last proxy fence
  uint64_t* changed = nullptr;  // a bit per word of the stack: stored since the last WgmmaFence
  size_t first_changed = 0, end_changed = 0;  // the words of `changed` that can have bits

  int warp() const { return linear / 32; }
  int lane() const { return linear % 32; }
};

// A set of a block's threads.
class FiberSet {
 public:
  void Clear() {
    for (uint64_t& word : words_) word = 0;
  }
  void Add(int i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void Remove(int i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  bool Has(int i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  int First() const;  // -1 if the set is empty
  int Last() const;

 private:
  uint64_t words_[kMaxThreads / 64] = {};
};

// The threads that can run. Each operation takes constant time, apart from the scan of a FiberSet.
class ReadyFibers {
 public:
  void Add(int i) {
    set_.Add(i);
    places_[i] = static_cast<int16_t>(count_);
    list_[count_++] = static_cast<int16_t>(i);
  }
  // Moves all threads of `waiting` into this set.
  void Absorb(FiberSet& waiting) {
    for (int i = waiting.First(); i >= 0; i = waiting.First()) {
      waiting.Remove(i);
      Add(i);
    }
  }
  void Remove(int i) {
    set_.Remove(i);
    const int16_t last = list_[--count_];
    list_[places_[i]] = last;
    places_[last] = places_[i];
  }
  int count() const { return count_; }
  int First() const { return set_.First(); }
  int Last() const { return set_.Last(); }
  int operator[](uint64_t n) const { return list_[n]; }  // in no particular order

 private:
  FiberSet set_;
  int count_ = 0;
  int16_t list_[kMaxThreads] = {}, places_[kMaxThreads] = {};  // places_[list_[n]] = n
};

// The synchronization objects of a barrier for ThreadSanitizer, one per phase. A thread can be one
// phase ahead of a thread that has not left the barrier yet. With one object for all phases, the
// slower thread would be ordered after the faster thread's later writes, which would hide races.
struct SyncRing {
  SyncCell cells[8] = {};
  unsigned next = 0;
  SyncCell* Current() { return &cells[next % 8]; }
  void Advance() {
    ++next;
    ClearCell(*Current());
  }
};

struct Barrier {
  int arrived = 0;
  int expected = 0;
  Place place;
  FiberSet waiting;
  SyncRing sync;
};

struct WarpOp;  // the work of a collective once all its lanes have arrived

struct WarpSlot {
  const WarpOp* op = nullptr;  // null: the slot is free
  unsigned mask = 0;
  unsigned arrived = 0;
  Place place;
  void* operands[32] = {};
  SyncCell* sync = nullptr;
};

struct Warp {
  unsigned alive = 0;  // lanes that exist and have not exited
  WarpSlot slots[4];
  SyncRing sync;
};

struct StaticVariable {
  const void* key;
  unsigned char* data;
  size_t bytes;
};

struct Mbarrier {
  const void* address = nullptr;  // null: the entry is free
  int count = 0;                  // arrivals per phase
  int pending = 0;                // arrivals still missing
  int64_t pending_bytes = 0;
  unsigned phase = 0;
  FiberSet waiting;
  SyncCell sync[4] = {};  // index: phase % 4
};

struct BulkCopy {
  unsigned char* smem = nullptr;
  int bytes = 0;
  const unsigned char* source = nullptr;  // of contiguous bytes; null: the box of `map`
  TensorMap map = {};
  const void* mbarrier = nullptr;  // null: the entry is free
  int col = 0, row = 0;
  Place place = {};
};

// The descriptors of a warpgroup's wgmma, which its threads must agree on.
struct WgmmaDescriptors {
  uint32_t number = 0;  // of the thread's wgmmas, from 1; 0: none yet
  uint64_t a = 0, b = 0;
};
inline constexpr int kComparedWgmmas = 64;

struct Launch;
class Tracker;

struct Block {
  Launch* launch = nullptr;
  uint3 index = {};
  int num_threads = 0;
  int num_alive = 0;
  Fiber* fibers = nullptr;
  Fiber* running = nullptr;
  Context worker;
  ReadyFibers ready;
  uint64_t random = 0;
  Barrier barriers[kNumBarriers];
  Warp warps[kMaxWarps];

  unsigned char* dynamic = nullptr;  // [kDynamicBytes], followed by the static arena
  unsigned char* statics = nullptr;  // [kStaticBytes]
  int num_cuts = 0;
  struct Cut {
    int begin, bytes;
    Place place;
  } cuts[kMaxCuts];
  int num_statics = 0;
  int static_used = 0;   // bytes including red zones
  int static_bytes = 0;  // bytes without red zones
  StaticVariable variables[kMaxStatics];

  Mbarrier mbarriers[kMaxMbarriers];
  BulkCopy bulk[kMaxBulkCopies];
  int num_bulk = 0;
  uint64_t bulk_sync[kMaxBulkCopies] = {};  // orders the issue of a copy before its completion
  void* tsan_engine = nullptr;              // the fiber that performs bulk copies
  uint64_t begin_sync = 0;                  // orders the worker before its threads
  WgmmaDescriptors wgmmas[kMaxThreads / 128][kComparedWgmmas];  // the last of each warpgroup
  Tracker* tracker = nullptr;                                   // null: not tracked
  Counts counts;
};

enum class Order { kForward, kReverse, kRandom };

struct Launch {
  dim3 grid, block;
  int smem_bytes = 0;
  const char* name = "";
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  Order order = Order::kForward;
  uint64_t seed = 1;
  std::atomic<int64_t> next_block{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  char message[2048] = {};
  uint64_t sync = 0;  // every thread releases it when it ends
};

extern constinit thread_local Block* current_block;
inline Fiber& Self() { return *current_block->running; }

// ---- scheduler.cc ----
uint64_t NextRandom(Block& block);
// Suspends this fiber until another fiber makes it ready. `what`, `id` and `place` describe the
// wait in a deadlock report.
void WaitHere(const char* what, int id, Place place);
inline void MakeReady(Block& block, int linear) { block.ready.Add(linear); }
inline void MakeReady(Block& block, FiberSet& fibers) { block.ready.Absorb(fibers); }
void FiberMain();
[[noreturn]] void Fail(Place place, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* FileName(Place place);

// ---- tracker.cc ----
// The accesses to shared memory of the running block, and their order. All functions do nothing if
// the block is not tracked.
bool TracksAccesses();  // false in the kinds with a sanitizer, and with HL_EMU_TRACK=0
Tracker* MakeTracker(int num_threads);  // null if TracksAccesses() is false
void DestroyTracker(Tracker* tracker);
void StartTracking(Block& block);
void TrackRelease(SyncCell& cell);
void TrackAcquire(SyncCell& cell);
void TrackRead(const void* smem, int bytes, Place place);
void TrackWrite(const void* smem, int bytes, Place place);
void TrackProxyFence();
// Records a bulk copy that will complete on mbarrier number `mbarrier`.
void TrackBulkCopy(const void* smem, int bytes, int mbarrier, Place place);
void TrackPhase(SyncCell& cell, int mbarrier);
// Record a read by the async proxy, for example of a unit of 16 bytes by a wgmma: TrackIssue when
// it is issued, which returns a mark of the writers, and TrackCompletion at the wait.
uint64_t TrackIssue(const void* smem, int bytes, Place place);
void TrackCompletion(const void* unit, uint64_t writers, Place place);
// Forgets the stores to registers (the fiber's stack) so far.
void TrackWgmmaFence();
bool HaveChanged(const void* registers, int bytes);

inline void Release(SyncCell& cell) {
  SyncRelease(&cell);
  TrackRelease(cell);
}
inline void Acquire(SyncCell& cell) {
  SyncAcquire(&cell);
  TrackAcquire(cell);
}

// ---- fiber.cc ----
void PrepareContext(Context& context, void (*entry)(), int stagger);
void SwitchContext(Context& from, Context& to, bool from_ends);
void EnterContext();  // a new fiber must call this first
size_t StackBytes();

// ---- shared_memory.cc ----
// Fills with 0xFF bytes without memset, which a sanitizer would count as an access by the running
// thread.
void FillOnes(unsigned char* data, size_t bytes);

// ---- collectives.cc, copies.cc, bulk.cc, wgmma.cc ----
// Collects rows lane / 4 and lane / 4 + 8 of the warp's A fragment [16, 16], bf16.
void WarpGatherA(const uint32_t* a, float (&rows)[2][16], Place place);
void LaneExits(Block& block, Fiber& fiber);
void CheckNoCopies(Fiber& fiber);
void CheckNoWgmmas(Fiber& fiber);
void CheckNoBulkCopies(Block& block);
bool LandBulkCopies(Block& block);  // completes those of one mbarrier; false: none in flight

}  // namespace halflife::kernels::emu
