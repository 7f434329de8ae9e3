// The cache of decompressed blocks: each block is read once, the least recently used one is
// evicted, and threads share it.
#include "data/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace halflife::data {
namespace {

constexpr size_t kEntries = 10;  // Entries per block.
constexpr size_t kBytes = kEntries * sizeof(int32_t);

// Blocks whose entries are the block's number, and the number of reads of each.
class BlockCacheTest : public testing::Test {
 protected:
  int32_t Get(int64_t number) {
    const auto block = cache_.Get({nullptr, number}, [&] {
      ++reads_;
      return std::vector<int32_t>(kEntries, static_cast<int32_t>(number));
    });
    EXPECT_EQ(block->size(), kEntries);
    return block->front();
  }

  BlockCache<int32_t> cache_{3 * kBytes};
  std::atomic<int> reads_{0};
};

TEST_F(BlockCacheTest, ReadsABlockOnce) {
  for (int turn = 0; turn < 5; ++turn) {
    for (const int64_t number : {4, 7, 5}) EXPECT_EQ(Get(number), number);
  }
  EXPECT_EQ(reads_, 3);
}

TEST_F(BlockCacheTest, DropsWhatRestedLongest) {
  for (const int64_t number : {0, 1, 2, 0, 3}) Get(number);  // 3 replaces 1.
  EXPECT_EQ(reads_, 4);
  for (const int64_t number : {0, 2, 3}) Get(number);
  EXPECT_EQ(reads_, 4);
  Get(1);
  EXPECT_EQ(reads_, 5);
}

TEST_F(BlockCacheTest, ABlockOutlivesItsPlace) {
  const auto block = cache_.Get({nullptr, 0}, [] { return std::vector<int32_t>(kEntries, 8); });
  for (int64_t number = 1; number < 9; ++number) Get(number);
  EXPECT_EQ(*block, std::vector<int32_t>(kEntries, 8));
}

TEST_F(BlockCacheTest, BlocksLargerThanAll) {
  for (const int64_t number : {0, 0, 1, 1}) {
    const auto block = cache_.Get({nullptr, number}, [&] {
      ++reads_;
      return std::vector<int32_t>(9 * kEntries);
    });
    EXPECT_EQ(block->size(), 9 * kEntries);
  }
  EXPECT_EQ(reads_, 2);
}

TEST_F(BlockCacheTest, AnErrorIsNotKept) {
  const auto fail = []() -> std::vector<int32_t> { throw std::runtime_error("damaged"); };
  EXPECT_THROW(cache_.Get({nullptr, 0}, fail), std::runtime_error);
  EXPECT_THROW(cache_.Get({nullptr, 0}, fail), std::runtime_error);
  EXPECT_EQ(Get(0), 0);
}

TEST_F(BlockCacheTest, ThreadsShareIt) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t number = (i * 7 + t) % 5;
        wrong += Get(number) != number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace halflife::data
