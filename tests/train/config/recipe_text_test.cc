// Checks the errors in a recipe's text: they name the line, the column and the fix.
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
  EXPECT_HL_ERROR(Recipe("train {\n  stepps: 3\n}\n"), kUsage,
                  "my.textproto:2:3: 'stepps' is not a field of train. It has steps, global_batch",
                  "did you mean 'steps'?");
  EXPECT_HL_ERROR(Recipe("model {\n mixer {\n  gla { num_head: 4 }\n }\n}"), kUsage,
                  "my.textproto:3:", "num_head", "It has num_heads, num_kv_heads, expand_k",
                  "did you mean 'num_heads'");
}

TEST(RecipeText, ANumberOfTheWrongKindIsWrittenOut) {
  EXPECT_HL_ERROR(Recipe("train {\n\tsteps:\t1e3\n}"), kUsage,
                  "my.textproto:2:9: train.steps must be an integer. Write 1000.");
  EXPECT_HL_ERROR(Recipe("train { steps: 1_000 }"), kUsage,
                  "my.textproto:1:16: train.steps must be an integer. Write 1000.");
  EXPECT_HL_ERROR(Recipe("train { steps: -1e3 }"), kUsage, ":1:16: ", "Write -1000.");
  EXPECT_HL_ERROR(Recipe("train { steps: \"100\" }"), kUsage, "must be an integer. Write 100.");
  EXPECT_HL_ERROR(Recipe("train { steps: 1.5 }"), kUsage, "must be an integer, not 1.5.");
  EXPECT_HL_ERROR(Recipe("train { steps: \"many\" }"), kUsage,
                  "my.textproto:1:16: train.steps must be an integer, not \"many\".");
  EXPECT_HL_ERROR(Recipe("train { steps: 10M }"), kUsage, "must be an integer, not 10M.");
  EXPECT_HL_ERROR(Recipe("train { seed: -1 }"), kUsage, "train.seed must be 0 or more, not -1.");
  EXPECT_HL_ERROR(Recipe("data { prefetch: 99999999999 }"), kUsage,
                  "data.prefetch is 99999999999, which is too large for it.");
  EXPECT_HL_ERROR(Recipe("model { hybrid [{ layers: [0] }, { layers: [1, 2e0] }] }"), kUsage,
                  "model.hybrid.layers must be an integer. Write 2.");
  EXPECT_HL_ERROR(Recipe("train { steps: [1] }"), kUsage, "train.steps takes one value.");
  EXPECT_HL_ERROR(Recipe("train { steps: }"), kUsage, "train.steps has no value.");
  EXPECT_HL_ERROR(Set("train.steps=1e3"), kUsage,
                  "--set train.steps=1e3: train.steps must be an integer. Write 1000.");
  EXPECT_HL_ERROR(Set("train.steps=ten"), kUsage,
                  "--set train.steps=ten: train.steps must be an integer, not ten.");
}

TEST(RecipeText, AValueOfTheWrongKindIsExplained) {
  EXPECT_HL_ERROR(Recipe("data { path: datasets/mine seq_len: 8 }"), kUsage,
                  "my.textproto:1:14: data.path is text. Write it in quotes: path: "
                  "\"datasets/mine\".");
  EXPECT_HL_ERROR(Recipe("model { head { tied: yes } }"), kUsage,
                  "my.textproto:1:22: model.head.tied must be true or false, not yes.");
  EXPECT_HL_ERROR(Recipe("model { head { tied: \"true\" } }"), kUsage, "not \"true\".");
  EXPECT_HL_ERROR(Recipe("optimizer { lr: high }"), kUsage,
                  "optimizer.lr must be a number, not high.");
  EXPECT_HL_ERROR(Recipe("optimizer { lr: \"1e-3\" }"), kUsage, "must be a number. Write 1e-3.");
  EXPECT_HL_ERROR(Recipe("model { mixer { gla { expand_k: true } } }"), kUsage, "my.textproto:1:33",
                  "model.mixer.gla.expand_k must be a number, not true.");
  EXPECT_HL_ERROR(Recipe("model { mixer: \"gla\" }"), kUsage,
                  "my.textproto:1:16: model.mixer is a block. Write mixer { gla {} }.");
  EXPECT_HL_ERROR(Recipe("optimizer: \"adamw\""), kUsage,
                  "optimizer is a block. Write optimizer { lr: VALUE }.");
  EXPECT_HL_ERROR(Recipe("optimizer: \"lion\""), kUsage,
                  "About \"lion\": halflife does not support it.");
  EXPECT_HL_ERROR(Set("model.head.tied=yes"), kUsage, "must be true or false, not yes.");
}

