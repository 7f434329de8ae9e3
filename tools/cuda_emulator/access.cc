// The loads and stores that an emulated instruction makes for its lane. This is the only file of
// the emulator that is built with -fsanitize=thread, so that ThreadSanitizer attributes these
// accesses to the emulated thread.
#include <cstdint>

namespace halflife::kernels::emu {

void LoadForLane16(uint32_t (&to)[4], const void* from) {
  const auto* words = static_cast<const uint32_t*>(from);
  for (int i = 0; i < 4; ++i) to[i] = words[i];
}

void StoreForLane16(void* to, const uint32_t (&from)[4]) {
  auto* words = static_cast<uint32_t*>(to);
  for (int i = 0; i < 4; ++i) words[i] = from[i];
}

uint32_t LoadForLane4(const void* from) { return *static_cast<const uint32_t*>(from); }
void StoreForLane4(void* to, uint32_t from) { *static_cast<uint32_t*>(to) = from; }
uint16_t LoadForLane2(const void* from) { return *static_cast<const uint16_t*>(from); }

}  // namespace halflife::kernels::emu
