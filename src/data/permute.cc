// The order of samples: a keyed bijection of [0, size) that needs no table.
//
// A Feistel network is a bijection of pairs for any round function. Here the pairs are h-bit
// halves, where 4^h is the next power of four above `size`. Results outside [0, size) are fed in
// again (cycle walking: Black and Rogaway, CT-RSA 2002, "Ciphers with arbitrary finite domains"),
// on average fewer than four times.
#include "core/error.h"
#include "core/philox.h"
#include "data/token_source.h"

namespace halflife::data {
namespace {

// Four rounds hide the structure of large domains. Two more cost almost nothing and improve domains
// whose halves have one or two bits.
constexpr uint32_t kRounds = 6;

uint64_t Feistel(uint64_t index, int half_bits, RandomKey key, uint64_t epoch) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = index >> half_bits, right = index & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const RandomCounter counter = {{static_cast<uint32_t>(right), round,
                                    static_cast<uint32_t>(epoch),
                                    static_cast<uint32_t>(epoch >> 32)}};
    const uint64_t mixed = left ^ (Philox4x32(counter, key).x[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits | right;
}

}  // namespace

uint64_t PermuteIndex(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch) {
  HL_CHECK(index < size, "index ", index, " of a permutation of ", size);
  int half_bits = 1;
  while (half_bits < 32 && (uint64_t{1} << 2 * half_bits) < size) ++half_bits;
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kOrder, 0);
  do {
    index = Feistel(index, half_bits, key, epoch);
  } while (index >= size);
  return index;
}

}  // namespace halflife::data
