// A cache of the ids of recent words. Text repeats itself, and finding a short word here is several
// times faster than merging it. The size is fixed: a word replaces another with the same hash.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/hash.h"

namespace halflife::data {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;

  // `word` has 1 to kMaxWordBytes bytes. Returns an empty span if it is not cached.
  std::span<const int32_t> Find(std::string_view word) const {
    const Slot& slot = slots_[Index(word)];
    if (slot.num_bytes != word.size() || std::memcmp(slot.bytes.data(), word.data(), word.size())) {
      return {};
    }
    return {slot.ids.data(), slot.num_ids};
  }

  void Put(std::string_view word, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[Index(word)];
    slot.num_bytes = static_cast<uint8_t>(word.size());
    slot.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.bytes.data(), word.data(), word.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kNumSlots = 1 << 15;  // 2 MiB
  struct alignas(64) Slot {                     // one cache line
    std::array<int32_t, kMaxIds> ids = {};
    uint8_t num_bytes = 0;
    uint8_t num_ids = 0;
    std::array<char, kMaxWordBytes> bytes = {};
  };
  static_assert(sizeof(Slot) == 64);
  static size_t Index(std::string_view word) { return HashBytes(word).lo & (kNumSlots - 1); }

  std::vector<Slot> slots_ = std::vector<Slot>(kNumSlots);
};

}  // namespace halflife::data
