// Prefetches the caller's next rows into the L2 cache while the current ones are multiplied. The
// rows of one head are short and the width of all heads apart, which hardware prefetchers do not
// predict, so without prefetching a kernel would wait for memory.
//
//   ahead.Begin(steps);
//   ahead.Add(base, stride_bytes, length, row_bytes);
//   Tile<float> tile(ahead);
//   tile.MultiplyAdd(a, row, b, column, 0, depth);   // calls ahead.Step() `depth` times
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cpu/math.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

class RowsAhead {
 public:
  // Drops what has not been fetched yet. The ranges that are then added are spread over the next
  // `steps` calls of Step(). Fetching lines in bursts would fill the queue of cache misses, and the
  // product's own loads would wait behind it as long as for rows that were not prefetched.
  void Begin(int64_t steps) {
    steps_ = steps;
    num_lines_ = 0;
    count_ = next_ = row_ = 0;
    line_ = end_ = nullptr;
    credit_ = steps;
  }
  // May be called at most 10 times after each Begin().
  void Add(const std::byte* base, int64_t stride_bytes, int length, int64_t row_bytes) {
    ranges_[count_++] = {base, stride_bytes, row_bytes, length};
    num_lines_ += length * ((row_bytes + kLineBytes - 1) / kLineBytes);
  }

  HL_INLINE void Step() {
    credit_ -= num_lines_;
    if (credit_ <= 0) FetchLine();
  }

 private:
  static constexpr int kLineBytes = 64;
  struct Range {
    const std::byte* base;
    int64_t stride_bytes, row_bytes;
    int length;
  };

  HL_INLINE void FetchLine() {
    credit_ += steps_;
    if (line_ >= end_) {
      if (next_ == count_) return;
      const Range& range = ranges_[next_];
      line_ = range.base + row_ * range.stride_bytes;
      end_ = line_ + range.row_bytes;
      if (++row_ == range.length) row_ = 0, ++next_;
    }
    __builtin_prefetch(line_, 0, 2);
    line_ += kLineBytes;
  }

  // For decay attention: q, k, v, out, dout, log_decay, dq, dk, dv and dlog_decay.
  Range ranges_[10];
  int count_ = 0, next_ = 0, row_ = 0;
  int64_t steps_ = 0, num_lines_ = 0;
  int64_t credit_ = 1;  // unit: lines times steps
  const std::byte *line_ = nullptr, *end_ = nullptr;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
