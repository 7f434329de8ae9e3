// The order in which GradientSync sums micro-batches. tests/train/step/step_test.cc checks its sums
// over ranks, for every combination of settings.
#include "train/step/gradient_sync.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/pairwise_sum.h"
#include "model/language_model.h"

namespace halflife::train {
namespace {

// JoinPairwise uses the tree of PairwiseSum, so terms can be split into runs of 2^n that are summed
// on as many ranks.
TEST(GradientSync, SumsMicroBatchesPairwise) {
  for (int64_t count = 1; count <= 17; ++count) {
    std::vector<at::Tensor> levels;
    for (int level = 0; level < NumLevels(count); ++level) levels.push_back(at::empty({3}));
    PairwiseSum<float> expected[3];
    const at::Tensor place = at::empty({3});
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor term = at::randn({3});
      for (int64_t k = 0; k < 3; ++k) expected[k].Add(term[k].item<float>());
      place.copy_(term);
      JoinPairwise(place, i, count, [&](int level) { return levels[level]; });
    }
    for (int64_t k = 0; k < 3; ++k)
      EXPECT_EQ(place[k].item<float>(), expected[k].Total()) << count << " terms";
  }
}

// A parameter that backward does not reach would keep the gradient of an earlier step.
TEST(GradientSync, NamesParametersWithoutGradient) {
  model::LanguageModel model({.model_dim = 16, .num_layers = 1});
  ParameterArena arena(model.parameters(), {});
  const auto world = dist::MakeSelfCommunicator("world");
  GradientSync gradients(arena, *world, {});
  gradients.BeginMicroBatch(0, 1);
  for (int i = 1; i < model.parameters().size(); ++i) gradients.MarkComputed(i);
  try {
    gradients.EndMicroBatch();
    FAIL() << "accepted a micro-batch without a gradient of parameter 0";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("backward gave no gradient to: " +
                                                 model.parameters().specs()[0].name));
  }
}

TEST(GradientSync, RefusesToRecordPairwiseSums) {
  model::LanguageModel model({.model_dim = 16, .num_layers = 1});
  ParameterArena arena(model.parameters(), {});
  const auto world = dist::MakeSelfCommunicator("world");
  GradientSync pairwise(arena, *world, {});
  EXPECT_THROW(pairwise.BeginRecorded(), Error);
  GradientSync one_by_one(arena, *world, {.one_by_one = true});
  EXPECT_NO_THROW(one_by_one.BeginRecorded());
}

}  // namespace
}  // namespace halflife::train