TEST(RecipeText, AnUnknownMixerListsTheKnownOnes) {
  EXPECT_HL_ERROR(Recipe("model { mixer { glaa {} } }"), kUsage,
                  "my.textproto:1:17: 'glaa' is not a variant of model.mixer.",
                  "It has retention, gla, softmax", "did you mean 'gla'?");
}

TEST(RecipeText, ANameGivenTwiceShowsBothLines) {
  EXPECT_HL_ERROR(Recipe("train { steps: 1 }\nmodel {}\ntrain { seed: 2 }"), kUsage,
                  "my.textproto:3:1: the block train is given twice, on lines 1 and 3. Merge them "
                  "into one block.");
  EXPECT_HL_ERROR(Recipe("model {\n hybrid { layers: 1\n mixer { gla {} } }\n mixer { gla {} }\n"
                         " # mixer {\n mixer { gla {} } }"),
                  kUsage,
                  "my.textproto:6:2: the block model.mixer is given twice, on lines 4 and 6.");
  EXPECT_HL_ERROR(Recipe("train { steps: 1 steps: 2 }"), kUsage,
                  "my.textproto:1:18: train.steps is given twice, on line 1. Keep one of them.");
  EXPECT_HL_ERROR(Recipe("model { mixer { gla {}\n softmax {} } }"), kUsage,
                  "my.textproto:2:2: model.mixer has two variants, 'gla' and 'softmax', on lines 1 "
                  "and 2. Keep one of them.");
}

TEST(RecipeText, JsonYamlAndTomlAreNamedWithAnExample) {
  const std::string example = "\n  optimizer { lr: 3e-4 }\n  train { steps: 1000 }";
  EXPECT_EQ(Recipe(example).train.steps, 1000);
  for (const char* text : {"{\n  \"train\": {\"steps\": 100}\n}", "train { \"steps\": 100, }",
                           "train { steps: 100, 'seed': 4 }", " \n{ train { steps: 3 } }"})
    EXPECT_HL_ERROR(Recipe(text), kUsage, "my.textproto:", "this is JSON", example);
  for (const char* text :
       {"train:\n  steps: 100\n", "---\ntrain:\n  steps: 1\n", "train:  # of the run\n  steps: 1",
        "model {\n hybrid:\n  - layers: [1]\n}", "- train: 1"})
    EXPECT_HL_ERROR(Recipe(text), kUsage, "my.textproto:", "this is YAML", example);
  EXPECT_HL_ERROR(Recipe("[optimizer]\nlr = 1e-3"), kUsage, "this is TOML",
                  "Write optimizer { ... }", example);
  EXPECT_HL_ERROR(Set("optimizer={\"lr\": 1}"), kUsage, "--set optimizer=", "this is JSON",
                  example);
}

TEST(RecipeText, PunctuationThatIsMissing) {
  EXPECT_HL_ERROR(Recipe("train { steps 5 }"), kUsage, "my.textproto:1:15: write a colon",
                  "steps: VALUE");
  EXPECT_HL_ERROR(Recipe("optimizer { lr = 1 }"), kUsage, "instead of '=', for example lr: VALUE");
  EXPECT_HL_ERROR(Recipe("model { mixer { gla {}"), kUsage, "the block model.mixer is not closed");
  EXPECT_HL_ERROR(Recipe("train {} }"), kUsage, "my.textproto:1:10: this '}' closes no block");
  EXPECT_HL_ERROR(Recipe("data { path: \"abc }\ntrain {}"), kUsage,
                  "my.textproto:1:", "no closing quote");
  EXPECT_HL_ERROR(Recipe("// a comment\ntrain {}"), kUsage, "a comment begins with '#'");
  EXPECT_HL_ERROR(Recipe("model { hybrid { layers: 1, 2 } }"), kUsage, "as in [1, 2]");
}

