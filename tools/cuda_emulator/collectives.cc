// Block barriers and warp collectives. In a collective, each lane stores pointers to its operands
// and waits. The last lane to arrive does the work of all lanes, writes the results through their
// pointers and continues.
#include <bit>

#include "tools/cuda_emulator/internal.h"

namespace halflife::kernels::emu {

// ---- barriers ----

namespace {

// Counts the arrival of one thread, and completes the phase once `expected` threads have arrived.
// The caller waits if it must.
bool Arrive(Block& block, Barrier& barrier) {
  Release(*barrier.sync.Current());
  if (++barrier.arrived < barrier.expected) return false;
  barrier.arrived = 0;
  barrier.sync.Advance();
  MakeReady(block, barrier.waiting);
  return true;
}

}  // namespace

void BlockBarrier(Place place) {
  HL_EMU_ENTRY;
  Block& block = *current_block;
  Fiber& self = Self();
  if (self.linear == 0) ++block.counts.barriers;
  Barrier& barrier = block.barriers[0];
  if (barrier.arrived == 0) {
    barrier.place = place;
  } else if (barrier.place.line() != place.line() || barrier.place.column() != place.column() ||
             barrier.place.file_name() != place.file_name()) {
    Fail(place,
         "__syncthreads here while %d thread%s (first %d) wait%s in the one at %s:%u; every thread "
         "of the block must pass the same __syncthreads",
         barrier.arrived, barrier.arrived == 1 ? "" : "s", barrier.waiting.First(),
         barrier.arrived == 1 ? "s" : "", FileName(barrier.place), barrier.place.line());
  }
  barrier.expected = block.num_alive;  // threads that have ended do not count, as on a GPU
  SyncCell* const sync = barrier.sync.Current();
  if (!Arrive(block, barrier)) {
    barrier.waiting.Add(self.linear);
    WaitHere("__syncthreads", -1, place);
  }
  Acquire(*sync);
}

void NamedBarrier(int id, int threads, bool wait, Place place) {
  HL_EMU_ENTRY;
  Block& block = *current_block;
  Fiber& self = Self();
  Barrier& barrier = block.barriers[id];
  if (threads < 32 || threads % 32 != 0 || threads > (block.num_threads + 31) / 32 * 32) {
    Fail(place, "named barrier %d for %d threads. Use a multiple of 32 up to the block's %d.", id,
         threads, block.num_threads);
  }
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.place = place;
  } else if (barrier.expected != threads) {
    Fail(place, "named barrier %d for %d threads, but the one at %s:%u is for %d", id, threads,
         FileName(barrier.place), barrier.place.line(), barrier.expected);
  }
  SyncCell* const sync = barrier.sync.Current();
  const bool complete = Arrive(block, barrier);
  if (!wait) return;
  if (!complete) {
    barrier.waiting.Add(self.linear);
    WaitHere("named barrier", id, place);
  }
  Acquire(*sync);
}

// ---- warp collectives ----

struct WarpOp {
  const char* name;
  void (*work)(WarpSlot& slot, unsigned present);  // null: only synchronizes
  bool whole_warp;                                 // all 32 lanes must exist
  bool same_place;                                 // all lanes must call it from the same line
};

