// Decoding steps equal the model's own steps, and can be recorded.
#include "infer/generator.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <string>

#include "infer/row_group.h"
#include "model/mixer_forms.h"
#include "ops/linear/row_products.h"
#include "ops/random_tensors.h"
#include "ops/torch/host_waits.h"
#include "support/expect_error.h"

namespace halflife::infer {
namespace {

constexpr int64_t kBatch = 2, kVocab = 50;

model::ModelConfig Tiny(const model::MixerConfig& mixer) {
  return {.vocab_size = kVocab,
          .model_dim = 32,
          .num_layers = 2,
          .initializer_range = 0.1,
          .mixer = mixer,
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 32}})};
}
at::Tensor Tokens(int64_t seq_len) {
  return (test::Uniform({kBatch, seq_len}, 3) * kVocab).to(at::kLong);
}

class DecoderTest : public testing::TestWithParam<std::string> {
 protected:
  DecoderTest() : model_(Tiny(model::TestForms(GetParam()).front())) {
    model_.BindOwnMemory(1, false);
  }
  // Returns the state after `tokens`.
  model::ModelState Prefilled(const at::Tensor& tokens) const {
    model::ModelState state = model_.EmptyState(kBatch);
    const auto slice = model::SequenceSlice::Contiguous(kBatch, tokens.size(1), 0, at::kCPU);
    model_.Hidden(tokens, {.slice = &slice}, &state);
    return state;
  }
  model::LanguageModel model_;
  const at::NoGradGuard no_grad_;
};
INSTANTIATE_TEST_SUITE_P(All, DecoderTest, testing::ValuesIn(model::NamesOf(model::kMixers)),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(DecoderTest, StepsAreTheModelsToTheBit) {
  constexpr int64_t kPrompt = 10, kTotal = 40;
  const at::Tensor tokens = Tokens(kTotal), prompt = tokens.narrow(1, 0, kPrompt);
  model::ModelState state = Prefilled(prompt);
  Decoder decoder(model_, Prefilled(prompt));
  for (int64_t t = kPrompt; t < kTotal; ++t) {
    const at::Tensor want = model_.Step(tokens.select(1, t), state);
    ASSERT_TRUE(decoder.Step(tokens.select(1, t)).equal(want)) << "token " << t;
  }
  EXPECT_EQ(decoder.num_tokens(), kTotal);
  EXPECT_EQ(decoder.state().bytes(), state.bytes());
}

// A recorded step must not wait for the device or upload anything, because host memory may have
// another use when the step is replayed. It must find its tensors at the same addresses.
TEST_P(DecoderTest, AStepOfConstantSizeCanBeRecorded) {
  if (!model_.constant_state()) GTEST_SKIP() << "its state grows";
  const at::Tensor tokens = Tokens(4);
  Decoder decoder(model_, Prefilled(tokens.narrow(1, 0, 1)));
  decoder.Step(tokens.select(1, 1));  // Fills the caches.
  std::vector<const void*> places;
  for (const model::MixerState& layer : decoder.state().layers)
    for (const at::Tensor& x : layer.tensors) places.push_back(x.const_data_ptr());
  ops::HostWaits waits;
  for (int64_t t = 2; t < 4; ++t) decoder.Step(tokens.select(1, t));
  for (const auto& [phase, counts] : waits.Take()) {
    for (const auto& [name, count] : counts.waits) ADD_FAILURE() << count << " waits in " << name;
    EXPECT_EQ(counts.uploads, 0);
    EXPECT_EQ(counts.read_backs, 0);
    EXPECT_GT(counts.num_kernels(), 0);
  }
  size_t next = 0;
  for (const model::MixerState& layer : decoder.state().layers)
    for (const at::Tensor& x : layer.tensors) EXPECT_EQ(x.const_data_ptr(), places[next++]);
}

void ToBf16(model::LanguageModel& model) {
  model::ParameterSet& parameters = model.parameters();
  for (int i = 0; i < parameters.size(); ++i)
    if (parameters.specs()[i].region == dist::Region::kCompute)
      parameters.Bind(i, parameters.tensor(i).to(at::kBFloat16));
}

// A GPU's fused products, norms and gates of bf16 rows. They round each result to 8 bits where the
// separate operations do, so only the order of fp32 sums differs; a different last bit of an
// intermediate result changes a logit, of about 0.1, by a few thousandths.
TEST_P(DecoderTest, ProductsOfRowsAreTheSeparateOperations) {
  const c10::InferenceMode inference;
  ToBf16(model_);
  const at::Tensor tokens = Tokens(6);
  Decoder separate(model_, model_.EmptyState(kBatch)), fused(model_, model_.EmptyState(kBatch));
  for (int64_t t = 0; t < 6; ++t) {
    const at::Tensor want = separate.Step(tokens.select(1, t)).clone();
    const ops::RowProductsEverywhere everywhere;
    ASSERT_TRUE(test::Close(fused.Step(tokens.select(1, t)), want, 0.01)) << "token " << t;
  }
}

// Rows of a group are multiplied together, and none depends on how many there are.
TEST(Decoder, ProductsOfRowsKeepTheBitsOfARow) {
  const c10::InferenceMode inference;
  const ops::RowProductsEverywhere everywhere;
  for (const char* const mixer : {"gla", "retention"}) {
    model::LanguageModel model(Tiny(model::TestForms(mixer).front()));
    model.BindOwnMemory(1, false);
    ToBf16(model);
    const RowBits bits = CompareRows(model, 8);
    EXPECT_TRUE(bits.same_for_index) << mixer;
    EXPECT_TRUE(bits.same_for_count) << mixer;
  }
}

TEST(Decoder, RefusesTokensBeyondTheModelsPositions) {
  model::ModelConfig config = Tiny(model::TestForms("retention").front());
  config.positions = model::PositionsConfig("learned", {{"max_positions", int64_t{3}}});
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  Decoder decoder(model, model.EmptyState(kBatch));
  const at::Tensor token = Tokens(1).select(1, 0);
  for (int i = 0; i < 3; ++i) decoder.Step(token);
  EXPECT_HL_ERROR(decoder.Step(token), ExitCode::kUsage, "position 3 is beyond",
                  "table of 3 positions", "shorter texts");
}

// A graph replaces many launches by one, which gains nothing on the CPU.
TEST(Decoder, RecordsOnlyOnAGpu) {
  model::LanguageModel model(Tiny(model::TestForms("retention").front()));
  model.BindOwnMemory(1, false);
  EXPECT_FALSE(Decoder(model, model.EmptyState(1)).uses_graph());
}

}  // namespace
}  // namespace halflife::infer
