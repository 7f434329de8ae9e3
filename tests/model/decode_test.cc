// Prefill and then decoding token by token gives the outputs of the parallel form on the whole
// text.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <string>

#include "model/language_model.h"
#include "model/mixer_forms.h"
#include "ops/random_tensors.h"

namespace halflife::model {
namespace {

ModelConfig Tiny(const std::string& mixer) {
  return {.vocab_size = 50,
          .model_dim = 32,
          .num_layers = 2,
          .initializer_range = 0.1,
          .mixer = TestForms(mixer).front(),
          .channel_mixer = ChannelMixerConfig("swiglu", {{"width", 32}})};
}

// Logits have order 1. fp32 states are summed in another order over up to 2,000 tokens, and the
// norm of a small mixer output amplifies earlier roundings.
constexpr double kTolerance = 1e-4;

class DecodeTest : public testing::TestWithParam<std::string> {
 protected:
  DecodeTest() : model_(Tiny(GetParam())) { model_.BindOwnMemory(1, false); }
  static at::Tensor Tokens(int64_t batch, int64_t seq_len) {
    return (test::Uniform({batch, seq_len}, 3) * 50).to(at::kLong);
  }
  LanguageModel model_;
  const at::NoGradGuard no_grad_;
};
INSTANTIATE_TEST_SUITE_P(All, DecodeTest, testing::ValuesIn(NamesOf(kMixers)),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(DecodeTest, PrefillAndStepsEqualTheParallelForm) {
  constexpr int64_t kTotal = 2000, kPrefill = 700;
  const at::Tensor tokens = Tokens(1, kTotal);
  const auto whole = SequenceSlice::Contiguous(1, kTotal, 0, at::kCPU);
  const at::Tensor want = model_.Logits(model_.Hidden(tokens, {.slice = &whole}));

  ModelState state = model_.EmptyState(1);
  const SequenceSlice prefill = whole.Narrow(0, kPrefill);
  const at::Tensor got =
      model_.Logits(model_.Hidden(tokens.narrow(1, 0, kPrefill), {.slice = &prefill}, &state));
  EXPECT_TRUE(test::Close(got, want.narrow(1, 0, kPrefill), kTolerance));
  const int64_t bytes = state.bytes();
  for (int64_t t = kPrefill; t < kTotal; ++t) {
    const at::Tensor logits = model_.Step(tokens.select(1, t), state);
    ASSERT_TRUE(test::Close(logits, want.select(1, t), kTolerance)) << "token " << t;
  }
  EXPECT_EQ(state.num_tokens, kTotal);
  if (model_.constant_state()) {
    EXPECT_EQ(state.bytes(), bytes);
    EXPECT_EQ(state.bytes(), model_.EmptyState(1).bytes());
  } else {
    EXPECT_GT(state.bytes(), bytes);
    EXPECT_LE(state.bytes(), 2 * (bytes / kPrefill) * kTotal) << "at most doubled";
  }
}

TEST_P(DecodeTest, FromAnEmptyStateAndInPieces) {
  const at::Tensor tokens = Tokens(3, 40);
  const auto whole = SequenceSlice::Contiguous(3, 40, 0, at::kCPU);
  const at::Tensor want = model_.Logits(model_.Hidden(tokens, {.slice = &whole}));
  ModelState state = model_.EmptyState(3);
  for (int64_t t = 0; t < 10; ++t)
    EXPECT_TRUE(
        test::Close(model_.Step(tokens.select(1, t), state), want.select(1, t), kTolerance));
  // A second prompt after the generated tokens.
  const SequenceSlice part = whole.Narrow(10, 20);
  const at::Tensor got =
      model_.Logits(model_.Hidden(tokens.narrow(1, 10, 20), {.slice = &part}, &state));
  EXPECT_TRUE(test::Close(got, want.narrow(1, 10, 20), kTolerance));
  for (int64_t t = 30; t < 40; ++t)
    EXPECT_TRUE(
        test::Close(model_.Step(tokens.select(1, t), state), want.select(1, t), kTolerance));
  EXPECT_EQ(state.num_tokens, 40);
}

}  // namespace
}  // namespace halflife::model
