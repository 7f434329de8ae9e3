// cp.async, and the arithmetic of single instructions. A copy completes as late as the ISA allows:
// from its issue to the wait that covers it, its target holds NaN and is poisoned. In random order,
// a quarter of the copies complete at once, which the ISA also allows.
#include <cmath>

#include "core/bfloat16.h"
#include "tools/cuda_emulator/internal.h"

namespace halflife::kernels::emu {
namespace {

constexpr uint32_t kZeros[4] = {};
constexpr uint32_t kOnes[4] = {~0u, ~0u, ~0u, ~0u};

void Load(uint32_t (&to)[4], const void* from, int bytes) {
  if (bytes == 16) {
    LoadForLane16(to, from);
  } else {
    to[0] = LoadForLane4(from);
  }
}
void Store(void* to, const uint32_t (&from)[4], int bytes) {
  if (bytes == 16) {
    StoreForLane16(to, from);
  } else {
    StoreForLane4(to, from[0]);
  }
}

void Land(const Copy& copy) {
  uint32_t data[4] = {};
  if (copy.valid) Load(data, copy.global, copy.bytes);
  ASAN_UNPOISON_MEMORY_REGION(copy.smem, copy.bytes);
  TrackWrite(copy.smem, copy.bytes, copy.place);
  Store(copy.smem, copy.valid ? data : kZeros, copy.bytes);
}

}  // namespace

void CopyAsync(void* smem, const void* global, int bytes, bool valid, Place place) {
  HL_EMU_ENTRY;
  Block& block = *current_block;
  Fiber& self = Self();
  if (smem < block.dynamic || smem >= block.statics + kStaticBytes) {
    Fail(place, "cp.async to %p, which is not in shared memory", smem);
  }
  const auto size = static_cast<uintptr_t>(bytes);
  if (reinterpret_cast<uintptr_t>(smem) % size != 0 ||
      (valid && reinterpret_cast<uintptr_t>(global) % size != 0)) {
    Fail(place,
         "cp.async of %d bytes from %p to byte %u of shared memory. Align both addresses to a "
         "multiple of %d.",
         bytes, global, SharedOffset(smem), bytes);
  }
  if (self.num_copies == kMaxCopies) {
    Fail(place, "more than %d copies in flight in one thread. Call CpAsyncWait earlier.",
         kMaxCopies);
  }
  uint32_t probe[4];
  if (valid) Load(probe, global, bytes);  // reports a bad address at this line
  if (valid) block.counts.copied_bytes += bytes;
  TrackWrite(smem, bytes, place);
  Store(smem, kOnes, bytes);
  const Copy copy = {smem, global, place, self.copy_group, bytes, valid};
  if (block.launch->order == Order::kRandom && NextRandom(block) % 4 == 0) {
    Land(copy);
    return;
  }
  ASAN_POISON_MEMORY_REGION(smem, bytes);
  self.copies[self.num_copies++] = copy;
}

void CopyAsyncCommit() { ++Self().copy_group; }

void CopyAsyncWait(int pending) {
  HL_EMU_ENTRY;
  Fiber& self = Self();
  int kept = 0;
  for (int i = 0; i < self.num_copies; ++i) {
    if (self.copies[i].group < self.copy_group - pending) {
      Land(self.copies[i]);
    } else {
      self.copies[kept++] = self.copies[i];
    }
  }
  self.num_copies = kept;
}

void CheckNoCopies(Fiber& fiber) {
  if (fiber.num_copies > 0) {
    Fail(fiber.copies[0].place,
         "the thread ends with %d cp.async in flight, the first from this line. Call "
         "CpAsyncCommit and CpAsyncWait<0> before the end.",
         fiber.num_copies);
  }
}

uint32_t Bf16Bits(float x) {
  return x != x ? 0x7fff : RoundToBf16(x).bits;  // the only NaN that the device produces
}

uint32_t Tf32Bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
}

float Exp2Flushed(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

}  // namespace halflife::kernels::emu
