// MicroBatchSum adds micro-batches pairwise.
#include "train/step/micro_batch_sum.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "core/pairwise_sum.h"

namespace halflife::train {
namespace {

// It uses the tree of PairwiseSum, so terms can be divided into runs of 2^n and summed on as many
// ranks.
TEST(MicroBatchSum, IsThePairwiseSum) {
  const at::Tensor place = at::empty({3});
  MicroBatchSum sum(place);
  for (int64_t count = 1; count <= 17; ++count) {
    PairwiseSum<float> expected[3];
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor term = at::randn({3});
      for (int64_t k = 0; k < 3; ++k) expected[k].Add(term[k].item<float>());
      place.copy_(term);
      sum.Join(i, count);
    }
    for (int64_t k = 0; k < 3; ++k)
      EXPECT_EQ(place[k].item<float>(), expected[k].Total()) << count << " terms";
  }
}

}  // namespace
}  // namespace halflife::train
