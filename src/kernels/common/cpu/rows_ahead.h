// The caller's rows that come next, fetched into the second cache while the present ones are
// multiplied. A head's rows are short and lie all heads' width apart, which the hardware does not
// foresee; who meets them cold waits for memory.
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
  // Gives up what has not been fetched yet. What is added is spread over the next `steps` calls of
  // Step(): lines fetched in bursts fill the queue of misses, behind which the product's own loads
  // wait as long as for cold rows.
  void Begin(int64_t steps) {
    steps_ = steps;
    num_lines_ = 0;
    count_ = next_ = row_ = 0;
    line_ = end_ = nullptr;
    credit_ = steps;
  }
  // At most 10 times between two Begin().
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

  Range ranges_[10];  // decay attention's: q, k, v, out, dout, log_decay, dq, dk, dv and dlog_decay
  int count_ = 0, next_ = 0, row_ = 0;
  int64_t steps_ = 0, num_lines_ = 0;
  int64_t credit_ = 1;  // lines times steps
  const std::byte *line_ = nullptr, *end_ = nullptr;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
