// wgmma. The product is computed at the wait. At issue, the accumulators are saved and set to NaN.
// At the wait, each thread reads the tiles through their descriptors and adds its fragment of the
// product. No switch of fibers is needed.
#include "tools/cuda_emulator/internal.h"
#include "tools/cuda_emulator/swizzle.h"

namespace halflife::kernels::emu {
namespace {

constexpr int kDepth = 16;  // the K extent of one wgmma
// An emulated descriptor holds the offset in dynamic shared memory in units of 16 bytes, and a mark
// that TileDescriptor created it. The offset has 16 bits, because red zones can exceed the 14 bits
// of the device.
constexpr uint64_t kMark = uint64_t{0x5a} << 48;
constexpr uint64_t kMarkMask = uint64_t{0xff} << 48;

void SetNan(float* d) {
  for (int i = 0; i < 32; ++i) d[i] = __uint_as_float(~0u);
}

// Returns the address of eight elements (16 bytes) of a tile, `unit` units of 16 bytes after the
// start of a row.
const unsigned char* UnitAt(const Block& block, uint64_t descriptor, int row, int unit) {
  const auto begin = static_cast<uint32_t>(descriptor & 0xffff) << 4;
  return block.dynamic +
         Swizzle128Bytes(begin + static_cast<uint32_t>(row / 8 * 1024 + row % 8 * 128 + unit * 16));
}
void ReadUnit(const Block& block, uint64_t descriptor, int row, int unit, float (&out)[8]) {
  uint32_t data[4];
  LoadForLane16(data, UnitAt(block, descriptor, row, unit));
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(data[i] << 16);
    out[2 * i + 1] = __uint_as_float(data[i] & 0xffff0000u);
  }
}

// Reads columns [0, 16) of row `row`.
void ReadRow(const Block& block, uint64_t descriptor, int row, float (&out)[kDepth]) {
  for (int unit = 0; unit < 2; ++unit) {
    float part[8];
    ReadUnit(block, descriptor, row, unit, part);
    for (int i = 0; i < 8; ++i) out[8 * unit + i] = part[i];
  }
}

// Reads rows [0, 16) of columns `column` and `column` + 1, which share a unit.
void ReadColumns(const Block& block, uint64_t descriptor, int column, float (&out)[2][kDepth]) {
  for (int row = 0; row < kDepth; ++row) {
    float part[8];
    ReadUnit(block, descriptor, row, column / 8, part);
    out[0][row] = part[column % 8];
    out[1][row] = part[column % 8 + 1];
  }
}

// Adds the thread's fragment of the product to d.
void AddFragment(Block& block, const Fiber& self, const Wgmma& op) {
  const int thread = self.linear % 128;
  float a[2][kDepth];
  if (op.a_in_registers) {
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < kDepth; ++k) a[i][k] = op.a[i][k];
    }
  } else {
    const int first = WgmmaD(thread, 0).row;
    ReadRow(block, op.desc_a, first, a[0]);
    ReadRow(block, op.desc_a, first + 8, a[1]);
  }
  // The thread computes columns 8 j + 2 t and 8 j + 2 t + 1. Every fourth thread reads the same
  // rows of B.
  for (int j = 0; j < 8; ++j) {
    float b[2][kDepth];
    const int column = WgmmaD(thread, 4 * j).col;
    if (op.b_of_rows) {
      ReadColumns(block, op.desc_b, column, b);
    } else {
      ReadRow(block, op.desc_b, column, b[0]);
      ReadRow(block, op.desc_b, column + 1, b[1]);
    }
    float sums[4] = {};  // index: 2 h + c
    for (int k = 0; k < kDepth; ++k) {
      for (int i = 0; i < 4; ++i) sums[i] += a[i / 2][k] * b[i % 2][k];
    }
    for (int i = 0; i < 4; ++i) op.accumulator[4 * j + i] += sums[i];
  }
}

