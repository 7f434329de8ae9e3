// The random draws of dropout on attention weights, for kernels that process pairs of tokens. A
// pair is kept or dropped according to Philox of (key; the row's sample number and the head; the
// query's index; the key's index / 4). Indices count from the row's beginning. No mask is stored,
// and the result for a pair is the same in every tile, slice and rank. ops::Dropout gives
// probabilities [B H, T, S] the same masks if it is called with the sample numbers of
// SampleOfHead(). C++17 without LibTorch.
//
//   const uint64_t sample = SampleOfHead(dropout.samples[row], head);
//   const bool kept = (KeptPairs(dropout, sample, query, key / 4 * 4) >> key % 4 & 1) != 0;
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/common/host_device.h"

namespace halflife::kernels {

// A weight is dropped if its 24-bit draw is below the threshold.
inline uint32_t DropoutThreshold(double rate) { return static_cast<uint32_t>(rate * 0x1p24); }

struct PairDropout {
  const uint64_t* samples = nullptr;  // [B], one per row, on the tensors' device; null: keep all
  RandomKey key = {};
  uint32_t threshold = 0;
  double scale = 1;  // factor on kept weights: 1 / (1 - rate)

  HL_EVERYWHERE bool drops() const { return samples != nullptr; }
};

constexpr int kHeadBit = 48;  // sample numbers are below 2^48, heads below 2^15
HL_HOST_DEVICE inline uint64_t SampleOfHead(uint64_t sample, int head) {
  return sample + (static_cast<uint64_t>(head) << kHeadBit);
}

// Draws for the 4 keys from `first_key`, a multiple of 4, on. Bit i is set if the pair with key
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
