// What a recipe's author is told: line, column, the nearest names, and what took the place of a
// name that earlier recipes had.
#include "train/config/recipe_text.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

constexpr auto kUsage = ExitCode::kUsage;

RunConfig Recipe(const std::string& text) { return ParseRunConfig(text, "my.textproto", {}); }
RunConfig Set(const std::string& assignment, const std::string& recipe = "") {
  return ParseRunConfig(recipe, "my.textproto", {assignment});
}
const std::string kSoftmax = "model { mixer { softmax {} } }";

TEST(RecipeText, AnUnknownKeyHasFileLineColumnAndTheNearestNames) {
  EXPECT_HL_ERROR(Recipe("train {\n  stepps: 3\n}\n"), kUsage, "my.textproto:2:", "stepps",
                  "did you mean 'steps'?");
  EXPECT_HL_ERROR(Recipe("model {\n mixer {\n  gla { num_head: 4 }\n }\n}"), kUsage,
                  "my.textproto:3:", "num_head", "It has num_heads, num_kv_heads, expand_k",
                  "did you mean 'num_heads'");
}

TEST(RecipeText, AWrongTypeHasFileLineAndColumn) {
  EXPECT_HL_ERROR(Recipe("train { steps: \"many\" }"), kUsage, "my.textproto:1:16", "integer");
  EXPECT_HL_ERROR(Recipe("model { mixer { gla { expand_k: true } } }"), kUsage,
                  "my.textproto:1:", "double");
}

TEST(RecipeText, AnUnknownMixerListsTheKnownOnes) {
  EXPECT_HL_ERROR(Recipe("model { mixer { glaa {} } }"), kUsage, "my.textproto:1:", "glaa",
                  "It has retention, gla, softmax", "did you mean 'gla'?");
}

TEST(RecipeText, AMixerNamedTwiceIsRefused) {
  EXPECT_HL_ERROR(Recipe("model { mixer { gla {}\n softmax {} } }"), kUsage,
                  "my.textproto:2:", "\"softmax\"", "\"gla\"");
  EXPECT_HL_ERROR(Recipe("model { mixer { gla {} }\n mixer { gla {} } }"), kUsage,
                  "my.textproto:2:", "\"mixer\" is specified multiple times");
  EXPECT_HL_ERROR(Recipe("train { steps: 1 steps: 2 }"), kUsage, "specified multiple times");
}

TEST(RecipeText, AnOptionOfAnotherMixerIsRefused) {
  EXPECT_HL_ERROR(Recipe("model { mixer { softmax { expand_k: 1 } } }"), kUsage,
                  "my.textproto:1:", "expand_k", "It has num_heads");
  EXPECT_HL_ERROR(Set("model.mixer.gla.num_heads=4", kSoftmax), kUsage,
                  "the recipe has softmax there; --set model.mixer=gla before it would take gla "
                  "with its defaults");
}

TEST(RecipeText, AFormerNameShowsTheNewForm) {
  EXPECT_HL_ERROR(Recipe("model { mixer { name: \"gla\" } }"), kUsage,
                  "my.textproto:1:", "It is now written mixer { gla {} }");
  EXPECT_HL_ERROR(Recipe("model { mixer { options { key: \"num_heads\" value: \"4\" } } }"), kUsage,
                  "It is now written mixer { gla { num_heads: 4 } }");
  EXPECT_HL_ERROR(Recipe("model { mlp_dim: 512 }"), kUsage,
                  "It is now written channel_mixer { swiglu { width: 512 } }");
  EXPECT_HL_ERROR(Recipe("model { tie_embeddings: true }"), kUsage,
                  "It is now written head { tied: true }");
  EXPECT_HL_ERROR(Set("model.mixer.name=gla"), kUsage, "now written --set model.mixer=gla");
  EXPECT_HL_ERROR(Set("model.mixer.options.num_heads=4"), kUsage,
                  "now written --set model.mixer.gla.num_heads=4");
  EXPECT_HL_ERROR(Set("model.norm_eps=1e-5"), kUsage,
                  "now written --set model.norm.rms_norm.eps=1e-6");
}

TEST(Override, AVariantComesWithItsDefaults) {
  const std::string recipe = "model { mixer { gla { num_heads: 16 } } }";
  const RunConfig other = Set("model.mixer=retention", recipe);
  EXPECT_EQ(other.model.mixer.name(), "retention");
  EXPECT_EQ(other.model.mixer.Get<int64_t>("num_heads"), 8);
  EXPECT_EQ(Set("model.mixer=gla", recipe).model.mixer.Get<int64_t>("num_heads"), 4);
  EXPECT_EQ(Set("model.mixer.gla.expand_k=1", recipe).model.mixer.Get<int64_t>("num_heads"), 16);
  EXPECT_EQ(Set("model.mixer.gla.num_heads=2").model.mixer.name(), "gla") << "none was chosen";
  EXPECT_EQ(Set("model.positions=sinusoidal").model.positions.name(), "sinusoidal");
}

TEST(Override, APathThatLeadsNowhereSaysWhatThereIs) {
  EXPECT_HL_ERROR(Set("optimizer.learning_rate=1"), kUsage, "learning_rate", "OptimizerConfig",
                  "lr, beta1");
  EXPECT_HL_ERROR(Set("optimizer=1"), kUsage, "is a group", "lr, beta1");
  EXPECT_HL_ERROR(Set("train.steps"), kUsage, "path=value");
  EXPECT_HL_ERROR(Set("train.steps=ten"), kUsage, "--set train.steps=ten", "ten");
  EXPECT_HL_ERROR(Set("train.steps.x=1"), kUsage, "has no fields");
  EXPECT_HL_ERROR(Set("model.mixer=glaa"), kUsage, "unknown mixer 'glaa'",
                  "known: retention, gla, softmax", "did you mean 'gla'?");
  EXPECT_HL_ERROR(Set("model.mixer.num_heads=4"), kUsage, "it has retention, gla, softmax",
                  "options stand below them, e.g. model.mixer.retention.num_heads");
}

}  // namespace
}  // namespace halflife::train
