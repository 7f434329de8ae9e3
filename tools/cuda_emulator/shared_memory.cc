// The shared memory of a block: a dynamic arena that SmemCarver divides, and a static arena.
// Poisoned gaps (red zones) separate the variables of both.
#include "tools/cuda_emulator/internal.h"

namespace halflife::kernels::emu {

__attribute__((no_sanitize("address", "undefined"))) void FillOnes(unsigned char* data,
                                                                   size_t bytes) {
  auto* const begin = reinterpret_cast<volatile unsigned char*>(data);
  size_t i = 0;
  for (; i < bytes && (reinterpret_cast<uintptr_t>(data) + i) % 8 != 0; ++i) begin[i] = 0xff;
  for (; i + 8 <= bytes; i += 8) {
    *reinterpret_cast<volatile uint64_t*>(data + i) = ~uint64_t{0};
  }
  for (; i < bytes; ++i) begin[i] = 0xff;
}

unsigned char* DynamicShared() { return current_block->dynamic; }

void* StaticSharedErased(const void* key, size_t bytes, size_t align) {
  Block& block = *current_block;
  for (int i = 0; i < block.num_statics; ++i) {
    if (block.variables[i].key == key) return block.variables[i].data;
  }
  const int size = static_cast<int>(bytes), alignment = align < 16 ? 16 : static_cast<int>(align);
  const int begin = (block.static_used + alignment - 1) / alignment * alignment;
  block.static_bytes = (block.static_bytes + alignment - 1) / alignment * alignment + size;
  // Dynamic shared memory follows at a multiple of its alignment (HL_DYNAMIC_SMEM).
  const int dynamic = block.launch->smem_bytes, unit = dynamic > 0 ? 1024 : 1;
  const int total = (block.static_bytes + unit - 1) / unit * unit + dynamic;
  if (block.num_statics == kMaxStatics || begin + size > kStaticBytes ||
      block.static_bytes > kMaxStaticBytes || total > kMaxSharedBytes) {
    Fail(Place(),
         "%d variables with %d bytes of static shared memory in addition to %d dynamic bytes. "
         "Use at most %d variables, %d static bytes (48 KiB) and %d bytes in all (227 KiB).",
         block.num_statics + 1, block.static_bytes, block.launch->smem_bytes, kMaxStatics,
         kMaxStaticBytes, kMaxSharedBytes);
  }
  StaticVariable& variable = block.variables[block.num_statics++];
  variable = {key, block.statics + begin, bytes};
  ASAN_UNPOISON_MEMORY_REGION(variable.data, bytes);
  FillOnes(variable.data, bytes);
  block.static_used = begin + size + 256;  // the gap stays poisoned
  return variable.data;
}

unsigned char* Carve(unsigned char* base, int begin, int bytes, int align, int index, Place place) {
  Block& block = *current_block;
  if (base != block.dynamic) {
    Fail(place, "a SmemCarver must begin at the start of dynamic shared memory");
  }
  if (align > 1024) Fail(place, "alignment to %d bytes. Use at most 1024.", align);
  if (bytes < 0 || begin + bytes > block.launch->smem_bytes) {
    Fail(place, "cut %d of SmemCarver ends at byte %d, but the launch asked for %d", index,
         begin + bytes, block.launch->smem_bytes);
  }
  if (index >= kMaxCuts) Fail(place, "more than %d cuts of shared memory", kMaxCuts);
  unsigned char* const data = base + begin + index * kRedZoneBytes;
  if (index < block.num_cuts) {
    const Block::Cut& cut = block.cuts[index];
    if (cut.begin != begin || cut.bytes != bytes) {
      Fail(place,
           "cut %d of SmemCarver is [%d, %d) here and was [%d, %d) in another thread, but a "
           "kernel has one layout",
           index, begin, begin + bytes, cut.begin, cut.begin + cut.bytes);
    }
    return data;
  }
  // This is the first thread to reach this cut. All bytes after it are out of bounds until they are
  // cut, too.
  block.cuts[block.num_cuts++] = {begin, bytes, place};
  ASAN_POISON_MEMORY_REGION(data + bytes, static_cast<size_t>(block.statics - (data + bytes)));
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
  FillOnes(data, static_cast<size_t>(bytes));
  return data;
}

uint32_t SharedOffset(const void* smem) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(smem) - current_block->dynamic);
}

}  // namespace halflife::kernels::emu
