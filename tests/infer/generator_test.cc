#include "infer/generator.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::infer {
namespace {

TEST(GeneratorTest, SaysWhichPromptsWouldWork) {
  model::LanguageModel model({.vocab_size = 30,
                              .model_dim = 32,
                              .num_layers = 1,
                              .mixer = model::MixerConfig("gla", {{"num_heads", int64_t{2}}})});
  model.BindOwnMemory(1, false);
  const auto generate = [&](const std::vector<int32_t>& prompt) {
    Generate(model, prompt, {.max_tokens = 1}, [](int32_t) { return true; });
  };
  EXPECT_HL_ERROR(generate({}), ExitCode::kUsage, "give at least one character with --prompt");
  EXPECT_HL_ERROR(generate({1, 30}), ExitCode::kUsage,
                  "prompt token 30 is outside the model's vocabulary of 30; ids of 0 to 29");
  generate({1, 29});
}

}  // namespace
}  // namespace halflife::infer
