// The targets that occurred earlier in their text, compared with results by hand and with a search
// through all earlier tokens.
#include "eval/part_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/philox.h"

namespace halflife::eval {
namespace {

using testing::ElementsAre;

constexpr int32_t kNone = data::kNoTarget;

data::Batch Rows(int64_t rows, int64_t seq_len, std::vector<int32_t> inputs,
                 std::vector<int32_t> targets, std::vector<int32_t> cu_seqlens) {
  return {.batch_size = rows,
          .seq_len = seq_len,
          .inputs = std::move(inputs),
          .targets = std::move(targets),
          .cu_seqlens = std::move(cu_seqlens),
          .samples = {}};
}

// "the cat the cat sat the mat": the pair 5 6 occurs twice, and 5 three times.
TEST(Recall, ByHand) {
  const data::Batch batch = Rows(1, 7, {5, 6, 5, 6, 7, 5, 8}, {6, 5, 6, 7, 5, 8, kNone}, {0, 7});
  const RecallFlags flags = FindRecalled(batch);
  EXPECT_THAT(flags.token_seen, ElementsAre(0, 1, 1, 0, 1, 0, 0));
  EXPECT_THAT(flags.bigram_seen, ElementsAre(0, 0, 1, 0, 0, 0, 0));
}

// A token that follows itself counts as seen, but its pair has not occurred yet.
TEST(Recall, ATokenTwice) {
  const RecallFlags flags = FindRecalled(Rows(1, 3, {4, 4, 4}, {4, 4, 4}, {0, 3}));
  EXPECT_THAT(flags.token_seen, ElementsAre(1, 1, 1));
  EXPECT_THAT(flags.bigram_seen, ElementsAre(0, 1, 1));
}

// Earlier rows, and earlier documents of the same row, do not count.
TEST(Recall, RestartsWithRowsAndDocuments) {
  const RecallFlags flags = FindRecalled(
      Rows(2, 4, {5, 6, 5, 6, 5, 6, 5, 6}, {6, kNone, 6, 5, 6, 5, 6, 5}, {0, 2, 4, 8}));
  EXPECT_THAT(flags.token_seen, ElementsAre(0, 0, 0, 1, 0, 1, 1, 1));
  EXPECT_THAT(flags.bigram_seen, ElementsAre(0, 0, 0, 0, 0, 0, 1, 1));
}

TEST(Recall, IsWhatASearchFinds) {
  constexpr int64_t kRows = 3, kLength = 40;
  const RandomKey key = MakeRandomKey(1, RandomPurpose::kTest, 0);
  data::Batch batch = Rows(kRows, kLength, {}, {}, {0, 17, 40, 80, 81, 120});
  for (uint64_t i = 0; i < kRows * kLength; ++i) {
    batch.inputs.push_back(static_cast<int32_t>(Draw(key, i, 0, 0).x[0] % 6));
    batch.targets.push_back(static_cast<int32_t>(Draw(key, i, 0, 0).x[1] % 7) - 1);
  }
  const RecallFlags flags = FindRecalled(batch);
  for (size_t piece = 0; piece + 1 < batch.cu_seqlens.size(); ++piece) {
    const int32_t begin = batch.cu_seqlens[piece];
    for (int32_t t = begin; t < batch.cu_seqlens[piece + 1]; ++t) {
      bool token = false, bigram = false;
      for (int32_t s = begin; s <= t; ++s) {
        token = token || batch.inputs[s] == batch.targets[t];
        bigram = bigram || (s < t && batch.inputs[s] == batch.inputs[t] &&
                            batch.inputs[s + 1] == batch.targets[t]);
      }
      EXPECT_EQ(flags.token_seen[t], token) << t;
      EXPECT_EQ(flags.bigram_seen[t], bigram) << t;
    }
  }
}

}  // namespace
}  // namespace halflife::eval
