// Damages bytes for fuzz tests of readers: changes 1 to 4 bytes, and sometimes truncates, repeats
// or removes some.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace halflife::test {

inline std::string Mutated(std::string bytes, std::mt19937_64& random) {
  const size_t at = random() % bytes.size();
  switch (random() % 8) {
    case 0:
      return bytes.substr(0, at);
    case 1:
      return bytes.insert(at, bytes.substr(at, random() % 64 + 1));
    case 2:
      return bytes.erase(at, random() % 16 + 1);
    default:
      for (uint64_t i = random() % 4 + 1; i > 0; --i) {
        bytes[random() % bytes.size()] ^= static_cast<char>(random() % 255 + 1);
      }
      return bytes;
  }
}

}  // namespace halflife::test
