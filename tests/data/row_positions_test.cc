// Position ids that override those of training rows. The golden draws follow published
// Philox4x32-10 and were computed independently of this code.
#include "data/row_positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

namespace halflife::data {
namespace {

using testing::ElementsAre;
using Positions = std::vector<int64_t>;

// Returns a row of 12 tokens with documents of 8 and 4, which is sample 5.
Batch Row() {
  return {.batch_size = 1,
          .seq_len = 12,
          .inputs = std::vector<int32_t>(12),
          .targets = std::vector<int32_t>(12),
          .cu_seqlens = {0, 8, 12},
          .samples = {5}};
}
Positions IdsOfBatch(const RowPositionsConfig& config, uint64_t seed = 1) {
  return AssignPositionIds(config, seed, Row());
}
Positions Drawn(const RowPositionsConfig& config, int64_t num_tokens, uint64_t sample) {
  return DrawPositions(config, num_tokens,
                       RandomWords(MakeRandomKey(9, RandomPurpose::kTest, 0), sample));
}

TEST(RowPositions, GoldenDraws) {
  EXPECT_THAT(IdsOfBatch({.kind = "skipwise", .length = 32, .chunks = 2}),
              ElementsAre(0, 1, 7, 8, 9, 10, 11, 12, 0, 1, 25, 26));
  EXPECT_THAT(IdsOfBatch({.kind = "skipwise", .length = 32, .chunks = 3}),
              ElementsAre(0, 6, 7, 10, 11, 12, 13, 14, 0, 22, 23, 26));
  EXPECT_THAT(IdsOfBatch({.kind = "randomised", .length = 32}),
              ElementsAre(0, 2, 4, 5, 10, 16, 18, 28, 6, 10, 21, 25));
  EXPECT_THAT(IdsOfBatch({.kind = "plain"}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
}

TEST(RowPositions, FollowSeedSampleAndDocument) {
  const RowPositionsConfig config = {.kind = "randomised", .length = 1000};
  EXPECT_EQ(IdsOfBatch(config), IdsOfBatch(config));
  EXPECT_NE(IdsOfBatch(config), IdsOfBatch(config, 2));
  // Each of two rows has the ids that it has as a single row.
  const Batch both = {.batch_size = 2,
                      .seq_len = 12,
                      .inputs = std::vector<int32_t>(24),
                      .targets = std::vector<int32_t>(24),
                      .cu_seqlens = {0, 12, 20, 24},
                      .samples = {4, 5}};
  const Positions ids = AssignPositionIds(config, 1, both);
  EXPECT_EQ(Positions(ids.begin() + 12, ids.end()), IdsOfBatch(config));
  EXPECT_NE(ids[0], ids[12]);
}

TEST(RowPositions, PaddingIsPlain) {
  Batch batch = Row();
  batch.samples = {kNoSample};
  EXPECT_THAT(AssignPositionIds({.kind = "randomised", .length = 99}, 1, batch),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
}

TEST(RowPositions, AscendBelowTheLength) {
  for (const char* kind : {"skipwise", "randomised"})
    for (const int64_t num_tokens : {1, 2, 5, 16, 31, 32})
      for (uint64_t sample = 0; sample < 50; ++sample) {
        const Positions positions =
            Drawn({.kind = kind, .length = 32, .chunks = 4}, num_tokens, sample);
        ASSERT_EQ(std::ssize(positions), num_tokens);
        EXPECT_GE(positions.front(), 0);
        EXPECT_LT(positions.back(), 32);
        EXPECT_EQ(std::ranges::adjacent_find(positions, std::greater_equal()), positions.end());
      }
  Positions all(32);
  for (int64_t i = 0; i < 32; ++i) all[static_cast<size_t>(i)] = i;  // There is only one choice.
  EXPECT_EQ(Drawn({.kind = "randomised", .length = 32}, 32, 0), all);
  EXPECT_EQ(Drawn({.kind = "skipwise", .length = 32}, 32, 0), all);
}

TEST(RowPositions, SkipwiseChunksAreConsecutive) {
  for (uint64_t sample = 0; sample < 50; ++sample) {
    const Positions positions =
        Drawn({.kind = "skipwise", .length = 4096, .chunks = 4}, 64, sample);
    EXPECT_EQ(positions.front(), 0);
    int gaps = 0;
    for (size_t i = 1; i < positions.size(); ++i) gaps += positions[i] != positions[i - 1] + 1;
    EXPECT_LE(gaps, 3);
  }
}

// Each of 16 positions is among 4 with probability 1/4, and skipwise rows have every distance up to
// the longest. Counts of 20,000 draws are within 5 sigma of their means (sigma of a count with p =
// 1/4: 61; of the mean of a uniform skip in [0, 28]: 8.4 / sqrt(20,000) = 0.06).
TEST(RowPositions, AreUniform) {
  constexpr int kDraws = 20000;
  std::map<int64_t, int> count;
  double skips = 0;
  int64_t longest = 0;
  for (uint64_t sample = 0; sample < kDraws; ++sample) {
    for (const int64_t position : Drawn({.kind = "randomised", .length = 16}, 4, sample))
      ++count[position];
    const int64_t last =
        Drawn({.kind = "skipwise", .length = 32, .chunks = 2}, 4, sample).back() - 3;
    skips += static_cast<double>(last);
    longest = std::max(longest, last);
  }
  for (int64_t position = 0; position < 16; ++position)
    EXPECT_NEAR(count[position], kDraws / 4, 5 * 61) << position;
  EXPECT_NEAR(skips / kDraws, 14, 0.3);
  EXPECT_EQ(longest, 28);
}

}  // namespace
}  // namespace halflife::data