namespace {

void Complete(Block& block, WarpSlot& slot, int warp_index, int running_lane) {
  const unsigned present = slot.arrived;
  if (slot.op->work != nullptr) slot.op->work(slot, present);
  slot.op = nullptr;
  for (unsigned left = present & ~(1u << running_lane); left != 0; left &= left - 1)
    MakeReady(block, 32 * warp_index + std::countr_zero(left));
}

WarpSlot& FindSlot(Warp& warp, const WarpOp& op, unsigned mask, unsigned bit, Place place) {
  WarpSlot* unused = nullptr;
  for (WarpSlot& slot : warp.slots) {
    if (slot.op == nullptr) {
      if (unused == nullptr) unused = &slot;
    } else if (slot.op == &op && slot.mask == mask && (slot.arrived & bit) == 0) {
      if (op.same_place &&
          (slot.place.line() != place.line() || slot.place.file_name() != place.file_name())) {
        Fail(place,
             "%s here while lanes %08x of the warp are in the one at %s:%u. All lanes of a "
             "mask must reach the same one.",
             op.name, slot.arrived, FileName(slot.place), slot.place.line());
      }
      return slot;
    }
  }
  if (unused == nullptr) {
    Fail(place,
         "%s: four other collectives of this warp are unfinished, so its lanes have diverged",
         op.name);
  }
  unused->op = &op;
  unused->mask = mask;
  unused->arrived = 0;
  unused->place = place;
  // Each collective has its own object: lanes that have not left the previous collective must not
  // be ordered after this one.
  warp.sync.Advance();
  unused->sync = warp.sync.Current();
  return *unused;
}

void Meet(const WarpOp& op, unsigned mask, void* operands, bool orders_memory, Place place) {
  Block& block = *current_block;
  Fiber& self = Self();
  Warp& warp = block.warps[self.warp()];
  const unsigned bit = 1u << self.lane();
  if ((mask & bit) == 0) {
    Fail(place, "%s with mask %08x, which leaves out the calling lane", op.name, mask);
  }
  if (op.whole_warp && warp.alive != ~0u) {
    Fail(place, "%s needs all 32 lanes, but only %08x exist and have not ended", op.name,
         warp.alive);
  }
  WarpSlot& slot = FindSlot(warp, op, mask, bit, place);
  SyncCell* const sync = slot.sync;
  if (orders_memory) Release(*sync);
  slot.operands[self.lane()] = operands;
  slot.arrived |= bit;
  if ((mask & warp.alive & ~slot.arrived) == 0) {
    Complete(block, slot, self.warp(), self.lane());
  } else {
    WaitHere(op.name, -1, place);
  }
  if (orders_memory) Acquire(*sync);
}

struct ShuffleOperands {
  Shuffle kind;
  uint64_t in, out;
  int operand, width;
};

void DoShuffle(WarpSlot& slot, unsigned present) {
  for (int lane = 0; lane < 32; ++lane) {
    if (((present >> lane) & 1) == 0) continue;
    auto& own = *static_cast<ShuffleOperands*>(slot.operands[lane]);
    const int first = lane & ~(own.width - 1);
    const int last = first + own.width - 1;
    int source = lane;
    switch (own.kind) {
      case Shuffle::kIndex:
        source = first | (own.operand & (own.width - 1));
        break;
      case Shuffle::kUp:
        source = lane - own.operand >= first ? lane - own.operand : lane;
        break;
      case Shuffle::kDown:
        source = lane + own.operand <= last ? lane + own.operand : lane;
        break;
      case Shuffle::kXor:
        source = (lane ^ own.operand) <= last ? lane ^ own.operand : lane;
        break;
    }
    // A lane that does not participate has no value. All bits are set, which is a NaN as a float.
    own.out = source >= 0 && source < 32 && ((present >> source) & 1) != 0
                  ? static_cast<ShuffleOperands*>(slot.operands[source])->in
                  : ~uint64_t{0};
  }
}

struct VoteOperands {
  Vote kind;
  bool in;
  unsigned out;
};

void DoVote(WarpSlot& slot, unsigned present) {
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (((present >> lane) & 1) != 0 && static_cast<VoteOperands*>(slot.operands[lane])->in) {
      ballot |= 1u << lane;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (((present >> lane) & 1) == 0) continue;
    auto& own = *static_cast<VoteOperands*>(slot.operands[lane]);
    own.out = own.kind == Vote::kBallot ? ballot
              : own.kind == Vote::kAny  ? static_cast<unsigned>(ballot != 0)
                                        : static_cast<unsigned>(ballot == present);
  }
}

struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

float LowBf16(uint32_t x) { return __uint_as_float(x << 16); }
float HighBf16(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

// Adds the product of a [16, depth] and b [depth, 8] to each lane's fragment of d [16, 8]: element i of
// lane 4 g + t is row g + 8 (i / 2), column 2 t + i % 2.
void AddProduct(WarpSlot& slot, const float* a, const float* b, int depth) {
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < depth; ++k) {
      for (int col = 0; col < 8; ++col) sums[col] += a[row * depth + k] * b[k * 8 + col];
    }
    for (int t = 0; t < 4; ++t) {
      float* const d = static_cast<MmaOperands*>(slot.operands[4 * (row % 8) + t])->d + row / 8 * 2;
      d[0] += sums[2 * t];
      d[1] += sums[2 * t + 1];
    }
  }
}

