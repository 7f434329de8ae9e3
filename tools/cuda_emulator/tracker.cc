// Finds races and missing proxy fences in shared memory, in the kind without a sanitizer.
//
// Kernels of that kind are compiled with -fsanitize=thread, which calls a function before each
// access to memory. Instead of ThreadSanitizer's functions, the program links those at the end of
// this file. They ignore all memory but shared memory and, for wgmma, the thread's stack, which
// holds its registers.
//
// The method is that of FastTrack (Flanagan and Freund, PLDI 2009). Each thread has a clock, which
// advances when it releases something to others: at a barrier, at an arrival, at __syncwarp. Each
// two bytes of shared memory have the clock and the number of the last thread that stored there,
// and of up to three that loaded. A thread's view has a clock for every other thread: accesses up
// to it precede what the thread does next. All other accesses are unordered. They are a race, in
// whichever order the emulator ran them. An mbarrier counts as the thread that stores what bulk
// copies load.
//
// A view has a second clock for every thread, the fenced one: up to it, the thread's ordinary
// stores are visible to the async proxy (wgmma, TMA), since the thread itself has called
// FenceProxyAsync after them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/error.h"
#include "tools/cuda_emulator/internal.h"

#ifndef HL_EMU_TRACK
#define HL_EMU_TRACK 0
#endif

#if HL_EMU_TRACK

#include <dlfcn.h>

#if defined(__x86_64__)
#define HL_EMU_JOIN __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define HL_EMU_JOIN
#endif

namespace halflife::kernels::emu {

// Clocks of all entities: the threads of a block, then its mbarriers.
struct Snapshot {
  int references = 0;
  uint64_t id = 0;                    // differs between all uses of the memory
  std::unique_ptr<int32_t[]> clocks;  // seen [entities], then fenced [entities]
};

namespace {

constexpr int kClockBits = 21;
constexpr int32_t kMaxClock = (1 << kClockBits) - 1;
constexpr int kCellBytes = 2;
constexpr size_t kArenaBytes = kDynamicBytes + kStaticBytes;

// An access: the entity, and its clock.
struct Epoch {
  uint32_t bits = 0;

  int entity() const { return static_cast<int>(bits >> kClockBits); }
  int32_t clock() const { return static_cast<int32_t>(bits & kMaxClock); }
  bool operator==(const Epoch&) const = default;
};
Epoch MakeEpoch(int entity, int32_t clock) {
  return {static_cast<uint32_t>(entity) << kClockBits | static_cast<uint32_t>(clock)};
}

struct Cell {
  Epoch write, reads[3];
  bool operator==(const Cell&) const = default;
};

// The source line of an instruction, or the address of the code of an ordinary access.
struct Where {
  Place place;
  const void* code = nullptr;
};
void Describe(const Where& where, char* text, size_t size) {
  if (where.code == nullptr) {
    snprintf(text, size, "%s:%u: ", FileName(where.place), where.place.line());
    return;
  }
  Dl_info info = {};
  dladdr(where.code, &info);
  snprintf(text, size, "[addr2line -Cfe %s 0x%zx] ", info.dli_fname,
           static_cast<size_t>(static_cast<const char*>(where.code) -
                               static_cast<const char*>(info.dli_fbase)) -
               1);
}

HL_EMU_JOIN void Join(int32_t* to, const int32_t* from, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

}  // namespace

class Tracker {
 public:
  explicit Tracker(int num_threads)
      : num_threads_(num_threads),
        cells_(static_cast<Cell*>(calloc(kArenaBytes / kCellBytes, sizeof(Cell))), &free) {}

