// xxh3-128 hashes of a buffer or of a stream. They detect corruption, not tampering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace halflife {

struct Hash128 {
  uint64_t hi = 0;
  uint64_t lo = 0;
  bool operator==(const Hash128&) const = default;
};

std::string ToHex(Hash128 hash);  // 32 lower-case digits, hi first, as `xxh128sum` prints them

Hash128 HashBytes(const void* data, size_t bytes);
inline Hash128 HashBytes(std::string_view text) { return HashBytes(text.data(), text.size()); }

class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void Update(const void* data, size_t bytes);
  Hash128 Digest() const;  // hash of all updates since the start or the last Reset
  void Reset();

 private:
  void* state_;  // XXH3_state_t
};

}  // namespace halflife
