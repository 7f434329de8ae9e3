// `score` and `eval` give the same results with a model on a GPU and on the CPU, in fp32. Skipped
// without a GPU.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "eval/retrieval.h"
#include "eval/scorer.h"
#include "ops/gpu_test.h"
#include "ops/random_tensors.h"

namespace halflife::eval {
namespace {

constexpr int64_t kVocab = 30;
// Logits of order 1 from two layers whose sums have another order.
constexpr double kTolerance = 1e-3;

class EvalGpuTest : public test::GpuTest<testing::TestWithParam<std::string>> {
 protected:
  static std::unique_ptr<model::LanguageModel> Model(const std::string& mixer, at::Device device) {
    auto model = std::make_unique<model::LanguageModel>(
        model::ModelConfig{.vocab_size = kVocab,
                           .model_dim = 64,
                           .num_layers = 2,
                           .initializer_range = 0.1,
                           .mixer = model::MixerConfig(mixer)});
    model->BindOwnMemory(1, false, device);
    return model;
  }
  static std::vector<int32_t> Ids(size_t count) {
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>((i * i + 1) % kVocab);
    return ids;
  }
};
INSTANTIATE_TEST_SUITE_P(Some, EvalGpuTest, testing::Values("gla", "retention", "softmax", "mamba"),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(EvalGpuTest, ScoresEqualTheCpus) {
  const std::vector<int32_t> longer = Ids(150), shorter = Ids(37);
  const std::vector<std::span<const int32_t>> rows = {longer, shorter};
  const ScoreConfig pieces = {.piece = 64};
  const auto want = ScoreBatch(*Model(GetParam(), at::kCPU), rows, pieces),
             got = ScoreBatch(*Model(GetParam(), at::kCUDA), rows, pieces);
  for (size_t row = 0; row < rows.size(); ++row)
    for (size_t i = 0; i < want[row].size(); ++i)
      EXPECT_NEAR(got[row][i], want[row][i], kTolerance) << row << ", " << i;
}

TEST_P(EvalGpuTest, AnswersEqualTheCpus) {
  const at::NoGradGuard no_grad;
  const at::Tensor inputs = (test::Uniform({3, 40}, 1) * kVocab).to(at::kLong),
                   targets = (test::Uniform({3, 40}, 2) * kVocab).to(at::kLong);
  const auto on_cpu = Model(GetParam(), at::kCPU), on_gpu = Model(GetParam(), at::kCUDA);
  EXPECT_TRUE(test::Close(ScorerOf(*on_gpu)(inputs, targets).losses.to(at::kCPU),
                          ScorerOf(*on_cpu)(inputs, targets).losses, kTolerance));
}

TEST_P(EvalGpuTest, CarriedLossesEqualTheCpus) {
  const at::NoGradGuard no_grad;
  const auto on_cpu = Model(GetParam(), at::kCPU);
  if (!on_cpu->constant_state()) GTEST_SKIP() << "its state grows";
  const std::vector<int32_t> ids = Ids(201);
  const data::Batch batch = {.batch_size = 1,
                             .seq_len = 200,
                             .inputs = {ids.begin(), ids.end() - 1},
                             .targets = {ids.begin() + 1, ids.end()},
                             .cu_seqlens = {0, 90, 200}};
  EXPECT_TRUE(
      test::Close(CarriedLosses(*Model(GetParam(), at::kCUDA), batch, /*piece=*/64).to(at::kCPU),
                  CarriedLosses(*on_cpu, batch, /*piece=*/64), kTolerance));
}

}  // namespace
}  // namespace halflife::eval