  // Starts a block. Clocks continue from block to block, so the cells need not be cleared.
  void Start(Block& block) {
    for (const std::unique_ptr<Snapshot>& snapshot : all_) snapshot->references = 0;
    unused_.clear();
    for (const std::unique_ptr<Snapshot>& snapshot : all_) unused_.push_back(snapshot.get());
    if (last_clock_ > kMaxClock / 2) {
      std::fill_n(cells_.get(), kArenaBytes / kCellBytes, Cell{});
      last_clock_ = 0;
    }
    Snapshot* const before = Take();
    std::fill_n(before->clocks.get(), 2 * entities(), last_clock_);
    for (int i = 0; i < num_threads_; ++i) {
      Fiber& fiber = block.fibers[i];
      Assign(fiber.view, before);
      fiber.clock = last_clock_ + 1;
      fiber.fenced = last_clock_;
    }
    for (int32_t& clock : mbarriers_) clock = last_clock_ + 1;
    ++last_clock_;
  }

  void Clear(SyncCell& cell) {
    for (Snapshot** snapshot : {&cell.clocks, &cell.joined, &cell.acquired_by, &cell.acquired})
      Assign(*snapshot, nullptr);
  }

  void Release(SyncCell& cell) {
    Fiber& self = Self();
    if (cell.clocks == nullptr || cell.clocks->references > 1)
      Assign(cell.clocks, Copy(cell.clocks == nullptr ? self.view : cell.clocks));
    if (cell.joined != self.view) {
      Join(cell.clocks->clocks.get(), self.view->clocks.get(), 2 * entities());
      Assign(cell.joined, self.view);
    }
    cell.clocks->clocks[static_cast<size_t>(self.linear)] = self.clock;
    cell.clocks->clocks[static_cast<size_t>(entities() + self.linear)] = self.fenced;
    self.released = cell.clocks->id;
    Advance(self.clock);
  }

  void Acquire(SyncCell& cell) {
    Fiber& self = Self();
    if (cell.clocks == nullptr) return;
    if (self.released != cell.clocks->id) {
      if (cell.acquired_by != self.view) {
        Snapshot* const both = Copy(self.view);
        Join(both->clocks.get(), cell.clocks->clocks.get(), 2 * entities());
        Assign(cell.acquired_by, self.view);
        Assign(cell.acquired, both);
      }
      Assign(self.view, cell.acquired);
    } else {
      Assign(self.view, cell.clocks);
    }
    self.released = 0;
  }

  void Fence() {
    Fiber& self = Self();
    self.fenced = self.clock;
    Advance(self.clock);
  }

  // Checks a read. Most cells of an access are equal, so a cell is checked only if it differs from
  // the one before it. A cell that the thread has read since its last release is not checked again,
  // because a store after that read would have removed the read from the cell.
  void Read(size_t at, int bytes, const Where& where) {
    Fiber& self = Self();
    const Epoch own = MakeEpoch(self.linear, self.clock);
    Cell before, after = {{}, {own}};
    for (Cell& cell : Cells(at, bytes)) {
      if (cell.reads[0] == own || cell.reads[1] == own || cell.reads[2] == own) continue;
      if (!(cell == before)) {
        if (!IsSeen(self, cell.write)) ReportRace("a load", &cell, cell.write, "stored", where);
        before = after = cell;
        NoteRead(self, after, own);
      }
      cell = after;
    }
  }

  void Write(size_t at, int bytes, const Where& where) {
    Fiber& self = Self();
    const Epoch own = MakeEpoch(self.linear, self.clock);
    Cell before;
    for (Cell& cell : Cells(at, bytes)) {
      if (!(cell == before)) {
        if (!IsSeen(self, cell.write)) ReportRace("a store", &cell, cell.write, "stored", where);
        CheckReads(self, cell, "a store", where);
        before = cell;
      }
      cell = {own, {}};
    }
  }

