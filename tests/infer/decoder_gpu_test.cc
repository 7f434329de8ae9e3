// Decoding steps that are replayed from a CUDA graph equal steps that are launched normally.
// Skipped without a GPU.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <string>

#include "infer/generator.h"
#include "ops/gpu_test.h"
#include "ops/random_tensors.h"
#include "ops/torch/device_graph.h"

namespace halflife::infer {
namespace {

class DecoderGpuTest : public test::GpuTest<testing::TestWithParam<std::string>> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderGpuTest, testing::ValuesIn(model::NamesOf(model::kMixers)),
                         [](const auto& param_info) { return param_info.param; });

// The same kernels on the same numbers give the same bits.
TEST_P(DecoderGpuTest, ReplaysEqualLaunches) {
  const c10::InferenceMode inference;
  model::LanguageModel model({.vocab_size = 50,
                              .model_dim = 64,
                              .num_layers = 2,
                              .initializer_range = 0.1,
                              .mixer = model::TestForms(GetParam()).front()});
  model.BindOwnMemory(1, false, at::kCUDA);
  Decoder replayed(model, model.EmptyState(2)), launched(model, model.EmptyState(2), {false});
  EXPECT_EQ(replayed.uses_graph(),
            model.constant_state() && ops::DeviceGraph::IsOn(at::Device(at::kCUDA, 0)));
  EXPECT_FALSE(launched.uses_graph());
  const at::Tensor tokens = (test::Uniform({2, 70}, 3) * 50).to(at::kCUDA, at::kLong);
  for (int64_t t = 0; t < tokens.size(1); ++t) {
    const at::Tensor want = launched.Step(tokens.select(1, t));
    ASSERT_TRUE(replayed.Step(tokens.select(1, t)).equal(want)) << "token " << t;
  }
}

}  // namespace
}  // namespace halflife::infer
