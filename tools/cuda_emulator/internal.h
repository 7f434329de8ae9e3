// The emulator's own types: fibers, a block, a launch. Included by the emulator's sources alone.
//
// Everything here runs uninstrumented under ThreadSanitizer (built with HL_EMU_TSAN, not with
// -fsanitize=thread), else the scheduler's own state would be reported as races. What an emulated
// instruction reads or writes for its lane goes through access.cc, which is instrumented. Code that
// runs on a fiber calls nothing that the sanitizer intercepts (memcpy, memset, malloc), as it would
// see the emulator's memory through them.
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
// The instrumentation's own entry points, which no header declares.
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
inline constexpr int kMaxCuts = 128;  // of SmemCarver in a kernel
inline constexpr int kMaxSharedBytes = 227 * 1024;
inline constexpr int kDynamicBytes = kMaxSharedBytes + kMaxCuts * kRedZoneBytes;  // with red zones
inline constexpr int kMaxStaticBytes = 48 * 1024;
inline constexpr int kStaticBytes = 80 * 1024;  // with red zones
inline constexpr int kMaxStatics = 64;
inline constexpr int kMaxCopies = 512;  // in flight, a thread
inline constexpr int kMaxMbarriers = 64;
inline constexpr int kMaxBulkCopies = 256;
inline constexpr int kMaxWgmmas = 64;  // in flight, a thread

// ---- what the sanitizers are told ----

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
// Puts the caller's line into ThreadSanitizer's stacks: the emulator's functions are not
// instrumented.
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

// Loads and stores for the running lane, seen by the sanitizers (access.cc).
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
  float a[2][16];  // the thread's rows of operand A where it comes from registers
  uint64_t desc_a, desc_b;
  Place place;
  int group;
  bool a_in_registers;
  bool b_of_rows;  // B [16, 64] as stored, else [64, 16]
  bool first;      // of a chain: the accumulator's value before is in `saved`
  float saved[32];
};

struct Fiber : Context {
  int linear = 0;
  uint3 index = {};
  bool exited = false;
  const char* waits_for = nullptr;
  int waits_id = -1;  // of a named barrier
  Place place;
  Copy* copies = nullptr;  // [kMaxCopies]
  int num_copies = 0;
  int copy_group = 0;       // the group that is open
  Wgmma* wgmmas = nullptr;  // [kMaxWgmmas], from the first use on
  int num_wgmmas = 0;
  int wgmma_group = 0;
  bool wgmma_fenced = false;

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
  // Moves all of `other` here.
  void Absorb(FiberSet& other) {
    for (int i = 0; i < kMaxThreads / 64; ++i) {
      words_[i] |= other.words_[i];
      other.words_[i] = 0;
    }
  }
  void Remove(int i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  bool Has(int i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  int Count() const;
  int First() const;  // -1: empty
  int Last() const;
  int Nth(int n) const;

 private:
  uint64_t words_[kMaxThreads / 64] = {};
};

// Objects on which ThreadSanitizer orders one phase of a barrier. A thread may be a phase ahead of
// one that has not left yet; with one object for all phases the slow one would be ordered after the
// fast one's later writes, hiding races.
struct SyncRing {
  uint64_t cells[8] = {};
  unsigned next = 0;
  void* Current() { return &cells[next % 8]; }
  void Advance() { ++next; }
};

struct Barrier {
  int arrived = 0;
  int expected = 0;
  Place place;
  FiberSet waiting;
  SyncRing sync;
};

struct WarpOp;  // what a collective does once all lanes are there

struct WarpSlot {
  const WarpOp* op = nullptr;  // null: free
  unsigned mask = 0;
  unsigned arrived = 0;
  Place place;
  void* operands[32] = {};
  void* sync = nullptr;
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
  const void* address = nullptr;  // null: free
  int count = 0;                  // arrivals a phase
  int pending = 0;                // arrivals still missing
  int64_t pending_bytes = 0;
  unsigned phase = 0;
  FiberSet waiting;
  uint64_t sync[4] = {};  // of phase % 4
};

struct BulkCopy {
  unsigned char* smem = nullptr;
  TensorMap map = {};
  const void* mbarrier = nullptr;  // null: of no copy in flight
  int col = 0, row = 0;
  Place place = {};
};

struct Launch;

struct Block {
  Launch* launch = nullptr;
  uint3 index = {};
  int num_threads = 0;
  int num_alive = 0;
  Fiber* fibers = nullptr;
  Fiber* running = nullptr;
  Context worker;
  FiberSet ready;
  uint64_t random = 0;
  Barrier barriers[kNumBarriers];
  Warp warps[kMaxWarps];

  unsigned char* dynamic = nullptr;  // [kDynamicBytes], then the static arena
  unsigned char* statics = nullptr;  // [kStaticBytes]
  int num_cuts = 0;
  struct Cut {
    int begin, bytes;
  } cuts[kMaxCuts];
  int num_statics = 0;
  int static_used = 0;   // with red zones
  int static_bytes = 0;  // without
  StaticVariable variables[kMaxStatics];

  Mbarrier mbarriers[kMaxMbarriers];
  BulkCopy bulk[kMaxBulkCopies];
  int num_bulk = 0;
  uint64_t bulk_sync[kMaxBulkCopies] = {};  // from a copy's issue to its landing
  void* tsan_engine = nullptr;              // the fiber to which bulk copies belong
  uint64_t begin_sync = 0;                  // from the worker to its threads
  // Dynamic memory as wgmma and TMA see it: as it was at the last proxy fence, plus what TMA
  // brought since.
  unsigned char* async_view = nullptr;
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
  uint64_t sync = 0;  // what every thread releases at its end
};

extern thread_local Block* current_block;
inline Fiber& Self() { return *current_block->running; }

// ---- scheduler.cc ----
uint64_t NextRandom(Block& block);
// Gives up the processor until another fiber makes this one ready.
void WaitHere(const char* what, int id, Place place);
inline void MakeReady(Block& block, int linear) { block.ready.Add(linear); }
inline void MakeReady(Block& block, FiberSet& fibers) { block.ready.Absorb(fibers); }
void FiberMain();
[[noreturn]] void Fail(Place place, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* FileName(Place place);

// ---- fiber.cc ----
void PrepareContext(Context& context, void (*entry)(), int stagger);
void SwitchContext(Context& from, Context& to, bool from_ends);
void EnterContext();  // first thing in a new fiber
size_t StackBytes();

// ---- shared_memory.cc ----
// 0xFF bytes, without memset: a sanitizer would take it for an access of whoever runs.
void FillOnes(unsigned char* data, size_t bytes);

// ---- collectives.cc, copies.cc, bulk.cc, wgmma.cc ----
// Rows lane / 4 and + 8 of a warp's A fragments [16, 16] bf16.
void WarpGatherA(const uint32_t* a, float (&rows)[2][16], Place place);
void LaneExits(Block& block, Fiber& fiber);
void CheckNoCopies(Fiber& fiber);
void CheckNoWgmmas(Fiber& fiber);
void CheckNoBulkCopies(Block& block);
bool LandBulkCopies(Block& block);  // those of one mbarrier; false: there were none

}  // namespace halflife::kernels::emu
