// The random words of one example, indexed by number. They depend only on the key and the example,
// so any thread can draw any of them.
//
//   RandomWords words(MakeRandomKey(seed, RandomPurpose::kSynthetic, 0), example);
//   const int64_t place = words.Below(/*number=*/0, /*size=*/100);   // in [0, 100)
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace halflife::data {

class RandomWords {
 public:
  RandomWords(RandomKey key, uint64_t example) : key_(key), example_(example) {}

  uint32_t operator()(uint32_t number) {
    const uint32_t block = number / 4;
    if (block != block_) draw_ = Draw(key_, example_, block_ = block, 0);
    return draw_.x[number % 4];
  }
  // Returns a number in [0, size). About one in 2^32 / size words is distributed unevenly, which no
  // realistic number of draws can show.
  int64_t Below(uint32_t number, int64_t size) {
    return static_cast<int64_t>(
        static_cast<uint64_t>((*this)(number)) * static_cast<uint64_t>(size) >> 32);
  }

 private:
  RandomKey key_;
  uint64_t example_;
  uint32_t block_ = UINT32_MAX;
  RandomCounter draw_ = {};
};

}  // namespace halflife::data
