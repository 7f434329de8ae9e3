// Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy as 1, 2, 3"). Every random
// number of the project is a pure function of (seed, purpose, layer, sample, position, channel).
// There is no generator state to save, and results do not depend on the world size. Host and device
// share this header.
//
//   const RandomKey key = MakeRandomKey(seed, RandomPurpose::kDropout, layer);
//   const auto [a, b, c, d] = Draw(key, sample, position, channel / 4).x;   // 4 channels at once
//   const float u = ToUniform(a);                                           // [0, 1)
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HL_HOST_DEVICE __host__ __device__
#else
#define HL_HOST_DEVICE
#endif

namespace halflife {

// The purpose of a draw. The values are part of the checkpoint's RNG version and never change.
// Value 5 is unused: it was reserved for dataset splits, which depend on a hash of each document
// instead.
enum class RandomPurpose : uint32_t {
  kInit = 1,
  kDropout = 2,
  kOrder = 3,
  kSampling = 4,
  kTest = 6,
  kMask = 7,
  kSynthetic = 8
};

constexpr uint32_t kRandomVersion = 1;

struct RandomKey {
  uint32_t k0, k1;
};
struct RandomCounter {
  uint32_t x[4];
};

HL_HOST_DEVICE inline uint64_t SplitMix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Returns the FNV-1a hash of a parameter's name. Draws without a sample (initialisation) use it as
// their `layer`.
HL_HOST_DEVICE inline uint32_t NameHash32(const char* name, uint64_t length) {
  uint32_t hash = 2166136261u;
  for (uint64_t i = 0; i < length; ++i)
    hash = (hash ^ static_cast<unsigned char>(name[i])) * 16777619u;
  return hash;
}

HL_HOST_DEVICE inline RandomKey MakeRandomKey(uint64_t seed, RandomPurpose purpose,
                                              uint32_t layer) {
  // The seed is mixed first: seed ^ layer would give (seed 0, layer 1) the same key as (seed 1,
  // layer 0).
  const uint64_t mixed = SplitMix64(
      SplitMix64(seed) ^ (static_cast<uint64_t>(static_cast<uint32_t>(purpose)) << 32 | layer));
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

HL_HOST_DEVICE inline RandomCounter Philox4x32(RandomCounter counter, RandomKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * counter.x[0];
    const uint64_t p1 = 0xCD9E8D57ull * counter.x[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.x[1] ^ key.k0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.x[3] ^ key.k1,
                static_cast<uint32_t>(p0)}};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return counter;
}

HL_HOST_DEVICE inline RandomCounter Draw(RandomKey key, uint64_t sample, uint32_t position,
                                         uint32_t channel_block) {
  return Philox4x32({{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), position,
                      channel_block}},
                    key);
}

// Returns a number in [0, 1) from 24 random bits, exact in fp32.
HL_HOST_DEVICE inline float ToUniform(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
// Returns a number in [0, 1) from 53 random bits of two words.
HL_HOST_DEVICE inline double ToUniform(uint32_t hi, uint32_t lo) {
  return static_cast<double>((static_cast<uint64_t>(hi) << 32 | lo) >> 11) * 0x1p-53;
}

// Two independent standard normal values from two words (Box-Muller, computed in fp64 on the host).
struct NormalPair {
  double a, b;
};
NormalPair ToNormal(uint32_t u, uint32_t v);

}  // namespace halflife
