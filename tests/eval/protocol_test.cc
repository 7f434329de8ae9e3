// Names of evaluation protocols, and combinations that do not fit.
#include "eval/length_table.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/expect_error.h"

namespace halflife::eval {
namespace {

std::unique_ptr<model::LanguageModel> Model(
    const model::MixerConfig& mixer,
    const model::ObjectiveConfig& objective = model::ObjectiveConfig()) {
  model::ModelConfig config = {.vocab_size = 41, .model_dim = 16, .num_layers = 1};
  config.mixer = mixer;
  config.objective = objective;
  return std::make_unique<model::LanguageModel>(config);
}

TEST(Protocols, AreReadFromTheirNames) {
  const Protocol segments = Protocol::Parse("segments"), sliding = Protocol::Parse("sliding:16"),
                 carried = Protocol::Parse("carried:256");
  EXPECT_EQ(segments.stride(), 0);
  EXPECT_EQ(segments.piece(), 0);
  EXPECT_EQ(sliding.stride(), 16);
  EXPECT_EQ(sliding.piece(), 0);
  EXPECT_EQ(carried.stride(), 0);
  EXPECT_EQ(carried.piece(), 256);
  EXPECT_EQ(carried.text(), "carried:256");
}

TEST(Protocols, SayWhatDoesNotFit) {
  EXPECT_HL_ERROR(Protocol::Parse("jumping"), ExitCode::kUsage, "there is no 'jumping'",
                  "Use segments, sliding:STRIDE or carried:PIECE");
  EXPECT_HL_ERROR(Protocol::Parse("sliding"), ExitCode::kUsage, "there is no 'sliding'");
  for (const char* text : {"sliding:", "sliding:0", "sliding:-4", "sliding:4x"})
    EXPECT_HL_ERROR(Protocol::Parse(text), ExitCode::kUsage, "takes a whole number");
  const auto softmax = Model(model::MixerConfig("softmax")), gla = Model(model::MixerConfig("gla"));
  Protocol::Parse("sliding:16").RequireFits(*softmax, 64);
  Protocol::Parse("carried:100").RequireFits(*gla, 64);
  EXPECT_HL_ERROR(Protocol::Parse("sliding:24").RequireFits(*gla, 64), ExitCode::kUsage,
                  "24 does not divide rows of 64");
  EXPECT_HL_ERROR(Protocol::Parse("carried:16").RequireFits(*softmax, 64), ExitCode::kUsage,
                  "the state of the mixer of layer 0, softmax, grows", "sliding:STRIDE");
  const auto encoder = Model(model::MixerConfig("gau", {{"causal", false}}),
                             model::ObjectiveConfig("masked_token", {{"mask_id", int64_t{2}}}));
  Protocol::Parse("segments").RequireFits(*encoder, 64);
  EXPECT_HL_ERROR(Protocol::Parse("sliding:16").RequireFits(*encoder, 64), ExitCode::kUsage,
                  "objective is masked_token", "Use segments.");
}

}  // namespace
}  // namespace halflife::eval
