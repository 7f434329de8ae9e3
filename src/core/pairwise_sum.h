// The shape of every sum over micro-batches and ranks: a binary tree over their global index, built
// like a binary counter. Splitting the terms into 2^n equal blocks of 2^m (for example, one block
// per rank), summing each block by the same rule and then summing the results gives exactly the
// same tree. Sums over 1, 2, 4, ... ranks are therefore bit-identical.
//
//   PairwiseSum<double> loss;                       // ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//   for (const double term : terms) loss.Add(term);
//   loss.Total();
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace halflife {

// The number of finished subtrees (levels 0 .. n-1) that term `index` is joined with when it
// arrives.
constexpr int NumCarries(uint64_t index) { return std::countr_one(index); }
// The number of levels in use before the last of `count` terms arrives.
constexpr int NumLevels(uint64_t count) { return count < 2 ? 0 : std::bit_width(count - 1); }

// Sums numbers.
template <typename T>
class PairwiseSum {
 public:
  void Add(T term) {
    const int carries = NumCarries(count_++);
    for (int level = 0; level < carries; ++level) term = levels_[level] + term;
    if (carries == static_cast<int>(levels_.size())) levels_.push_back(term);
    levels_[carries] = term;
  }
  // Returns 0 if there are no terms. If the count is not a power of two, the remaining subtrees are
  // joined from the smallest up.
  T Total() const {
    T total{};
    bool empty = true;
    for (size_t level = 0; level < levels_.size(); ++level) {
      if ((count_ >> level & 1) == 0) continue;
      total = empty ? levels_[level] : levels_[level] + total;
      empty = false;
    }
    return total;
  }

 private:
  uint64_t count_ = 0;
  std::vector<T> levels_;
};

}  // namespace halflife
