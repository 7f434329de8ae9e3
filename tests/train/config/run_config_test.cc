#include "train/config/run_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

constexpr char kRecipe[] = R"(
data { path: "d" seq_len: 128 }
model { model_dim: 64 num_layers: 2 mixer { name: "gla" options { key: "num_heads" value: "2" } } }
optimizer { lr: 0.01 }
train { steps: 20 global_batch: 8 micro_batch: 2 }
)";

RunConfig Parse(const std::vector<std::string>& overrides) {
  return ParseRunConfig(kRecipe, "recipe.textproto", overrides);
}

TEST(RunConfig, AbsentFieldsKeepTheirDefaults) {
  const RunConfig config = Parse({});
  EXPECT_EQ(config.data.seq_len, 128);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 0.01);
  EXPECT_DOUBLE_EQ(config.optimizer.beta2, OptimizerConfig{}.beta2);
  EXPECT_EQ(config.model.mixer.name, "gla");
  EXPECT_EQ(config.model.mixer.options.at("num_heads"), "2");
  EXPECT_EQ(config.model.vocab_size, 0);
}

TEST(RunConfig, OverridesReachEveryKindOfField) {
  const RunConfig config = Parse({"optimizer.lr=3e-4", "data.path=other", "train.steps=7",
                                  "model.tie_embeddings=true", "model.mixer.options.num_heads=4",
                                  "model.mixer.options.expand_v=2", "ckpt.keep_last=5"});
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.data.path, "other");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_TRUE(config.model.tie_embeddings);
  EXPECT_EQ(config.model.mixer.options.at("num_heads"), "4");
  EXPECT_EQ(config.model.mixer.options.at("expand_v"), "2");
  EXPECT_EQ(config.ckpt.store.keep_last, 5);
}

// A group without a mixer would silently be the default one.
TEST(RunConfig, HybridLayersNameTheirMixer) {
  EXPECT_HL_ERROR(Parse({"model.hybrid.layers=1"}), ExitCode::kUsage, "'hybrid' is a list",
                  "write it in the recipe");
  EXPECT_HL_ERROR(ParseRunConfig("model { hybrid { layers: [1, 3] } }", "recipe", {}),
                  ExitCode::kUsage, "recipe: model.hybrid for layers 1, 3 names no mixer");
}

TEST(RunConfig, AMisspeltNameIsToldTheNearest) {
  EXPECT_HL_ERROR(Parse({"optimizer.lrr=1"}), ExitCode::kUsage, "did you mean 'lr'?");
  EXPECT_HL_ERROR(Parse({"trian.steps=1"}), ExitCode::kUsage, "did you mean 'train'?");
}

TEST(RunConfig, ABatchThatNoStepEndsIsRefused) {
  const auto validate = [](const std::string& value) {
    Validate(Parse({"train.global_batch=" + value}), 1);
  };
  EXPECT_HL_ERROR(validate("9223372036854775804"), ExitCode::kUsage, "train.global_batch",
                  "use at most 33554432 (2^32 tokens a step of rows of 128)");
  EXPECT_HL_ERROR(Validate(Parse({"train.steps=9223372036854775807"}), 1), ExitCode::kUsage,
                  "train.steps", "at most 1073741824");
  Validate(Parse({"train.global_batch=33554432"}), 1);
}

TEST(RunConfig, ResolvedTextReadsBackTheSame) {
  const RunConfig config =
      Parse({"optimizer.eps=1.2345678901234567e-9", "train.seed=18446744073709551615"});
  const std::string text = ToText(config);
  const RunConfig again = ParseRunConfig(text, "resolved", {});
  EXPECT_EQ(ToText(again), text);
  EXPECT_EQ(again.optimizer.eps, config.optimizer.eps);
  EXPECT_EQ(again.train.seed, config.train.seed);
  EXPECT_EQ(TrajectoryFields(again), TrajectoryFields(config));
}

TEST(RunConfig, FlatFieldsHoldEveryField) {
  const std::map<std::string, std::string> fields =
      FlatFields(Parse({"model.tie_embeddings=true", "data.path=a b", "optimizer.eps=1e-9"}));
  EXPECT_EQ(fields.at("optimizer.lr"), "0.01");
  EXPECT_EQ(fields.at("optimizer.eps"), "1e-09");
  EXPECT_EQ(fields.at("model.tie_embeddings"), "true");
  EXPECT_EQ(fields.at("data.path"), "a b");
  EXPECT_EQ(fields.at("model.mixer.name"), "gla");
  EXPECT_EQ(fields.at("model.mixer.options.num_heads"), "2");
  EXPECT_EQ(fields.at("log.tensorboard"), "true");
  // one line of the text for each, but for those that open and close a group or hold a map's entry
  const std::string text = ToText(Parse({}));
  EXPECT_EQ(static_cast<long>(fields.size()), std::count(text.begin(), text.end(), ':') - 1);
}

TEST(RunConfig, UnknownKeyHasFileLineAndColumn) {
  EXPECT_HL_ERROR(ParseRunConfig("train {\n  stepps: 3\n}\n", "my.textproto", {}), ExitCode::kUsage,
                  "my.textproto:2:", "stepps", "run_config.proto");
}

TEST(RunConfig, WrongTypeHasFileLineAndColumn) {
  EXPECT_HL_ERROR(ParseRunConfig("train { steps: \"many\" }", "my.textproto", {}), ExitCode::kUsage,
                  "my.textproto:1:16", "integer");
}

TEST(RunConfig, BadOverridesSayWhatThereIs) {
  EXPECT_HL_ERROR(Parse({"optimizer.learning_rate=1"}), ExitCode::kUsage, "learning_rate",
                  "OptimizerConfig", "lr, beta1");
  EXPECT_HL_ERROR(Parse({"optimizer=1"}), ExitCode::kUsage, "is a group", "lr, beta1");
  EXPECT_HL_ERROR(Parse({"train.steps"}), ExitCode::kUsage, "path=value");
  EXPECT_HL_ERROR(Parse({"train.steps=ten"}), ExitCode::kUsage, "--set train.steps=ten", "ten");
  EXPECT_HL_ERROR(Parse({"train.steps.x=1"}), ExitCode::kUsage, "has no fields");
}

TEST(RunConfig, MissingFile) {
  EXPECT_HL_ERROR(LoadRunConfig("/nowhere/r.textproto", {}), ExitCode::kUsage,
                  "/nowhere/r.textproto", "No such file");
}

TEST(RunConfig, ValidateListsEveryProblemAtOnce) {
  const RunConfig config = Parse({"optimizer.lr=-1", "train.global_batch=6", "schedule.kind=step",
                                  "ckpt.keep_last=1", "train.precision=fp16", "parallel.sp=2"});
  EXPECT_HL_ERROR(Validate(config, 2), ExitCode::kUsage, "optimizer.lr: -1",
                  "train.global_batch: 6; use a multiple of micro_batch x ranks = 2 x 2 = 4",
                  "schedule.kind: 'step'; use one of cosine, linear, constant, wsd",
                  "ckpt.keep_last: 1", "train.precision: 'fp16'; use one of fp32, bf16",
                  "parallel.sp: 2; use 1");
}

TEST(RunConfig, ValidAsItStands) { EXPECT_NO_THROW(Validate(Parse({}), 4)); }

}  // namespace
}  // namespace halflife::train
