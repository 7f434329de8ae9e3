// mbarriers, TMA and bulk copies of contiguous bytes. A copy completes as late as possible: when no
// thread of the block can run. In random order, a quarter of the copies complete at once. Until a
// copy completes, its target holds NaN and is poisoned.
#include "tools/cuda_emulator/internal.h"

namespace halflife::kernels::emu {
namespace {

constexpr uint32_t kOnes[4] = {~0u, ~0u, ~0u, ~0u};

Mbarrier& FindMbarrier(const void* address, const char* what, Place place) {
  Block& block = *current_block;
  for (Mbarrier& barrier : block.mbarriers) {
    if (barrier.address == address) return barrier;
  }
  Fail(place, "%s on byte %u of shared memory, where no MbarrierInit was seen", what,
       SharedOffset(address));
}

// Completes the phase once all arrivals and exactly the announced bytes have come.
void Progress(Block& block, Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.pending_bytes != 0) return;
  TrackPhase(barrier.sync[barrier.phase % 4], static_cast<int>(&barrier - block.mbarriers));
  ++barrier.phase;
  ClearCell(barrier.sync[barrier.phase % 4]);
  barrier.pending = barrier.count;
  MakeReady(block, barrier.waiting);
}

// Performs the accesses of bulk copies as a separate ThreadSanitizer fiber, which is ordered after
// the issue and before the end of the barrier's phase. If the running thread made these accesses,
// it would be ordered by them, or reported for a race.
class AsEngine {
 public:
  AsEngine() {
#if HL_EMU_TSAN
    self_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(current_block->tsan_engine, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(&current_block->begin_sync);
#endif
  }
  ~AsEngine() {
#if HL_EMU_TSAN
    __tsan_switch_to_fiber(self_, __tsan_switch_to_fiber_no_sync);
#endif
  }

 private:
  [[maybe_unused]] void* self_ = nullptr;
};

// Loads 16 bytes (eight bf16 or four fp32) from (row, col). Elements outside the matrix are zero.
void ReadUnit(const TensorMap& map, int row, int col, uint32_t (&data)[4]) {
  const int halves = map.element_bytes / 2;
  for (int i = 0; i < 8; ++i) {
    const int64_t at = col + i / halves;
    uint32_t half = 0;
    if (row >= 0 && row < map.num_rows && at >= 0 && at < map.num_cols) {
      half =
          LoadForLane2(map.data + row * map.row_bytes + at * map.element_bytes + 2 * (i % halves));
    }
    data[i / 2] = i % 2 == 0 ? half : data[i / 2] | (half << 16);
  }
}

void StoreBox(const BulkCopy& copy) {
  for (int row = 0; row < copy.map.box_rows; ++row) {
    for (int unit = 0; unit < 8; ++unit) {
      uint32_t data[4];
      ReadUnit(copy.map, copy.row + row, copy.col + unit * 16 / copy.map.element_bytes, data);
      StoreForLane16(copy.smem + row * 128 + (unit ^ (row & 7)) * 16, data);
    }
  }
}
void StoreBytes(const BulkCopy& copy) {
  for (int i = 0; i < copy.bytes; i += 16) {
    uint32_t data[4];
    LoadForLane16(data, copy.source + i);
    StoreForLane16(copy.smem + i, data);
  }
}

void Land(Block& block, int index) {
  const AsEngine engine;
  SyncAcquire(&block.bulk_sync[index]);
  const BulkCopy& copy = block.bulk[index];
  ASAN_UNPOISON_MEMORY_REGION(copy.smem, static_cast<size_t>(copy.bytes));
  if (copy.source == nullptr) {
    StoreBox(copy);
  } else {
    StoreBytes(copy);
  }
  Mbarrier& barrier = FindMbarrier(copy.mbarrier, "a bulk copy's bytes", copy.place);
  Release(barrier.sync[barrier.phase % 4]);
  barrier.pending_bytes -= copy.bytes;
  block.bulk[index].mbarrier = nullptr;
  --block.num_bulk;
  Progress(block, barrier);
}

bool IsInFlight(const BulkCopy& copy) { return copy.mbarrier != nullptr; }

// Selects a copy in flight: the first, the last or a random one, according to the order of threads.
int NextToLand(Block& block) {
  int found = -1, seen = 0;
  for (int i = 0; i < kMaxBulkCopies; ++i) {
    if (!IsInFlight(block.bulk[i])) continue;
    const Order order = block.launch->order;
    ++seen;
    if (found < 0 || order == Order::kReverse ||
        (order == Order::kRandom && NextRandom(block) % static_cast<uint64_t>(seen) == 0))
      found = i;
  }
  return found;
}

// Starts a copy whose arguments have been checked.
void Issue(const BulkCopy& copy, const char* what) {
  Block& block = *current_block;
  if (copy.smem < block.dynamic || copy.smem + copy.bytes > block.statics) {
    Fail(copy.place, "%s to %p, which is not in dynamic shared memory", what,
         static_cast<const void*>(copy.smem));
  }
  const Mbarrier& barrier = FindMbarrier(copy.mbarrier, what, copy.place);
  TrackIssue(copy.mbarrier, 8, copy.place);
  TrackBulkCopy(copy.smem, copy.bytes, static_cast<int>(&barrier - block.mbarriers), copy.place);
  if (block.num_bulk == kMaxBulkCopies) {
    Fail(copy.place, "more than %d bulk copies in flight", kMaxBulkCopies);
  }
  int index = 0;
  while (IsInFlight(block.bulk[index])) ++index;
  ++block.num_bulk;
  block.bulk[index] = copy;
  for (int i = 0; i < copy.bytes; i += 16) StoreForLane16(copy.smem + i, kOnes);
  ASAN_POISON_MEMORY_REGION(copy.smem, static_cast<size_t>(copy.bytes));
  block.counts.copied_bytes += copy.bytes;
  SyncRelease(&block.bulk_sync[index]);
  if (block.launch->order == Order::kRandom && NextRandom(block) % 4 == 0) Land(block, index);
}

}  // namespace

void MbarrierInit(const void* address, int count, Place place) {
  Block& block = *current_block;
  const auto value = reinterpret_cast<uintptr_t>(address);
  if (value % 8 != 0 || address < block.dynamic || address >= block.statics + kStaticBytes) {
    Fail(place, "MbarrierInit at %p. Use 8 aligned bytes of shared memory.", address);
  }
  if (count < 1) Fail(place, "MbarrierInit for %d arrivals. Use at least 1.", count);
  Mbarrier* found = nullptr;
  for (Mbarrier& barrier : block.mbarriers) {
    if (barrier.address == address) found = &barrier;
    if (barrier.address == nullptr && found == nullptr) found = &barrier;
    if (barrier.address == nullptr) break;
  }
  if (found == nullptr) Fail(place, "more than %d mbarriers in a block", kMaxMbarriers);
  if (found->address != nullptr && found->waiting.First() >= 0) {
    Fail(place, "MbarrierInit while thread %d waits on the barrier", found->waiting.First());
  }
  TrackWrite(address, 8, place);
  const unsigned phase = found->phase;
  *found = Mbarrier{};
  found->phase = (phase + 3) / 4 * 4;  // parity 0; another object than the old phases'
  found->address = address;
  found->count = found->pending = count;
}

void MbarrierArrive(const void* address, int expected_bytes, Place place) {
  HL_EMU_ENTRY;
  Block& block = *current_block;
  Mbarrier& barrier = FindMbarrier(address, "an arrival", place);
  TrackRead(address, 8, place);
  if (barrier.pending == 0) {
    Fail(place,
         "an arrival on the mbarrier at byte %u of shared memory beyond the %d of a phase, "
         "which still waits for %lld bytes",
         SharedOffset(address), barrier.count, static_cast<long long>(barrier.pending_bytes));
  }
  Release(barrier.sync[barrier.phase % 4]);
  barrier.pending_bytes += expected_bytes;
  --barrier.pending;
  Progress(block, barrier);
}

void MbarrierWait(const void* address, uint32_t parity, Place place) {
  HL_EMU_ENTRY;
  Mbarrier& barrier = FindMbarrier(address, "a wait", place);
  TrackRead(address, 8, place);
  if (parity > 1) Fail(place, "MbarrierWait for parity %u. Use 0 or 1.", parity);
  if ((barrier.phase & 1) == parity) {
    SyncCell& sync = barrier.sync[barrier.phase % 4];
    barrier.waiting.Add(Self().linear);
    WaitHere("MbarrierWait on byte", static_cast<int>(SharedOffset(address)), place);
    Acquire(sync);
  } else {
    Acquire(barrier.sync[(barrier.phase + 3) % 4]);
  }
}

void TmaLoad2d(void* smem, const TensorMap& map, const void* address, int col, int row,
               Place place) {
  HL_EMU_ENTRY;
  if (SharedOffset(smem) % 1024 != 0) {
    Fail(place,
         "a TMA load with 128-byte swizzle to byte %u of shared memory. Use a multiple of 1024.",
         SharedOffset(smem));
  }
  if (col * map.element_bytes % 16 != 0) {
    Fail(place, "a TMA load from column %d, of %d bytes each. Start at a multiple of 16 bytes.",
         col, map.element_bytes);
  }
  BulkCopy copy;
  copy.smem = static_cast<unsigned char*>(smem);
  copy.bytes = map.box_rows * 128;
  copy.map = map;
  copy.mbarrier = address;
  copy.col = col;
  copy.row = row;
  copy.place = place;
  Issue(copy, "a TMA load");
}

void BulkLoad(void* smem, const void* source, int bytes, const void* address, Place place) {
  HL_EMU_ENTRY;
  if (SharedOffset(smem) % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0 ||
      bytes % 16 != 0 || bytes <= 0) {
    Fail(place,
         "a bulk load of %d bytes from %p to byte %u of shared memory. Use positive multiples of "
         "16 bytes.",
         bytes, source, SharedOffset(smem));
  }
  BulkCopy copy;
  copy.smem = static_cast<unsigned char*>(smem);
  copy.bytes = bytes;
  copy.source = static_cast<const unsigned char*>(source);
  copy.mbarrier = address;
  copy.place = place;
  Issue(copy, "a bulk load");
}

bool LandBulkCopies(Block& block) {
  if (block.num_bulk == 0) return false;
  const void* const mbarrier = block.bulk[NextToLand(block)].mbarrier;
  for (int i = 0; i < kMaxBulkCopies; ++i)
    if (block.bulk[i].mbarrier == mbarrier) Land(block, i);
  return true;
}

void CheckNoBulkCopies(Block& block) {
  if (block.num_bulk > 0) {
    Fail(block.bulk[NextToLand(block)].place,
         "the block ends with %d bulk copies in flight, the first from this line. Wait on their "
         "mbarrier.",
         block.num_bulk);
  }
}

void FenceProxyAsync() { TrackProxyFence(); }

}  // namespace halflife::kernels::emu
