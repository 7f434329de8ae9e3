// The loads and stores that an emulated instruction makes for its lane. This is the only file of
// the emulator that is built with -fsanitize=thread, so that ThreadSanitizer attributes these
// accesses to the emulated thread.
#include <cstdint>

namespace halflife::kernels::emu {
namespace {

// The emulator's own copies of the bytes are no accesses of the emulated thread. They are in stacks,
// whose memory earlier threads have used for other variables.
#if defined(__SANITIZE_THREAD__)
#define HL_EMU_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define HL_EMU_UNCHECKED
#endif
HL_EMU_UNCHECKED void SetOwn(uint32_t& own, uint32_t x) { own = x; }
HL_EMU_UNCHECKED uint32_t Own(const uint32_t& own) { return own; }

}  // namespace

void LoadForLane16(uint32_t (&to)[4], const void* from) {
  const auto* words = static_cast<const uint32_t*>(from);
  for (int i = 0; i < 4; ++i) SetOwn(to[i], words[i]);
}

void StoreForLane16(void* to, const uint32_t (&from)[4]) {
  auto* words = static_cast<uint32_t*>(to);
  for (int i = 0; i < 4; ++i) words[i] = Own(from[i]);
}

uint32_t LoadForLane4(const void* from) { return *static_cast<const uint32_t*>(from); }
void StoreForLane4(void* to, uint32_t from) { *static_cast<uint32_t*>(to) = from; }
uint16_t LoadForLane2(const void* from) { return *static_cast<const uint16_t*>(from); }

}  // namespace halflife::kernels::emu
