// Decoding steps that are replayed from a CUDA graph equal steps that are launched normally.
// Skipped without a GPU.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "infer/generator.h"
#include "infer/row_group.h"
#include "model/mixer_forms.h"
#include "ops/gpu_test.h"
#include "ops/random_tensors.h"
#include "ops/torch/device_graph.h"

namespace halflife::infer {
namespace {

class DecoderGpuTest : public test::GpuTest<testing::TestWithParam<std::string>> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderGpuTest, testing::ValuesIn(model::NamesOf(model::kMixers)),
                         [](const auto& param_info) { return param_info.param; });

// Returns a model with weights of `dtype` on the GPU.
std::unique_ptr<model::LanguageModel> ModelOnGpu(const std::string& mixer, at::ScalarType dtype) {
  auto model = std::make_unique<model::LanguageModel>(
      model::ModelConfig{.vocab_size = 50,
                         .model_dim = 64,
                         .num_layers = 2,
                         .initializer_range = 0.1,
                         .mixer = model::TestForms(mixer).front()});
  model->BindOwnMemory(1, false, at::kCUDA);
  model::ParameterSet& parameters = model->parameters();
  for (int i = 0; i < parameters.size(); ++i)
    if (parameters.specs()[i].region == dist::Region::kCompute)
      parameters.Bind(i, parameters.tensor(i).to(dtype));
  return model;
}

// Expects the same bits from a recorded graph as from launches: the same kernels run on the same
// numbers.
void ExpectReplaysEqualLaunches(const model::LanguageModel& model) {
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

TEST_P(DecoderGpuTest, ReplaysEqualLaunches) {
  const c10::InferenceMode inference;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    ExpectReplaysEqualLaunches(*ModelOnGpu(GetParam(), dtype));
}

// In bf16, products of rows compute a row alike in every group of up to 8 rows.
class RowGroupGpuTest : public test::GpuTest<testing::Test> {};
TEST_F(RowGroupGpuTest, BitsOfARowDependOnNoOtherRow) {
  const c10::InferenceMode inference;
  for (const char* const mixer : {"gla", "retention"}) {
    SCOPED_TRACE(mixer);
    const RowBits bits = CompareRows(*ModelOnGpu(mixer, at::kBFloat16), 8);
    EXPECT_TRUE(bits.same_for_index);
    EXPECT_TRUE(bits.same_for_count);
  }
}

}  // namespace
}  // namespace halflife::infer