  void BulkCopy(size_t at, int bytes, int mbarrier, const Where& where) {
    Fiber& self = Self();
    const int32_t clock = mbarriers_[mbarrier];
    const Epoch own = MakeEpoch(num_threads_ + mbarrier, clock);
    for (Cell& cell : Cells(at, bytes)) {
      CheckVisible(self, cell, "a bulk copy", where);
      CheckReads(self, cell, "a bulk copy", where);
      cell = {own, {}};
    }
  }
  void Phase(SyncCell& cell, int mbarrier) {
    if (cell.clocks != nullptr) {
      const auto entity = static_cast<size_t>(num_threads_ + mbarrier);
      cell.clocks->clocks[entity] = mbarriers_[mbarrier];
      cell.clocks->clocks[static_cast<size_t>(entities()) + entity] = mbarriers_[mbarrier];
    }
    Advance(mbarriers_[mbarrier]);
  }

  uint64_t Issue(size_t at, int bytes, const Where& where) {
    uint64_t writers = 0;
    for (const Cell& cell : Cells(at, bytes)) {
      CheckVisible(Self(), cell, "a read by wgmma or TMA", where);
      writers = writers * 0x9e3779b97f4a7c15u + cell.write.bits;
    }
    return writers;
  }
  void Completion(size_t at, uint64_t issued, const Where& where) {
    Fiber& self = Self();
    uint64_t writers = 0;
    for (Cell& cell : Cells(at, 16)) {
      writers = writers * 0x9e3779b97f4a7c15u + cell.write.bits;
      NoteRead(self, cell, MakeEpoch(self.linear, self.clock));
    }
    if (writers != issued)
      Report("wgmma", &Cells(at, 16).from[0], "changed before its WgmmaWait", where);
  }

 private:
  struct Range {
    Cell *from, *to;
    Cell* begin() const { return from; }
    Cell* end() const { return to; }
  };
  Range Cells(size_t at, int bytes) const {
    return {cells_.get() + at / kCellBytes,
            cells_.get() + (at + static_cast<size_t>(bytes) + kCellBytes - 1) / kCellBytes};
  }

  int entities() const { return num_threads_ + kMaxMbarriers; }

  static int32_t ClockOf(const Fiber& self, int entity, int offset, int32_t own) {
    return entity == self.linear ? own : self.view->clocks[static_cast<size_t>(offset + entity)];
  }
  static bool IsSeen(const Fiber& self, Epoch access) {
    return access.clock() <= ClockOf(self, access.entity(), 0, self.clock);
  }
  bool IsFenced(const Fiber& self, Epoch access) const {
    return access.clock() <= ClockOf(self, access.entity(), entities(), self.fenced);
  }

  void NoteRead(const Fiber& self, Cell& cell, Epoch own) {
    Epoch* slot = nullptr;
    for (Epoch& read : cell.reads) {
      if (read == own) return;
      if (slot == nullptr && (read.entity() == own.entity() || IsSeen(self, read))) slot = &read;
    }
    if (slot == nullptr) slot = &cell.reads[next_slot_++ % 3];
    *slot = own;
  }
  void CheckReads(const Fiber& self, const Cell& cell, const char* what, const Where& where) {
    for (const Epoch& read : cell.reads)
      if (!IsSeen(self, read)) ReportRace(what, &cell, read, "loaded", where);
  }
  void CheckVisible(const Fiber& self, const Cell& cell, const char* what, const Where& where) {
    if (!IsSeen(self, cell.write)) ReportRace(what, &cell, cell.write, "stored", where);
    if (IsFenced(self, cell.write)) return;
    char text[160];
    snprintf(text, sizeof(text),
             "which thread %d has stored since its last proxy fence. Call FenceProxyAsync() in the "
             "writing threads before the barrier",
             cell.write.entity());
    Report(what, &cell, text, where);
  }

