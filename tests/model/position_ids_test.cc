// Position ids that override those of the row: rotations and added embeddings follow them, but the
// visible keys do not.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <memory>

#include "model/language_model.h"

namespace halflife::model {
namespace {

constexpr int64_t kTokens = 24, kVocab = 37;

std::unique_ptr<LanguageModel> Model(const MixerConfig& mixer,
                                     const PositionsConfig& positions = PositionsConfig("none")) {
  ModelConfig config = {.vocab_size = kVocab, .model_dim = 16, .num_layers = 2};
  config.initializer_range = 0.4;
  config.mixer = mixer;
  config.positions = positions;
  auto model = std::make_unique<LanguageModel>(config);
  model->BindOwnMemory(2, false);
  return model;
}
MixerConfig Softmax(double rope_theta) {
  return MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", rope_theta}});
}

class PositionIds : public testing::Test {
 protected:
  // Two documents in a row, of 10 and 14 tokens.
  at::Tensor Hidden(const LanguageModel& model, const at::Tensor& ids = {}) const {
    const std::vector<int32_t> documents = {0, 10, kTokens};
    SequenceSlice slice = SequenceSlice::Packed(1, kTokens, documents, at::kCPU);
    slice.given_position_ids = ids;
    return model.Hidden(at::arange(kTokens).mul(7).remainder(kVocab).view({1, kTokens}),
                        {.slice = &slice});
  }
  static double Distance(const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  }
  const at::Tensor plain_ = at::cat({at::arange(10), at::arange(14)}).view({1, kTokens});
  const c10::AutoGradMode no_grad_{false};
};

TEST_F(PositionIds, ThePlainOnesChangeNoBit) {
  for (const auto& model :
       {Model(Softmax(10000)), Model(MixerConfig("retention")), Model(MixerConfig("retnet"))})
    EXPECT_TRUE(Hidden(*model, plain_).equal(Hidden(*model)));
}

// A rotation depends on distances. A shift of a document changes nothing beyond the rounding of
// angles (6e-5 for fp32 angles of up to 1,000), other distances do.
TEST_F(PositionIds, RotationsSeeDistances) {
  for (const auto& model :
       {Model(Softmax(10000)), Model(MixerConfig("retention")), Model(MixerConfig("retnet"))}) {
    const at::Tensor own = Hidden(*model);
    EXPECT_LT(Distance(Hidden(*model, plain_ + 1000), own), 2e-3);
    EXPECT_GT(Distance(Hidden(*model, plain_ * 3), own), 1e-2);
  }
}

// The visible keys, and the divisors of decays, depend on the positions in the row.
TEST_F(PositionIds, VisibleKeysDoNotDependOnThem) {
  const auto nope = Model(Softmax(0));
  EXPECT_TRUE(Hidden(*nope, plain_ * 5 + 3).equal(Hidden(*nope)));
  const auto window = Model(MixerConfig(
      "softmax", {{"num_heads", int64_t{2}}, {"rope_theta", 0.0}, {"window", int64_t{4}}}));
  EXPECT_TRUE(Hidden(*window, plain_ * 5 + 3).equal(Hidden(*window)));
}

TEST_F(PositionIds, TablesAreReadAtThem) {
  const auto learned =
      Model(Softmax(0), PositionsConfig("learned", {{"max_positions", int64_t{99}}}));
  const at::Tensor own = Hidden(*learned);
  EXPECT_GT(Distance(Hidden(*learned, plain_ + 40), own), 1e-2);
  const auto sinusoidal = Model(Softmax(0), PositionsConfig("sinusoidal"));
  EXPECT_GT(Distance(Hidden(*sinusoidal, plain_ + 40), Hidden(*sinusoidal)), 1e-2);
}

TEST_F(PositionIds, NarrowTakesItsPart) {
  SequenceSlice slice = SequenceSlice::Contiguous(1, kTokens, 0, at::kCPU);
  EXPECT_FALSE(slice.Narrow(3, 5).given_position_ids.defined());
  slice.given_position_ids = plain_ * 2;
  EXPECT_TRUE(slice.Narrow(3, 5).position_ids().equal(slice.given_position_ids.narrow(1, 3, 5)));
  EXPECT_TRUE(slice.Narrow(3, 5).positions.equal(slice.positions.narrow(1, 3, 5)));
}

}  // namespace
}  // namespace halflife::model