void CheckDescriptor(const Block& block, uint64_t descriptor, bool of_rows, Place place) {
  if ((descriptor & kMarkMask) != kMark) {
    Fail(place, "wgmma with a descriptor that TileDescriptor did not create");
  }
  const uint32_t begin = static_cast<uint32_t>(descriptor & 0xffff) << 4;
  if (of_rows && begin % 1024 != 0) {
    Fail(place,
         "wgmma on rows from byte %u of 1024. Call AdvanceTile with a multiple of 1024 (8 rows).",
         begin % 1024);
  }
  if (begin % 1024 > 128 - 32 || begin % 32 != 0) {
    Fail(place,
         "wgmma on columns from byte %u of a 128-byte row. Call AdvanceTile with 0, 32, 64 or 96.",
         begin % 1024);
  }
  const int bytes = of_rows ? kDepth * 128 : 8192;
  if (static_cast<int>(begin / 1024 * 1024) + bytes > block.statics - block.dynamic) {
    Fail(place, "wgmma on a tile that begins at byte %u, beyond shared memory", begin);
  }
}

// Fails if the descriptors differ between threads of the warpgroup. `desc_a` is 0 for registers.
void CompareDescriptors(Block& block, Fiber& self, uint64_t desc_a, uint64_t desc_b, Place place) {
  const uint32_t number = ++self.issued_wgmmas;
  WgmmaDescriptors& of_group = block.wgmmas[self.linear / 128][number % kComparedWgmmas];
  if (of_group.number > number) return;  // another thread is far ahead
  if (of_group.number < number) of_group = {number, desc_a, desc_b};
  if (of_group.a == desc_a && of_group.b == desc_b) return;
  Fail(place, "wgmma with descriptors that differ between the threads of the warpgroup");
}

// Checks the registers that an operand of a wgmma is in.
void CheckRegisters(const void* registers, int bytes, const char* what, Place place) {
  if (!HaveChanged(registers, bytes)) return;
  Fail(place,
       "wgmma with %s that have changed since the last WgmmaFence(). Call WgmmaFence() after the "
       "change.",
       what);
}

// `a`: registers; null: `desc_a` is a descriptor.
Wgmma& Issue(float* d, const uint32_t* a, uint64_t desc_a, uint64_t desc_b, bool b_of_rows,
             Place place) {
  Block& block = *current_block;
  Fiber& self = Self();
  if ((self.linear / 128 + 1) * 128 > block.num_threads) {
    Fail(place, "wgmma in a warpgroup that ends at thread %d. Use a multiple of 128 threads.",
         block.num_threads);
  }
  if (!self.wgmma_fenced) {
    Fail(place, "wgmma without WgmmaFence() since the last WgmmaWait. Call WgmmaFence() first.");
  }
  CheckDescriptor(block, desc_b, b_of_rows, place);
  CompareDescriptors(block, self, desc_a, desc_b, place);
  if (self.num_wgmmas == kMaxWgmmas) {
    Fail(place, "more than %d wgmmas in flight in one thread. Call WgmmaWait earlier.", kMaxWgmmas);
  }
  if (self.linear % 128 == 0) ++block.counts.wgmma;
  if (a != nullptr) CheckRegisters(a, 16, "operands", place);
  bool first = true;
  for (int i = 0; i < self.num_wgmmas; ++i) first &= self.wgmmas[i].accumulator != d;
  Wgmma& op = self.wgmmas[self.num_wgmmas++];
  op.accumulator = d;
  op.desc_b = desc_b;
  op.b_of_rows = b_of_rows;
  op.place = place;
  op.group = self.wgmma_group;
  op.first = first;
  op.registers = a;
  op.a_in_registers = a != nullptr;
  for (int i = 0; i < 4; ++i) op.saved_a[i] = a == nullptr ? 0 : a[i];
  // The warpgroup's 128 threads share the units of an operand.
  const int thread = self.linear % 128;
  op.unit_b = UnitAt(block, desc_b, b_of_rows ? thread / 8 : thread / 2,
                     b_of_rows ? thread % 8 : thread % 2);
  op.writers_b = TrackIssue(op.unit_b, 16, place);
  op.unit_a = nullptr;
  if (first) {
    CheckRegisters(d, 32 * 4, "accumulators", place);
    for (int i = 0; i < 32; ++i) op.saved[i] = d[i];
    SetNan(d);
  }
  return op;
}

