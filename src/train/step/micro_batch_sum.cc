#include "train/step/micro_batch_sum.h"

#include <ATen/ops/empty_like.h>

#include "core/pairwise_sum.h"

namespace halflife::train {

void JoinPairwise(const at::Tensor& term, int64_t index, int64_t count,
                  const std::function<at::Tensor(int level)>& level_of) {
  const bool last = index == count - 1;
  const int carries = NumCarries(index);
  for (int level = 0; level < NumLevels(count); ++level) {
    const bool full = (index >> level & 1) != 0;
    if (full && (last || level < carries)) term.add_(level_of(level));
  }
  if (!last) level_of(carries).copy_(term);
}

void MicroBatchSum::Join(int64_t index, int64_t count) {
  while (static_cast<int>(levels_.size()) < NumLevels(count))
    levels_.push_back(at::empty_like(terms_));
  JoinPairwise(terms_, index, count, [this](int level) { return levels_[level]; });
}

}  // namespace halflife::train