  [[noreturn]] void ReportRace(const char* what, const Cell* cell, Epoch access, const char* verb,
                               const Where& where) {
    char text[160];
    if (access.entity() < num_threads_) {
      snprintf(text, sizeof(text), "which thread %d has %s, and no barrier orders the two",
               access.entity(), verb);
    } else {
      snprintf(text, sizeof(text),
               "which a bulk copy has stored, and the thread has not waited for its mbarrier");
    }
    Report(what, cell, text, where);
  }
  [[noreturn]] void Report(const char* what, const Cell* cell, const char* text,
                           const Where& where) {
    const Block& block = *current_block;
    const auto at = static_cast<int>(cell - cells_.get()) * kCellBytes;
    char prefix[512];
    Describe(where, prefix, sizeof(prefix));
    for (int i = 0; i < block.num_cuts; ++i) {
      const Block::Cut& cut = block.cuts[i];
      const int begin = cut.begin + i * kRedZoneBytes;
      if (at < begin || at >= begin + cut.bytes) continue;
      Fail(cut.place, "%s%s of byte %d of this array in shared memory, %s.", prefix, what,
           at - begin, text);
    }
    const bool is_static = at >= kDynamicBytes;
    Fail(Place(), "%s%s of byte %d of %s shared memory, %s.", prefix, what,
         is_static ? at - kDynamicBytes : at, is_static ? "static" : "dynamic", text);
  }

  static void Advance(int32_t& clock) {
    if (clock < kMaxClock) ++clock;
    int32_t& last = current_block->tracker->last_clock_;
    if (clock > last) last = clock;
  }

  Snapshot* Take() {
    if (unused_.empty()) {
      all_.push_back(std::make_unique<Snapshot>());
      all_.back()->clocks = std::make_unique<int32_t[]>(static_cast<size_t>(2 * entities()));
      unused_.push_back(all_.back().get());
    }
    Snapshot* const snapshot = unused_.back();
    unused_.pop_back();
    snapshot->id = ++last_id_;
    return snapshot;
  }
  Snapshot* Copy(const Snapshot* from) {
    Snapshot* const snapshot = Take();
    std::copy_n(from->clocks.get(), 2 * entities(), snapshot->clocks.get());
    return snapshot;
  }
  void Assign(Snapshot*& to, Snapshot* from) {
    if (from != nullptr) ++from->references;
    if (to != nullptr && --to->references == 0) unused_.push_back(to);
    to = from;
  }

