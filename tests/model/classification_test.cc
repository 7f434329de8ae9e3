// Models that end with a classifier over documents.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "model/language_model.h"
#include "model/vocabulary_layers.h"
#include "ops/gradient_check.h"
#include "ops/torch/host_waits.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Uniform;

constexpr int64_t kDim = 16;

// Returns two rows of 6 tokens: documents of 4 and 2 tokens, and one of 6.
SequenceSlice TwoRows() {
  const std::vector<int32_t> cu_seqlens = {0, 4, 6, 12};
  return SequenceSlice::Packed(2, 6, cu_seqlens, at::kCPU);
}

at::Tensor Pool(const char* pooling, const at::Tensor& hidden, const SequenceSlice& slice) {
  return DocumentPooler({.pooling = pooling}, {.sizes = {.model_dim = kDim}})(hidden,
                                                                              FirstTokens(slice));
}

TEST(DocumentPooler, IsWhatItSays) {
  const at::Tensor hidden = Uniform({2, 6, kDim}, 1);
  const at::Tensor rows = hidden.flatten(0, 1);
  const auto expect = [&](const char* pooling, const std::vector<at::Tensor>& documents) {
    const at::Tensor found = Pool(pooling, hidden, TwoRows());
    EXPECT_TRUE(found.allclose(at::stack(documents), 1e-6, 1e-6)) << pooling;
  };
  expect("first", {rows[0], rows[4], rows[6]});
  expect("last", {rows[3], rows[5], rows[11]});
  expect("mean", {rows.narrow(0, 0, 4).mean(0), rows.narrow(0, 4, 2).mean(0),
                  rows.narrow(0, 6, 6).mean(0)});
  const auto whole = SequenceSlice::Contiguous(2, 6, 0, at::kCPU);
  EXPECT_TRUE(Pool("mean", hidden, whole).allclose(hidden.mean(1), 1e-6, 1e-6));
}

// Such a read would make the host wait for the GPU in every batch.
TEST(DocumentPooler, ReadsNothingOnTheHost) {
  const at::Tensor hidden = Uniform({2, 6, kDim}, 1);
  for (const char* pooling : {"first", "mean", "last"}) {
    ops::HostWaits waits;
    Pool(pooling, hidden, TwoRows());
    const ops::HostCounts counts = waits.Take()[""];
    EXPECT_EQ(counts.num_waits(), 0) << pooling;
    EXPECT_GT(counts.num_kernels(), 0) << pooling;
  }
}

ModelConfig Classifier(const char* pooling, bool dense, bool causal = false) {
  ModelConfig config = {.vocab_size = 37,
                        .model_dim = kDim,
                        .num_layers = 2,
                        .initializer_range = 0.3,
                        .mixer = MixerConfig("gau", {{"key_dim", 8}, {"causal", causal}}),
                        .channel_mixer = ChannelMixerConfig("none")};
  config.objective = ObjectiveConfig("classification",
                                     {{"num_classes", 3}, {"pooling", pooling}, {"dense", dense}});
  return config;
}

at::Tensor Tokens(const std::vector<int64_t>& ids) { return at::tensor(ids).unsqueeze(0); }

TokenScores ScoresOf(const LanguageModel& model, const at::Tensor& tokens,
                     const at::Tensor& targets, const std::vector<int32_t>& cu_seqlens) {
  const auto slice = SequenceSlice::Packed(tokens.size(0), tokens.size(1), cu_seqlens, at::kCPU);
  return model.Scores(tokens, targets, {.slice = &slice});
}

// The head equals its definition on the hidden vectors, and the loss is that of the last token.
TEST(Classification, IsASoftmaxOverThePooledDocument) {
  LanguageModel model(Classifier("last", /*dense=*/true));
  model.BindOwnMemory(3, false);
  const auto parameter = [&](const char* name) {
    for (int i = 0; i < model.parameters().size(); ++i)
      if (model.parameters().specs()[i].name == name) return model.parameters().tensor(i);
    ADD_FAILURE() << name;
    return at::Tensor();
  };
  const at::Tensor tokens = Tokens({5, 6, 7, 8, 1, 0});
  const at::Tensor targets = at::full({1, 6}, -100, at::kLong);
  targets[0][0] = 2;
  const std::vector<int32_t> cu_seqlens = {0, 5, 6};
  const auto slice = SequenceSlice::Packed(1, 6, cu_seqlens, at::kCPU);
  const at::Tensor pooled =
      at::tanh(at::linear(model.Hidden(tokens, {.slice = &slice})[0][4],
                          parameter("pooler.dense.weight"), parameter("pooler.dense.bias")));
  const at::Tensor expected = at::log_softmax(
      at::linear(pooled, parameter("classifier.weight"), parameter("classifier.bias")), -1);
  const TokenScores scores = ScoresOf(model, tokens, targets, cu_seqlens);
  EXPECT_TRUE(scores.class_log_probs[0].allclose(expected, 1e-5, 1e-6));
  EXPECT_NEAR(scores.losses[0][0].item<double>(), -expected[2].item<double>(), 1e-5);
  EXPECT_EQ(scores.losses.ne(0).sum().item<int64_t>(), 1) << "of the document alone";
  EXPECT_EQ(scores.correct.sum().item<double>(), expected.argmax().item<int64_t>() == 2 ? 1 : 0);
  const LossSums sums = model.Loss(tokens, targets, {.slice = &slice, .num_targets = 1});
  EXPECT_NEAR(sums.loss.item<double>(), -expected[2].item<double>(), 1e-5);
  EXPECT_TRUE(
      model.TokenLosses(tokens, targets, {.slice = &slice}).allclose(scores.losses, 1e-5, 1e-6));
}

