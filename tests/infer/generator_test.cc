// Generation ends at the model's position limit and reports prompts that do not fit.
#include "infer/generator.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::infer {
namespace {

TEST(GeneratorTest, NamesThePromptsThatFit) {
  model::LanguageModel model({.vocab_size = 30,
                              .model_dim = 32,
                              .num_layers = 1,
                              .mixer = model::MixerConfig("gla", {{"num_heads", int64_t{2}}})});
  model.BindOwnMemory(1, false);
  const auto generate = [&](const std::vector<int32_t>& prompt) {
    Generate(model, prompt, {.max_tokens = 1}, [](int32_t) { return true; });
  };
  EXPECT_HL_ERROR(generate({}), ExitCode::kUsage,
                  "the prompt is empty. Give at least one character or token.");
  EXPECT_HL_ERROR(generate({1, 30}), ExitCode::kUsage,
                  "prompt token 30 is outside the model's vocabulary of 30. Use ids of 0 to 29.");
  generate({1, 29});
}

// Every token except the last is fed to the model and has a position.
TEST(GeneratorTest, EndsWhereTheModelHasNoFurtherPosition) {
  model::ModelConfig config = {
      .vocab_size = 30,
      .model_dim = 32,
      .num_layers = 1,
      .mixer = model::MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", 0.0}})};
  config.positions = model::PositionsConfig("learned", {{"max_positions", int64_t{8}}});
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const auto generate = [&](size_t prompt_tokens, int64_t max_tokens, int64_t stop_after = 100) {
    int64_t told = 0;
    const GenerateStats stats =
        Generate(model, std::vector<int32_t>(prompt_tokens, 1), {.max_tokens = max_tokens},
                 [&](int32_t) { return ++told < stop_after; });
    EXPECT_EQ(stats.new_tokens, told);
    return stats;
  };
  for (const size_t prompt : {1, 5, 8}) {
    const auto most = static_cast<int64_t>(9 - prompt);
    const GenerateStats stats = generate(prompt, 100);
    EXPECT_EQ(stats.new_tokens, most);
    EXPECT_TRUE(stats.reached_limit);
    EXPECT_EQ(generate(prompt, most).new_tokens, most);
    EXPECT_FALSE(generate(prompt, most).reached_limit) << "as many as were asked for";
    EXPECT_FALSE(generate(prompt, 100, most).reached_limit) << "stopped by the caller";
  }
  EXPECT_HL_ERROR(generate(9, 1), ExitCode::kUsage,
                  "the prompt has 9 tokens, too many for the model's table of 8 positions. Use at "
                  "most 8.");
}

}  // namespace
}  // namespace halflife::infer