  int num_threads_;
  std::unique_ptr<Cell[], decltype(&free)> cells_;
  std::vector<std::unique_ptr<Snapshot>> all_;
  std::vector<Snapshot*> unused_;
  uint64_t last_id_ = 0;
  int32_t last_clock_ = 0;
  int32_t mbarriers_[kMaxMbarriers] = {};
  unsigned next_slot_ = 0;
};

namespace {

size_t OffsetOf(const void* smem) {
  return static_cast<size_t>(static_cast<const unsigned char*>(smem) - current_block->dynamic);
}
}  // namespace

bool TracksAccesses() {
  const char* const wanted = getenv("HL_EMU_TRACK");
  return wanted == nullptr || strcmp(wanted, "0") != 0;
}
Tracker* MakeTracker(int num_threads) {
  return TracksAccesses() ? new Tracker(num_threads) : nullptr;
}
void DestroyTracker(Tracker* tracker) { delete tracker; }
void StartTracking(Block& block) {
  if (block.tracker != nullptr) block.tracker->Start(block);
}
void ClearCell(SyncCell& cell) {
  if (Tracker* const tracker = current_block->tracker) tracker->Clear(cell);
}
void TrackRelease(SyncCell& cell) {
  if (Tracker* const tracker = current_block->tracker) tracker->Release(cell);
}
void TrackAcquire(SyncCell& cell) {
  if (Tracker* const tracker = current_block->tracker) tracker->Acquire(cell);
}
void TrackRead(const void* smem, int bytes, Place place) {
  if (Tracker* const tracker = current_block->tracker)
    tracker->Read(OffsetOf(smem), bytes, {place});
}
void TrackWrite(const void* smem, int bytes, Place place) {
  if (Tracker* const tracker = current_block->tracker)
    tracker->Write(OffsetOf(smem), bytes, {place});
}
void TrackProxyFence() {
  if (Tracker* const tracker = current_block->tracker) tracker->Fence();
}
void TrackBulkCopy(const void* smem, int bytes, int mbarrier, Place place) {
  if (Tracker* const tracker = current_block->tracker)
    tracker->BulkCopy(OffsetOf(smem), bytes, mbarrier, {place});
}
void TrackPhase(SyncCell& cell, int mbarrier) {
  if (Tracker* const tracker = current_block->tracker) tracker->Phase(cell, mbarrier);
}
uint64_t TrackIssue(const void* smem, int bytes, Place place) {
  Tracker* const tracker = current_block->tracker;
  return tracker == nullptr ? 0 : tracker->Issue(OffsetOf(smem), bytes, {place});
}
void TrackCompletion(const void* unit, uint64_t writers, Place place) {
  if (Tracker* const tracker = current_block->tracker)
    tracker->Completion(OffsetOf(unit), writers, {place});
}

// ---- registers ----

void TrackWgmmaFence() {
  if (current_block->tracker == nullptr) return;
  Fiber& self = Self();
  self.uses_wgmma = true;
  for (size_t i = self.first_changed; i < self.end_changed; ++i) self.changed[i] = 0;
  self.first_changed = self.end_changed = 0;
}

namespace {

// Calls visit(word of Fiber::changed, mask of its bits) for the words of an access to the stack.
template <typename Visit>
void VisitChanged(const Fiber& self, const void* address, size_t bytes, const Visit& visit) {
  const size_t at = static_cast<size_t>(static_cast<const unsigned char*>(address) -
                                        static_cast<unsigned char*>(self.stack_bottom));
  for (size_t i = at / 4; i < (at + bytes + 3) / 4; ++i) visit(i / 64, uint64_t{1} << (i % 64));
}

}  // namespace

bool HaveChanged(const void* registers, int bytes) {
  const Fiber& self = Self();
  if (current_block->tracker == nullptr) return false;
  bool any = false;
  VisitChanged(self, registers, static_cast<size_t>(bytes),
               [&](size_t word, uint64_t mask) { any |= (self.changed[word] & mask) != 0; });
  return any;
}

namespace {

void NoteChanged(Fiber& self, const void* address, size_t bytes) {
  const auto at = static_cast<size_t>(static_cast<const unsigned char*>(address) -
                                      static_cast<unsigned char*>(self.stack_bottom));
  if (at >= self.stack_bytes) return;
  VisitChanged(self, address, bytes, [&](size_t word, uint64_t mask) {
    self.changed[word] |= mask;
    if (self.end_changed == 0 || word < self.first_changed) self.first_changed = word;
    if (word >= self.end_changed) self.end_changed = word + 1;
  });
}

// ---- the accesses of a kernel ----

template <bool kWrite>
__attribute__((noinline)) void OnSharedAccess(size_t at, size_t bytes, const void* caller) {
  Tracker& tracker = *current_block->tracker;
  if (kWrite) {
    tracker.Write(at, static_cast<int>(bytes), {Place(), caller});
  } else {
    tracker.Read(at, static_cast<int>(bytes), {Place(), caller});
  }
}

template <bool kWrite>
inline void OnAccess(const void* address, size_t bytes, const void* caller) {
  Block* const block = current_block;
  if (block == nullptr || block->tracker == nullptr) return;
  const size_t at = OffsetOf(address);
  if (at < kArenaBytes) {
    OnSharedAccess<kWrite>(at, bytes, caller);
  } else if (kWrite && block->running->uses_wgmma) {
    NoteChanged(*block->running, address, bytes);
  }
}

}  // namespace
}  // namespace halflife::kernels::emu

// The functions that -fsanitize=thread calls.
extern "C" {

void __tsan_init() {}

#define HL_EMU_ACCESS(name, bytes)                                                        \
  void __tsan_read##name(void* address) {                                                 \
    halflife::kernels::emu::OnAccess<false>(address, bytes, __builtin_return_address(0)); \
  }                                                                                       \
  void __tsan_write##name(void* address) {                                                \
    halflife::kernels::emu::OnAccess<true>(address, bytes, __builtin_return_address(0));  \
  }                                                                                       \
  void __tsan_unaligned_read##name(void* address) {                                       \
    halflife::kernels::emu::OnAccess<false>(address, bytes, __builtin_return_address(0)); \
  }                                                                                       \
  void __tsan_unaligned_write##name(void* address) {                                      \
    halflife::kernels::emu::OnAccess<true>(address, bytes, __builtin_return_address(0));  \
  }
