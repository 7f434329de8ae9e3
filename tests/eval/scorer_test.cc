// Scoring of sequences in batches equals scoring each sequence separately.
#include "eval/scorer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "support/expect_error.h"

namespace halflife::eval {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::unique_ptr<model::LanguageModel> Tiny(const std::string& mixer) {
  auto model = std::make_unique<model::LanguageModel>(
      model::ModelConfig{.vocab_size = 30,
                         .model_dim = 32,
                         .num_layers = 2,
                         .initializer_range = 0.1,
                         .mixer = model::MixerConfig(mixer, {{"num_heads", 2}}),
                         .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 32}})});
  model->BindOwnMemory(1, false);
  return model;
}

std::vector<int32_t> Ids(size_t count, int step) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>((i * i + step) % 30);
  return ids;
}

// Returns the log-softmax of the parallel form of one sequence.
std::vector<float> Plain(const model::LanguageModel& model, const std::vector<int32_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  const auto slice = model::SequenceSlice::Contiguous(1, length, 0, at::kCPU);
  const at::Tensor log_p =
      at::log_softmax(model.Logits(model.Hidden(tokens, {.slice = &slice})), 2).contiguous();
  std::vector<float> scores;
  for (int64_t i = 0; i + 1 < length; ++i)
    scores.push_back(log_p.const_data_ptr<float>()[i * 30 + ids[static_cast<size_t>(i) + 1]]);
  return scores;
}

TEST(ScoreBatchesTest, LongestFirstAndAsManyRowsAsFit) {
  const std::vector<size_t> lengths = {5, 1, 40, 0, 6, 100};
  EXPECT_THAT(ScoreBatches(lengths, {.piece = 50, .batch_tokens = 90}),
              ElementsAre(ElementsAre(5), ElementsAre(2, 4), ElementsAre(0)));
  EXPECT_THAT(ScoreBatches(std::vector<size_t>{1, 0}, {}), IsEmpty());
}

// Padding, batches and parts only change roundings: logits of order 1, states summed in another
// order.
TEST(ScoreBatchTest, EqualsSeparateSequences) {
  for (const char* mixer : {"retention", "gla", "softmax"}) {
    const auto model = Tiny(mixer);
    const std::vector<std::vector<int32_t>> ids = {Ids(150, 1), Ids(37, 2), Ids(2, 3), Ids(64, 4)};
    const std::vector<std::span<const int32_t>> rows(ids.begin(), ids.end());
    for (const int64_t piece : {1000, 64, 7}) {
      const auto scores = ScoreBatch(*model, rows, {.piece = piece});
      for (size_t row = 0; row < ids.size(); ++row) {
        EXPECT_THAT(scores[row],
                    testing::Pointwise(testing::FloatNear(1e-4f), Plain(*model, ids[row])))
            << mixer << ", pieces of " << piece << ", row " << row;
      }
    }
  }
}

// If scores depend on the length of the row, rows do not share a batch and are not split.
TEST(ScoreBatchTest, ARowsLengthIsItsOwn) {
  model::ModelConfig config = Tiny("softmax")->config();
  config.mixer.Set("query_scale", std::string("info"));
  config.mixer.Set("query_scale_mode", std::string("fixed_len"));
  config.mixer.Set("query_scale_length", int64_t{16});
  config.initializer_range = 0.3;
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const std::vector<std::vector<int32_t>> ids = {Ids(150, 1), Ids(2, 3), Ids(37, 2)};
  const std::vector<std::span<const int32_t>> rows(ids.begin(), ids.end());
  const auto scores = ScoreBatch(model, rows, {.piece = 20});
  for (size_t row = 0; row < ids.size(); ++row) {
    const auto alone = ScoreBatch(model, {&rows[row], 1}, {});
    EXPECT_THAT(scores[row], testing::Pointwise(testing::FloatNear(1e-5f), alone[0])) << row;
  }
  // The first token of a longer row has a larger factor, but sees only itself. The second token
  // shows the difference.
  const std::vector<int32_t> begin(ids[0].begin(), ids[0].begin() + 37);
  const std::span<const int32_t> shorter(begin);
  EXPECT_GT(std::abs(ScoreBatch(model, {&shorter, 1}, {})[0][1] - scores[0][1]), 1e-4);
}

// An encoder predicts every token from all others, with only this token masked.
TEST(ScoreBatchTest, HiddenTokensOneByOne) {
  model::ModelConfig config = {.vocab_size = 30, .model_dim = 16, .num_layers = 2};
  config.initializer_range = 0.3;
  config.mixer = model::MixerConfig("gau", {{"key_dim", int64_t{8}}, {"causal", false}});
  config.objective = model::ObjectiveConfig("masked_token", {{"mask_id", int64_t{7}}});
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const std::vector<int32_t> ids = Ids(70, 2), few = Ids(2, 5);
  const std::vector<std::span<const int32_t>> rows = {ids, few};
  std::vector<float> want;
  for (size_t hidden = 1; hidden < ids.size(); ++hidden) {
    std::vector<int32_t> seen = ids;
    seen[hidden] = 7;
    const at::Tensor tokens =
        at::tensor(std::vector<int64_t>(seen.begin(), seen.end())).unsqueeze(0);
    const auto slice = model::SequenceSlice::Contiguous(1, 70, 0, at::kCPU);
    const at::Tensor log_p =
        at::log_softmax(model.Logits(model.Hidden(tokens, {.slice = &slice})), 2);
    want.push_back(log_p[0][static_cast<int64_t>(hidden)][ids[hidden]].item<float>());
  }
  for (const int64_t batch_tokens : {1, 200, 100000}) {
    const auto scores = ScoreBatch(model, rows, {.batch_tokens = batch_tokens});
    EXPECT_THAT(scores[0], testing::Pointwise(testing::FloatNear(1e-5f), want)) << batch_tokens;
    EXPECT_EQ(scores[1].size(), 1u);
  }
}

TEST(ScoreBatchTest, IdsOutsideTheVocabulary) {
  const auto model = Tiny("gla");
  const std::vector<int32_t> ids = {1, 2, 30};
  const std::vector<std::span<const int32_t>> rows = {ids};
  EXPECT_HL_ERROR(ScoreBatch(*model, rows, {}), ExitCode::kUsage, "token 30 at index 2",
                  "vocabulary of 30");
}

}  // namespace
}  // namespace halflife::eval
