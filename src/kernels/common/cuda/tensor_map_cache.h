// Keeps the tensor maps of earlier launches. A kernel that loads tiles by TMA needs a map of each
// operand, and the driver encodes it on the host. A map describes an address, sizes and strides and
// not the content, so the map of an equal matrix stays valid, even if the memory was freed and
// allocated again. Training uses the same addresses in each step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace halflife::kernels {

// A row-major matrix in global memory, and the box of it that one TMA load copies. A row of the box
// has 128 bytes, as the swizzle requires.
struct TileSource {
  const void* data;        // aligned to 16 bytes
  int64_t num_rows;        // rows and columns outside the matrix read as zero
  int64_t num_cols;        // elements
  int64_t row_bytes;       // distance between rows, a multiple of 16
  int element_bytes;       // 2: bf16, 4: fp32
  int box_rows;            // at most 256
  const char* name = "a";  // name in error messages

  // Equal sources have equal maps.
  bool operator==(const TileSource& other) const {
    return data == other.data && num_rows == other.num_rows && num_cols == other.num_cols &&
           row_bytes == other.row_bytes && element_bytes == other.element_bytes &&
           box_rows == other.box_rows;
  }
};

// Used by one thread. Holds 512 maps, which is enough for the operands of 24 layers. A source has
// four possible places, and replaces the oldest map there.
template <typename Map>
class TensorMapCache {
 public:
  // Calls encode() unless the map of an equal source is here. If encode() throws, nothing changes.
  template <typename Encode>
  const Map& Find(const TileSource& source, const Encode& encode) {
    Set& set = sets_[IndexOf(source)];
    for (const Entry& entry : set.entries)
      if (entry.source == source) return entry.map;
    Entry& oldest = set.entries[set.oldest];
    oldest.map = encode();
    oldest.source = source;
    set.oldest = (set.oldest + 1) % kWays;
    return oldest.map;
  }

 private:
  static constexpr int kSets = 128, kWays = 4;
  struct Entry {
    TileSource source = {};  // no matrix: its data is null
    Map map = {};
  };
  struct Set {
    std::array<Entry, kWays> entries;
    int oldest = 0;
  };
  static size_t IndexOf(const TileSource& source) {
    uint64_t hash = reinterpret_cast<uintptr_t>(source.data);
    for (const int64_t size : {source.num_rows, source.num_cols, int64_t{source.box_rows}}) {
      hash = (hash ^ static_cast<uint64_t>(size)) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    }
    return hash % kSets;
  }
  std::array<Set, kSets> sets_;
};

}  // namespace halflife::kernels
