// The ranges of keys that are visible with documents, windows, blocks and sinks.
#include "ops/softmax_attention/visible_keys.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace halflife::ops {
namespace {

std::vector<int> Values(const at::Tensor& x) {
  const int* data = x.const_data_ptr<int>();
  return {data, data + x.numel()};
}
VisibleKeys Of(const std::vector<int64_t>& positions, int64_t num_past, const KeyPattern& pattern) {
  return VisibleKeysOf(at::tensor(positions).unsqueeze(0), num_past, pattern);
}
using Places = std::vector<int>;

TEST(VisibleKeys, Documents) {
  const ops::VisibleKeys seen = Of({5, 6, 0, 1, 2}, /*num_past=*/3, {});
  // Two of its tokens are in an earlier slice.
  EXPECT_EQ(Values(seen.first), (Places{0, 0, 5, 5, 5}));
  EXPECT_EQ(Values(seen.end), (Places{4, 5, 6, 7, 8}));
  EXPECT_EQ(Values(seen.sinks), (Places{-2, -2, 5, 5, 5}));
}

TEST(VisibleKeys, Window) {
  const ops::VisibleKeys seen = Of({0, 1, 2, 3, 0, 1, 2, 3}, 0, {.window = 3});
  EXPECT_EQ(Values(seen.first), (Places{0, 0, 0, 1, 4, 4, 4, 5}));
}

TEST(VisibleKeys, BothDirections) {
  // The row begins within a document.
  const std::vector<int64_t> positions = {3, 4, 0, 1, 2, 3, 0};
  const VisibleKeys all = Of(positions, 0, {.bidirectional = true});
  EXPECT_EQ(Values(all.first), (Places{0, 0, 2, 2, 2, 2, 6}));
  EXPECT_EQ(Values(all.end), (Places{2, 2, 6, 6, 6, 6, 7}));
  const VisibleKeys near = Of(positions, 0, {.window = 2, .bidirectional = true});
  EXPECT_EQ(Values(near.first), (Places{0, 0, 2, 2, 3, 4, 6}));
  EXPECT_EQ(Values(near.end), (Places{2, 2, 4, 5, 6, 6, 7}));
  EXPECT_EQ(NumVisiblePairs(10, {.bidirectional = true}), 100);
  EXPECT_EQ(NumVisiblePairs(10, {.window = 2, .bidirectional = true}), 28);
}

// The query's block and the previous one, counted from the start of the document.
TEST(VisibleKeys, Blocks) {
  const ops::VisibleKeys seen = Of({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}, 0, {.block = 2});
  EXPECT_EQ(Values(seen.first), (Places{0, 0, 0, 0, 2, 2, 4, 7, 7, 7, 7, 9}));
}

// K b (b + 1) / 2 + (K - 1) b^2 for K whole blocks, which are the causal pairs up to 2 b tokens.
TEST(VisibleKeys, PairsOfBlocks) {
  EXPECT_EQ(NumVisiblePairs(2048, {.block = 512}), 1311744);
  EXPECT_EQ(NumVisiblePairs(4096, {.block = 512}), 2885632);
  EXPECT_EQ(NumVisiblePairs(8192, {.block = 512}), 6033408);
  EXPECT_EQ(NumVisiblePairs(1024, {.block = 512}), NumVisiblePairs(1024, {}));
}

// Required test 6: with K blocks of b, T - n pairs have distance n <= b, (K - 1)(2 b - n) have
// distances up to 2 b, and none are beyond.
TEST(VisibleKeys, DistancesOfBlocks) {
  constexpr int64_t kBlock = 8, kBlocks = 5, kSeqLen = kBlock * kBlocks;
  const VisibleKeys seen = VisibleKeysOf(at::arange(kSeqLen).unsqueeze(0), 0, {.block = kBlock});
  const Places first = Values(seen.first);
  std::vector<int64_t> counts(kSeqLen, 0);
  for (int64_t query = 0; query < kSeqLen; ++query)
    for (int64_t key = first[query]; key <= query; ++key) ++counts[query - key];
  for (int64_t n = 0; n < kSeqLen; ++n)
    EXPECT_EQ(counts[n], n <= kBlock       ? kSeqLen - n
                         : n <= 2 * kBlock ? (kBlocks - 1) * (2 * kBlock - n)
                                           : 0)
        << n;
}

TEST(VisibleKeys, PairsOfAWindowAndSinks) {
  EXPECT_EQ(NumVisiblePairs(10, {}), 55);
  EXPECT_EQ(NumVisiblePairs(10, {.window = 1}), 10);
  EXPECT_EQ(NumVisiblePairs(10, {.window = 3}), 1 + 2 + 8 * 3);
  // From position 3 on one sink is before the window, from 4 on two.
  EXPECT_EQ(NumVisiblePairs(10, {.window = 3, .sinks = 2}), 27 + 1 + 6 * 2);
}

TEST(VisibleKeys, CountsAddUpToThePairs) {
  for (const KeyPattern& pattern :
       {KeyPattern{}, KeyPattern{.window = 7}, KeyPattern{.block = 5},
        KeyPattern{.window = 4, .sinks = 3}, KeyPattern{.bidirectional = true},
        KeyPattern{.window = 6, .sinks = 2, .bidirectional = true}}) {
    const at::Tensor counts = NumVisibleKeys(at::arange(40).unsqueeze(0), pattern);
    EXPECT_EQ(counts.sum().item<int64_t>(), NumVisiblePairs(40, pattern));
  }
}

}  // namespace
}  // namespace halflife::ops
