// Philox and the distributions made from it: published vectors, independent keys, and moments.
#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

namespace halflife {
namespace {

void ExpectWords(RandomCounter got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(got.x[0], a);
  EXPECT_EQ(got.x[1], b);
  EXPECT_EQ(got.x[2], c);
  EXPECT_EQ(got.x[3], d);
}

// The vectors "philox4x32 10" that Salmon et al. published with Random123 (kat_vectors).
TEST(Philox, KnownAnswers) {
  constexpr uint32_t kOnes = 0xffffffff;
  ExpectWords(Philox4x32({{0, 0, 0, 0}}, {0, 0}), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  ExpectWords(Philox4x32({{kOnes, kOnes, kOnes, kOnes}}, {kOnes, kOnes}), 0x408f276d, 0x41c83b0e,
              0xa20bc7c6, 0x6d5451fd);
  ExpectWords(Philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},  // digits of pi
                         {0xa4093822, 0x299f31d0}),
              0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, DrawPlacesItsCoordinates) {
  const RandomKey key = {1, 2};
  const RandomCounter draw = Draw(key, 0x1122334455667788ull, 9, 10);
  const RandomCounter direct = Philox4x32({{0x55667788, 0x11223344, 9, 10}}, key);
  ExpectWords(draw, direct.x[0], direct.x[1], direct.x[2], direct.x[3]);
}

// Small seeds and layers must not collide: seed 0 with layer 1 differs from seed 1 with layer 0.
TEST(Philox, KeysDifferBySeedPurposeAndLayer) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const RandomPurpose purpose : {RandomPurpose::kInit, RandomPurpose::kDropout,
                                        RandomPurpose::kOrder, RandomPurpose::kSampling}) {
      for (uint32_t layer = 0; layer < 200; ++layer) {
        const RandomKey key = MakeRandomKey(seed, purpose, layer);
        EXPECT_TRUE(keys.insert({key.k0, key.k1}).second) << seed << " " << layer;
      }
    }
  }
}

TEST(Philox, KeysOfOneUseDifferBySeed) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const RandomKey key = MakeRandomKey(seed, RandomPurpose::kInit, 3);
    EXPECT_TRUE(keys.insert({key.k0, key.k1}).second);
  }
}

// The first outputs of Vigna's splitmix64.c with states 0 and 1234567.
TEST(SplitMix64, KnownAnswers) {
  EXPECT_EQ(SplitMix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(SplitMix64(1234567), 6457827717110365317ull);
}

TEST(NameHash32, IsFnv1a) {
  EXPECT_EQ(NameHash32("", 0), 0x811c9dc5u);
  EXPECT_EQ(NameHash32("a", 1), 0xe40c292cu);
  EXPECT_EQ(NameHash32("foobar", 6), 0xbf9cf968u);
}

TEST(ToUniform, StaysBelowOne) {
  EXPECT_EQ(ToUniform(0u), 0.0f);
  EXPECT_LT(ToUniform(0xffffffffu), 1.0f);
  EXPECT_EQ(ToUniform(0u, 0u), 0.0);
  EXPECT_LT(ToUniform(0xffffffffu, 0xffffffffu), 1.0);
  EXPECT_GT(ToUniform(0xffffffffu, 0xffffffffu), 1.0 - 1e-15);
}

// n independent draws. The estimate is off by more than 5 standard errors once in 2 million runs,
// and the seed is fixed.
TEST(ToUniform, HasTheMomentsOfTheUniform) {
  constexpr int kDraws = 100'000;
  const RandomKey key = MakeRandomKey(3, RandomPurpose::kTest, 0);
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = ToUniform(Draw(key, static_cast<uint64_t>(i), 0, 0).x[0]);
    sum += u;
    squares += u * u;
  }
  // Var u = 1/12, Var u^2 = 1/5 - 1/9 = 4/45
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(ToNormal, HasTheMomentsOfTheNormal) {
  constexpr int kPairs = 100'000;
  const RandomKey key = MakeRandomKey(4, RandomPurpose::kTest, 0);
  double sum = 0, squares = 0, fourth = 0, product = 0;
  for (int i = 0; i < kPairs; ++i) {
    const RandomCounter bits = Draw(key, static_cast<uint64_t>(i), 0, 0);
    const NormalPair pair = ToNormal(bits.x[0], bits.x[1]);
    for (const double z : {pair.a, pair.b}) {
      sum += z;
      squares += z * z;
      fourth += z * z * z * z;
    }
    product += pair.a * pair.b;
  }
  const double n = 2.0 * kPairs;
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));  // Var z^4 = 105 - 9
  EXPECT_NEAR(product / kPairs, 0, 5 * std::sqrt(1.0 / kPairs));
}

TEST(ToNormal, IsFiniteAtTheEdges) {
  for (const uint32_t u : {0u, 1u, 0xffffffffu}) {
    for (const uint32_t v : {0u, 0xffffffffu}) {
      const NormalPair pair = ToNormal(u, v);
      EXPECT_TRUE(std::isfinite(pair.a) && std::isfinite(pair.b));
      EXPECT_LT(std::hypot(pair.a, pair.b), 6.8) << "sqrt(2 ln 2^33) = 6.76";
    }
  }
}

}  // namespace
}  // namespace halflife