void DoMmaBf16(WarpSlot& slot, unsigned) {
  float a[16 * 16], b[16 * 8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<MmaOperands*>(slot.operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      float* const at = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
      at[0] = LowBf16(own.a[i]);
      at[1] = HighBf16(own.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      float* const at = b + (2 * t + 8 * i) * 8 + g;
      at[0] = LowBf16(own.b[i]);
      at[8] = HighBf16(own.b[i]);
    }
  }
  AddProduct(slot, a, b, 16);
}

void DoMmaTf32(WarpSlot& slot, unsigned) {
  float a[16 * 8], b[8 * 8];
  const auto value = [](uint32_t bits) { return __uint_as_float(bits & 0xffffe000u); };
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<MmaOperands*>(slot.operands[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      a[(g + 8 * (i % 2)) * 8 + t + 4 * (i / 2)] = value(own.a[i]);
    }
    for (int i = 0; i < 2; ++i) b[(t + 4 * i) * 8 + g] = value(own.b[i]);
  }
  AddProduct(slot, a, b, 8);
}

struct LdMatrixOperands {
  uint32_t* r;
  uint32_t row[4];  // the 16 bytes that this lane has read
  bool trans;
};

void DoLdMatrix(WarpSlot& slot, unsigned) {
  const auto element = [&slot](int matrix, int row, int col) {
    const uint32_t word =
        static_cast<LdMatrixOperands*>(slot.operands[8 * matrix + row])->row[col / 2];
    return col % 2 == 0 ? word & 0xffffu : word >> 16;
  };
  for (int lane = 0; lane < 32; ++lane) {
    auto& own = *static_cast<LdMatrixOperands*>(slot.operands[lane]);
    const int g = lane / 4, c = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const uint32_t lo = own.trans ? element(i, c, g) : element(i, g, c);
      const uint32_t hi = own.trans ? element(i, c + 1, g) : element(i, g, c + 1);
      own.r[i] = lo | (hi << 16);
    }
  }
}

struct GatherOperands {
  const uint32_t* a;
  float (*rows)[16];
};

void DoGatherA(WarpSlot& slot, unsigned) {
  for (int lane = 0; lane < 32; ++lane) {
    auto& own = *static_cast<GatherOperands*>(slot.operands[lane]);
    for (int t = 0; t < 4; ++t) {
      const auto& peer = *static_cast<GatherOperands*>(slot.operands[lane / 4 * 4 + t]);
      for (int i = 0; i < 4; ++i) {
        float* const at = own.rows[i % 2] + 2 * t + 8 * (i / 2);
        at[0] = LowBf16(peer.a[i]);
        at[1] = HighBf16(peer.a[i]);
      }
    }
  }
}

constexpr WarpOp kShuffleOp = {"__shfl_sync", DoShuffle, false, true};
constexpr WarpOp kVoteOp = {"a warp vote", DoVote, false, true};
constexpr WarpOp kSyncOp = {"__syncwarp", nullptr, false, false};
constexpr WarpOp kMmaBf16Op = {"mma.m16n8k16", DoMmaBf16, true, true};
constexpr WarpOp kMmaTf32Op = {"mma.m16n8k8", DoMmaTf32, true, true};
constexpr WarpOp kLdMatrixOp = {"ldmatrix", DoLdMatrix, true, true};
constexpr WarpOp kGatherAOp = {"wgmma.m64n64k16", DoGatherA, true, true};

}  // namespace