HL_EMU_ACCESS(1, 1)
HL_EMU_ACCESS(2, 2)
HL_EMU_ACCESS(4, 4)
HL_EMU_ACCESS(8, 8)
HL_EMU_ACCESS(16, 16)
#undef HL_EMU_ACCESS
void __tsan_read_range(void* address, unsigned long bytes) {
  halflife::kernels::emu::OnAccess<false>(address, bytes, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  halflife::kernels::emu::OnAccess<true>(address, bytes, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}

// Atomic operations are not tracked.
#define HL_EMU_ATOMIC(bits, type)                                                                 \
  type __tsan_atomic##bits##_load(const volatile type* at, int) {                                 \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                               \
  void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                          \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                \
  }                                                                                               \
  type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {                       \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                               \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type value, int) {                      \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                       \
  }                                                                                               \
  type __tsan_atomic##bits##_fetch_sub(volatile type* at, type value, int) {                      \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                       \
  }                                                                                               \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected,           \
                                                     type value, int, int) {                      \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,              \
                                       __ATOMIC_SEQ_CST);                                         \
  }                                                                                               \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected, type value, \
                                                   int, int) {                                    \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,              \
                                       __ATOMIC_SEQ_CST);                                         \
  }
HL_EMU_ATOMIC(8, unsigned char)
HL_EMU_ATOMIC(32, unsigned)
HL_EMU_ATOMIC(64, unsigned long)
#undef HL_EMU_ATOMIC
void __tsan_atomic_thread_fence(int) { __sync_synchronize(); }

// -fsanitize=alignment calls this for an access that is not aligned as its type requires.
struct UbsanMismatch {
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char log2_alignment, kind;
};
[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(UbsanMismatch* data, void* address) {
  using namespace halflife::kernels::emu;
  const char* const slash = strrchr(data->file, '/');
  const char* const file = slash == nullptr ? data->file : slash + 1;
  if (current_block == nullptr) {
    fprintf(stderr, "%s:%u: an access to %p, which is not aligned to %d bytes.\n", file, data->line,
            address, 1 << data->log2_alignment);
    abort();
  }
  Fail(Place(), "%s:%u: an access to %p. Align it to %d bytes, as its type requires.", file,
       data->line, address, 1 << data->log2_alignment);
}

}  // extern "C"

#else  // HL_EMU_TRACK

namespace halflife::kernels::emu {

bool TracksAccesses() { return false; }
Tracker* MakeTracker(int) { return nullptr; }
void DestroyTracker(Tracker*) {}
void StartTracking(Block&) {}
void ClearCell(SyncCell&) {}
void TrackRelease(SyncCell&) {}
void TrackAcquire(SyncCell&) {}
void TrackRead(const void*, int, Place) {}
void TrackWrite(const void*, int, Place) {}
void TrackProxyFence() {}
void TrackBulkCopy(const void*, int, int, Place) {}
void TrackPhase(SyncCell&, int) {}
uint64_t TrackIssue(const void*, int, Place) { return 0; }
void TrackCompletion(const void*, uint64_t, Place) {}
void TrackWgmmaFence() {}
bool HaveChanged(const void*, int) { return false; }

}  // namespace halflife::kernels::emu

#endif  // HL_EMU_TRACK
