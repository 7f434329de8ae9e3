// The shape of every sum over micro-batches and ranks: a binary tree over their global index, built
// like a binary counter. Cutting the terms into 2^n equal runs of 2^m (ranks, say), summing each by
// the same rule and then the results, is the very same tree: at 1, 2, 4, ... ranks the bits are
// equal.
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

// Levels 0 .. n-1 that hold a finished subtree when term `index` arrives, and that it joins on its
// way up.
constexpr int NumCarries(uint64_t index) { return std::countr_one(index); }
// Levels in use before the last of `count` terms.
constexpr int NumLevels(uint64_t count) { return count < 2 ? 0 : std::bit_width(count - 1); }

// The sum itself, of numbers.
template <typename T>
class PairwiseSum {
 public:
  void Add(T term) {
    const int carries = NumCarries(count_++);
    for (int level = 0; level < carries; ++level) term = levels_[level] + term;
    if (carries == static_cast<int>(levels_.size())) levels_.push_back(term);
    levels_[carries] = term;
  }
  // 0 for no term. Where the count is no power of two, subtrees join from the smallest up.
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
