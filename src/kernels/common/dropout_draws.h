// What dropout draws. Of attention's weights, which kernels drop that meet pairs of tokens, whether
// a pair is kept is Philox of (key; the row's sample number and the head; the query's place; the
// key's place / 4), so no mask is kept, and a pair's is the same in whatever tile, slice or rank it
// is met. Places count from the row's beginning. ops::Dropout gives probabilities [B H, T, S]
// the same masks by the sample numbers of SampleOfHead. C++17, no LibTorch.
//
//   const uint64_t sample = SampleOfHead(dropout.samples[row], head);
//   const bool kept = (KeptPairs(dropout, sample, query, key / 4 * 4) >> key % 4 & 1) != 0;
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/common/host_device.h"

namespace halflife::kernels {

// A draw of 24 bits below this one is dropped.
inline uint32_t DropoutThreshold(double rate) { return static_cast<uint32_t>(rate * 0x1p24); }

struct PairDropout {
  const uint64_t* samples = nullptr;  // [B] of the rows, beside the tensors; null: all is kept
  RandomKey key = {};
  uint32_t threshold = 0;
  double scale = 1;  // of what is kept: 1 / (1 - rate)

  HL_EVERYWHERE bool drops() const { return samples != nullptr; }
};

constexpr int kHeadBit = 48;  // sample numbers are below 2^48, heads below 2^15
HL_HOST_DEVICE inline uint64_t SampleOfHead(uint64_t sample, int head) {
  return sample + (static_cast<uint64_t>(head) << kHeadBit);
}

// Of 4 keys from `first_key`, a multiple of 4, on: bit i is set where the pair with key
// first_key + i is kept.
HL_HOST_DEVICE inline uint32_t KeptPairs(const PairDropout& dropout, uint64_t sample_of_head,
                                         int query, int first_key) {
  const RandomCounter words = Draw(dropout.key, sample_of_head, static_cast<uint32_t>(query),
                                   static_cast<uint32_t>(first_key / 4));
  uint32_t kept = 0;
  for (int i = 0; i < 4; ++i)
    kept |= static_cast<uint32_t>((words.x[i] >> 8) >= dropout.threshold) << i;
  return kept;
}

}  // namespace halflife::kernels
