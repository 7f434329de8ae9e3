#include "core/hash.h"

#include <xxhash.h>

#include "core/error.h"

namespace halflife {

std::string ToHex(Hash128 hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.hi),
                static_cast<unsigned long long>(hash.lo));
  return text;
}

Hash128 HashBytes(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

StreamHash::StreamHash() : state_(XXH3_createState()) {
  HL_CHECK(state_ != nullptr, "out of memory for a hash state");
  Reset();
}
StreamHash::~StreamHash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void StreamHash::Reset() { XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)); }
void StreamHash::Update(const void* data, size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}
Hash128 StreamHash::Digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return {hash.high64, hash.low64};
}

}  // namespace halflife