void Complete(Block& block, Fiber& self, int index) {
  Wgmma& op = self.wgmmas[index];
  float* const d = op.accumulator;
  TrackCompletion(op.unit_b, op.writers_b, op.place);
  if (op.unit_a != nullptr) TrackCompletion(op.unit_a, op.writers_a, op.place);
  for (int i = 0; op.a_in_registers && i < 4; ++i) {
    if (op.registers[i] != op.saved_a[i]) {
      Fail(op.place, "the operands of this wgmma have changed before its WgmmaWait");
    }
  }
  if (op.first) {
    for (int i = 0; i < 32; ++i) {
      if (__float_as_uint(d[i]) != ~0u) {
        Fail(op.place, "the accumulators of this wgmma have changed before its WgmmaWait");
      }
    }
    for (int i = 0; i < 32; ++i) d[i] = op.saved[i];
  }
  AddFragment(block, self, op);
  // A later wgmma of the chain is still in flight, so the accumulators become unreadable again.
  for (int i = index + 1; i < self.num_wgmmas; ++i) {
    if (self.wgmmas[i].accumulator != d) continue;
    self.wgmmas[i].first = true;
    for (int j = 0; j < 32; ++j) self.wgmmas[i].saved[j] = d[j];
    SetNan(d);
    return;
  }
}

}  // namespace

uint64_t TileDescriptor(const void* smem, Place place) {
  Block& block = *current_block;
  if (smem < block.dynamic || smem >= block.statics || SharedOffset(smem) % 1024 != 0) {
    Fail(place,
         "TileDescriptor of byte %u of shared memory. Use a multiple of 1024 in dynamic shared "
         "memory.",
         SharedOffset(smem));
  }
  return kMark | (SharedOffset(smem) >> 4);
}

void WgmmaFence() {
  Self().wgmma_fenced = true;
  TrackWgmmaFence();
}

void WgmmaCommit() { ++Self().wgmma_group; }

void WgmmaShared(float* d, uint64_t desc_a, uint64_t desc_b, Place place) {
  HL_EMU_ENTRY;
  CheckDescriptor(*current_block, desc_a, /*of_rows=*/false, place);
  Wgmma& op = Issue(d, /*a=*/nullptr, desc_a, desc_b, /*b_of_rows=*/false, place);
  op.desc_a = desc_a;
  const int thread = Self().linear % 128;
  op.unit_a = UnitAt(*current_block, desc_a, thread / 2, thread % 2);
  op.writers_a = TrackIssue(op.unit_a, 16, place);
}

void WgmmaRegisters(float* d, const uint32_t* a, uint64_t desc_b, Place place) {
  HL_EMU_ENTRY;
  Wgmma& op = Issue(d, a, /*desc_a=*/0, desc_b, /*b_of_rows=*/false, place);
  WarpGatherA(a, op.a, place);
}

void WgmmaRegistersOfRows(float* d, const uint32_t* a, uint64_t desc_b, Place place) {
  HL_EMU_ENTRY;
  Wgmma& op = Issue(d, a, /*desc_a=*/0, desc_b, /*b_of_rows=*/true, place);
  WarpGatherA(a, op.a, place);
}

void WgmmaWait(int pending, Place) {
  HL_EMU_ENTRY;
  Block& block = *current_block;
  Fiber& self = Self();
  int done = 0;
  while (done < self.num_wgmmas && self.wgmmas[done].group < self.wgmma_group - pending) {
    Complete(block, self, done++);
  }
  for (int i = done; i < self.num_wgmmas; ++i) {
    Wgmma& to = self.wgmmas[i - done];
    const Wgmma& from = self.wgmmas[i];
    to.accumulator = from.accumulator;
    to.desc_a = from.desc_a;
    to.desc_b = from.desc_b;
    to.place = from.place;
    to.group = from.group;
    to.a_in_registers = from.a_in_registers;
    to.b_of_rows = from.b_of_rows;
    to.first = from.first;
    to.registers = from.registers;
    to.unit_a = from.unit_a;
    to.unit_b = from.unit_b;
    to.writers_a = from.writers_a;
    to.writers_b = from.writers_b;
    for (int j = 0; j < 4; ++j) to.saved_a[j] = from.saved_a[j];
    for (int j = 0; j < 32; ++j) to.saved[j] = from.saved[j];
    for (int j = 0; j < 32; ++j) to.a[j / 16][j % 16] = from.a[j / 16][j % 16];
  }
  self.num_wgmmas -= done;
  if (self.num_wgmmas == 0) self.wgmma_fenced = false;
}

void CheckNoWgmmas(Fiber& fiber) {
  if (fiber.num_wgmmas > 0) {
    Fail(fiber.wgmmas[0].place,
         "the thread ends with %d wgmmas in flight, the first from this line. Call "
         "WgmmaCommit and WgmmaWait<0> before the end.",
         fiber.num_wgmmas);
  }
}

}  // namespace halflife::kernels::emu