// Padding and other documents of the row have no influence with any pooling, up to fp32 rounding.
TEST(Classification, ADocumentIsByItself) {
  const at::Tensor none = at::full({1, 9}, -100, at::kLong);
  for (const char* pooling : {"first", "mean", "last"}) {
    LanguageModel model(Classifier(pooling, false));
    model.BindOwnMemory(4, false);
    const at::Tensor alone =
        ScoresOf(model, Tokens({5, 6, 7, 1}), none.narrow(1, 0, 4), {0, 4}).class_log_probs;
    const at::Tensor padded =
        ScoresOf(model, Tokens({5, 6, 7, 1, 0, 0, 0, 0, 0}), none, {0, 4, 9}).class_log_probs;
    const at::Tensor packed =
        ScoresOf(model, Tokens({9, 8, 2, 3, 1, 5, 6, 7, 1}), none, {0, 5, 9}).class_log_probs;
    EXPECT_TRUE(alone[0].allclose(padded[0], 1e-5, 1e-5)) << pooling;
    EXPECT_TRUE(alone[0].allclose(packed[1], 1e-5, 1e-5)) << pooling;
    EXPECT_FALSE(packed[0].allclose(packed[1], 1e-2, 1e-2)) << pooling;
  }
}

// With any pooling, every parameter of the head and the embeddings of the tokens get gradients.
TEST(Classification, TrainsItsHead) {
  for (const char* pooling : {"first", "mean", "last"}) {
    LanguageModel model(Classifier(pooling, /*dense=*/true));
    model.BindOwnMemory(5, /*requires_grad=*/true);
    const at::Tensor targets = at::full({1, 6}, -100, at::kLong);
    targets[0][0] = 1;
    const std::vector<int32_t> cu_seqlens = {0, 4, 6};
    const auto slice = SequenceSlice::Packed(1, 6, cu_seqlens, at::kCPU);
    model.Loss(Tokens({5, 6, 7, 1, 0, 0}), targets, {.slice = &slice, .num_targets = 1})
        .objective.backward();
    for (int i = 0; i < model.parameters().size(); ++i) {
      const std::string& name = model.parameters().specs()[i].name;
      const at::Tensor gradient = model.parameters().tensor(i).grad();
      if (name.starts_with("pooler") || name.starts_with("classifier")) {
        ASSERT_TRUE(gradient.defined()) << name;
        EXPECT_GT(gradient.abs().sum().item<double>(), 0) << pooling << " " << name;
      } else if (name == "embeddings.weight") {
        EXPECT_GT(gradient[5].abs().sum().item<double>(), 0) << pooling;
        EXPECT_EQ(gradient[0].abs().sum().item<double>(), 0) << pooling << ": padding trains";
      }
    }
  }
}

TEST(Classification, RefusesWhatCannotBe) {
  EXPECT_HL_ERROR(LanguageModel(Classifier("first", false, /*causal=*/true)), ExitCode::kUsage,
                  "pooling first reads only the first token", "Use pooling mean or last.");
  ModelConfig tied = Classifier("mean", false);
  tied.head.tied = true;
  EXPECT_HL_ERROR(LanguageModel(tied), ExitCode::kUsage, "head is tied",
                  "--set model.head.tied=false");
  ModelConfig scaled = Classifier("mean", false);
  scaled.head.logit_scale = 0.5;
  EXPECT_HL_ERROR(LanguageModel(scaled), ExitCode::kUsage, "head is one with a logit_scale",
                  "--set model.head.logit_scale=1");
  ModelConfig pooled = Classifier("max", false);
  EXPECT_HL_ERROR(LanguageModel(pooled), ExitCode::kUsage, "pooling", "first, mean");
}

}  // namespace
}  // namespace halflife::model