TEST(RecipeText, AFieldOfAnotherBlockShowsWhere) {
  EXPECT_HL_ERROR(
      Recipe("seed: 3"), kUsage,
      "my.textproto:1:1: 'seed' is not a field of a recipe. Use train { seed: VALUE }.");
  EXPECT_HL_ERROR(Recipe("train { dropout: 0.1 }"), kUsage, "Use model { dropout: VALUE } or ");
  EXPECT_HL_ERROR(Recipe("model { gla {} }"), kUsage, "Use model { mixer { gla { ... } } }.");
  EXPECT_HL_ERROR(Recipe("model { num_heads: 4 mixer { gla {} } }"), kUsage,
                  "Use model { mixer { retention { num_heads: VALUE } } }");
  EXPECT_HL_ERROR(Set("model.num_heads=4", kSoftmax), kUsage,
                  "'num_heads' is not a field of model. Use --set model.mixer.softmax.num_heads=");
  EXPECT_HL_ERROR(Set("trainer.steps=4"), kUsage,
                  "'trainer' is not a field of a recipe. Use --set train.steps=VALUE.");
}

TEST(RecipeText, AForeignNameIsAnsweredWhereverItIs) {
  EXPECT_HL_ERROR(Recipe("optimizer {\n  learning_rate: 1e-4\n}"), kUsage,
                  "my.textproto:2:3: 'learning_rate' is not a field of optimizer. Use optimizer { "
                  "lr: 3e-4 }.");
  EXPECT_HL_ERROR(Recipe("model { mixer { rebased { heads: 4 } } }"), kUsage,
                  "Use model { mixer { rebased { num_heads: 4 } } }.");
  EXPECT_HL_ERROR(Recipe("wandb { project: 'x' }"), kUsage,
                  "my.textproto:1:1: 'wandb' is not a field of a recipe. halflife does not support "
                  "it. Send the run's metrics.jsonl");
  EXPECT_HL_ERROR(Set("trainer.max_steps=4"), kUsage, "Use --set train.steps=1000.");
  EXPECT_HL_ERROR(Set("model.mixer=rwkv6"), kUsage,
                  "--set model.mixer: 'rwkv6' is not a variant of model.mixer. halflife does not "
                  "support it. Use the mixer rwkv7.");
  EXPECT_HL_ERROR(Set("model.mixer.rwkv6.head_dim=16"), kUsage, "halflife does not support it");
  EXPECT_HL_ERROR(Set("optimizer=lion"), kUsage, "is a group",
                  "About 'lion': halflife does not support it. Use AdamW");
}

TEST(RecipeText, AnOptionOfAnotherMixerIsRefused) {
  EXPECT_HL_ERROR(Recipe("model { mixer { softmax { expand_k: 1 } } }"), kUsage,
                  "my.textproto:1:", "expand_k", "It has num_heads");
  EXPECT_HL_ERROR(Set("model.mixer.gla.num_heads=4", kSoftmax), kUsage,
                  "the recipe has softmax there. Add --set model.mixer=gla before it to select gla "
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
  EXPECT_HL_ERROR(Set("optimizer.lrs=1"), kUsage, "'lrs' is not a field of optimizer. It has lr, ",
                  "did you mean 'lr'?");
  EXPECT_HL_ERROR(Set("optimizer=1"), kUsage, "is a group", "lr, beta1");
  EXPECT_HL_ERROR(Set("train.steps"), kUsage, "path=value");
  EXPECT_HL_ERROR(Set("train.steps.x=1"), kUsage, "has no fields");
  EXPECT_HL_ERROR(Set("model.mixer=glaa"), kUsage, "'glaa' is not a variant of model.mixer",
                  "It has retention, gla, softmax", "did you mean 'gla'?");
  EXPECT_HL_ERROR(Set("model.mixer.num_heads=4"), kUsage,
                  "'num_heads' is not a variant of model.mixer. Use --set "
                  "model.mixer.retention.num_heads=VALUE.");
}

}  // namespace
}  // namespace halflife::train
