// Maps are encoded once for equal matrices, and never confused.
#include "kernels/common/cuda/tensor_map_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace halflife::kernels {
namespace {

// As large as a CUtensorMap, and made of what it describes.
struct Map {
  TileSource source;
  std::byte rest[128 - sizeof(TileSource)];
};

class Cache {
 public:
  const Map& Find(const TileSource& source) {
    return cache_->Find(source, [&] {
      ++num_encoded_;
      return Map{.source = source, .rest = {}};
    });
  }
  int num_encoded() const { return num_encoded_; }

 private:
  std::unique_ptr<TensorMapCache<Map>> cache_ = std::make_unique<TensorMapCache<Map>>();
  int num_encoded_ = 0;
};

const char kMemory[4096] = {};
const TileSource kSource = {.data = kMemory,
                            .num_rows = 640,
                            .num_cols = 128,
                            .row_bytes = 512,
                            .element_bytes = 2,
                            .box_rows = 64,
                            .name = "q"};

TEST(TensorMapCache, AnEqualMatrixIsEncodedOnce) {
  Cache cache;
  TileSource renamed = kSource;
  renamed.name = "k";
  for (const TileSource& source : {kSource, kSource, renamed})
    EXPECT_EQ(cache.Find(source).source.data, kMemory);
  EXPECT_EQ(cache.num_encoded(), 1);
}

TEST(TensorMapCache, EachFieldOfTheMatrixCounts) {
  std::vector<TileSource> sources(7, kSource);
  sources[1].data = kMemory + 16;
  sources[2].num_rows = 641;
  sources[3].num_cols = 64;
  sources[4].row_bytes = 256;
  sources[5].element_bytes = 4;
  sources[6].box_rows = 128;
  Cache cache;
  for (const TileSource& source : sources) EXPECT_EQ(cache.Find(source).source, source);
  EXPECT_EQ(cache.num_encoded(), 7);
}

TEST(TensorMapCache, AnEntryThatIsOverwrittenIsEncodedAgain) {
  Cache cache;
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    TileSource source = kSource;
    source.data = kMemory + 16 * (random() % 128);
    source.num_rows = static_cast<int64_t>(1 + random() % 8);
    ASSERT_EQ(cache.Find(source).source, source) << i;
  }
  EXPECT_GT(cache.num_encoded(), 128 * 8);  // more matrices than entries
}

TEST(TensorMapCache, AFailureIsNotRemembered) {
  TensorMapCache<Map> cache;
  const auto fail = []() -> Map { throw std::runtime_error("no driver"); };
  EXPECT_THROW(cache.Find(kSource, fail), std::runtime_error);
  EXPECT_EQ(cache.Find(kSource, [] { return Map{.source = kSource, .rest = {}}; }).source, kSource);
  EXPECT_NO_THROW(cache.Find(kSource, fail)) << "the map is there";
}

// Forward and backward of 24 layers of 9 operands, which lie in one allocation. The second step
// encodes few maps again.
TEST(TensorMapCache, HoldsTheOperandsOfAStep) {
  Cache cache;
  const auto step = [&] {
    const int before = cache.num_encoded();
    for (int i = 0; i < 24 * 9; ++i) {
      TileSource source = kSource;
      source.data = reinterpret_cast<const char*>(uintptr_t{0x7f0000000000} +
                                                  (static_cast<uint64_t>(i) << 21));
      EXPECT_EQ(cache.Find(source).source, source);
    }
    return cache.num_encoded() - before;
  };
  EXPECT_EQ(step(), 24 * 9);
  EXPECT_LE(step(), 24);
}

}  // namespace
}  // namespace halflife::kernels
