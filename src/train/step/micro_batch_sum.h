// A sum over the micro-batches of a step, by the tree of core/pairwise_sum.h: terms come one after
// the other in one place, and what is summed so far waits in others, one for each doubling of their
// number.
//
//   MicroBatchSum sum(arena.grads());
//   for (int64_t i = 0; i < n; ++i) {
//     differentiate(i);  // overwrites arena.grads()
//     sum.Join(i, n);    // after the last the sum is there
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace halflife::train {

// `term` holds term `index` of `count`, which come in order. It is joined with the subtrees that it
// completes, and the result is put away in `level_of` the next of them, or left where it is if this
// is the last. There are NumLevels(count) levels.
void JoinPairwise(const at::Tensor& term, int64_t index, int64_t count,
                  const std::function<at::Tensor(int level)>& level_of);

class MicroBatchSum {
 public:
  // `terms` stays in place.
  explicit MicroBatchSum(const at::Tensor& terms) : terms_(terms) {}
  void Join(int64_t index, int64_t count);

 private:
  at::Tensor terms_;
  std::vector<at::Tensor> levels_;
};

}  // namespace halflife::train