// Completes the collectives and barriers that were waiting only for the lane that ends.
void LaneExits(Block& block, Fiber& fiber) {
  Warp& warp = block.warps[fiber.warp()];
  warp.alive &= ~(1u << fiber.lane());
  for (WarpSlot& slot : warp.slots) {
    if (slot.op != nullptr && slot.op->whole_warp) {
      Fail(slot.place, "%s needs all 32 lanes, but this one ended while lanes %08x wait in it",
           slot.op->name, slot.arrived);
    }
    if (slot.op != nullptr && (slot.mask & warp.alive & ~slot.arrived) == 0) {
      Complete(block, slot, fiber.warp(), /*running_lane=*/-1);
    }
  }
  Barrier& barrier = block.barriers[0];
  barrier.expected = block.num_alive;
  if (barrier.arrived > 0 && barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    barrier.sync.Advance();
    MakeReady(block, barrier.waiting);
  }
}

uint64_t WarpShuffle(Shuffle kind, unsigned mask, uint64_t bits, int operand, int width,
                     Place place) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    Fail(place, "a shuffle of width %d. Use 1, 2, 4, 8, 16 or 32.", width);
  }
  ShuffleOperands operands{kind, bits, 0, operand, width};
  Meet(kShuffleOp, mask, &operands, /*orders_memory=*/false, place);
  return operands.out;
}

unsigned WarpVote(Vote kind, unsigned mask, bool predicate, Place place) {
  VoteOperands operands{kind, predicate, 0};
  Meet(kVoteOp, mask, &operands, /*orders_memory=*/false, place);
  return operands.out;
}

void WarpBarrier(unsigned mask, Place place) {
  Meet(kSyncOp, mask, nullptr, /*orders_memory=*/true, place);
}

void WarpMmaBf16(float* d, const uint32_t* a, const uint32_t* b, Place place) {
  if (Self().lane() == 0) ++current_block->counts.mma;
  MmaOperands operands{d, a, b};
  Meet(kMmaBf16Op, ~0u, &operands, /*orders_memory=*/false, place);
}

void WarpMmaTf32(float* d, const uint32_t* a, const uint32_t* b, Place place) {
  if (Self().lane() == 0) ++current_block->counts.mma;
  MmaOperands operands{d, a, b};
  Meet(kMmaTf32Op, ~0u, &operands, /*orders_memory=*/false, place);
}

void WarpGatherA(const uint32_t* a, float (&rows)[2][16], Place place) {
  GatherOperands operands{a, rows};
  Meet(kGatherAOp, ~0u, &operands, /*orders_memory=*/false, place);
}

void WarpLdMatrixX4(uint32_t* r, const void* row, bool trans, Place place) {
  HL_EMU_ENTRY;
  const auto address = reinterpret_cast<uintptr_t>(row);
  Block& block = *current_block;
  block.counts.ldmatrix_bytes += 16;  // one row per lane
  if (row < block.dynamic || row >= block.statics + kStaticBytes) {
    Fail(place, "ldmatrix from %p, which is not in shared memory", row);
  }
  if (address % 16 != 0) {
    Fail(place, "ldmatrix from byte %u of shared memory. Align rows to a multiple of 16.",
         SharedOffset(row));
  }
  // Each lane reads its own row, so that the report of a sanitizer names the right thread.
  TrackRead(row, 16, place);
  LdMatrixOperands operands{r, {}, trans};
  LoadForLane16(operands.row, row);
  Meet(kLdMatrixOp, ~0u, &operands, /*orders_memory=*/false, place);
}

}  // namespace halflife::kernels::emu
