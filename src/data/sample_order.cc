#include "data/sample_order.h"

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::data {
namespace {

// PermuteIndex is a keyed bijection of [0, size) that needs no table.
//
// A Feistel network is a bijection of pairs for any round function. Here the pairs are h-bit
// halves, where 4^h is the next power of four above `size`. Results outside [0, size) are fed in
// again (cycle walking: Black and Rogaway, CT-RSA 2002, "Ciphers with arbitrary finite domains"),
// on average fewer than four times.

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

EpochEnd EpochEndOf(const std::string& name) {
  if (name == "fill") return EpochEnd::kFill;
  if (name == "short") return EpochEnd::kShort;
  HL_CHECK_AS(ExitCode::kUsage, name == "drop", "'", name,
              "' is not an end of an epoch. Use fill, short or drop.");
  return EpochEnd::kDrop;
}

int64_t SampleOrder::StepsPerEpoch() const {
  const int64_t whole = num_windows / global_batch;
  return epoch_end == EpochEnd::kShort && num_windows % global_batch != 0 ? whole + 1 : whole;
}

int64_t SampleOrder::StepsOf(int64_t num_epochs) const {
  const int64_t steps = epoch_end == EpochEnd::kFill ? num_epochs * num_windows / global_batch
                                                     : num_epochs * StepsPerEpoch();
  return std::max<int64_t>(steps, 1);
}

uint64_t SampleOrder::FirstSample(uint64_t step) const {
  const auto batch = static_cast<uint64_t>(global_batch);
  if (epoch_end == EpochEnd::kFill) return step * batch;
  const auto steps = static_cast<uint64_t>(StepsPerEpoch());
  return step / steps * static_cast<uint64_t>(num_windows) + step % steps * batch;
}

int64_t SampleOrder::NumSamples(uint64_t step) const {
  if (epoch_end != EpochEnd::kShort) return global_batch;
  const auto begin = static_cast<int64_t>(FirstSample(step) % static_cast<uint64_t>(num_windows));
  return std::min(global_batch, num_windows - begin);
}

uint64_t SampleOrder::NumSamplesBefore(uint64_t step) const {
  return epoch_end == EpochEnd::kShort ? FirstSample(step)
                                       : step * static_cast<uint64_t>(global_batch);
}

int64_t SampleOrder::EpochOf(uint64_t step) const {
  return static_cast<int64_t>(FirstSample(step) / static_cast<uint64_t>(num_windows));
}

uint64_t SampleOrder::StepAt(uint64_t first_sample) const {
  const auto batch = static_cast<uint64_t>(global_batch);
  const auto windows = static_cast<uint64_t>(num_windows);
  const uint64_t step = epoch_end == EpochEnd::kFill
                            ? first_sample / batch
                            : first_sample / windows * static_cast<uint64_t>(StepsPerEpoch()) +
                                  first_sample % windows / batch;
  HL_CHECK(FirstSample(step) == first_sample, "sample ", first_sample,
           " does not begin a step of the global batch ", global_batch);
  return step;
}

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
