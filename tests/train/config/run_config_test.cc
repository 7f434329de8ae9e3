// Checks how recipes and overrides are parsed, merged and validated.
#include "train/config/run_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/concat.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

constexpr char kRecipe[] = R"(
data { path: "d" seq_len: 128 }
model { model_dim: 64 num_layers: 2 mixer { gla { num_heads: 2 } } }
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
  EXPECT_DOUBLE_EQ(config.optimizer.adamw.beta2, OptimizerConfig{}.adamw.beta2);
  EXPECT_EQ(config.model.mixer.name(), "gla");
  EXPECT_EQ(config.model.mixer.Get<int64_t>("num_heads"), 2);
  EXPECT_EQ(config.model.vocab_size, 0);
}

TEST(RunConfig, OverridesReachEveryKindOfField) {
  const RunConfig config =
      Parse({"optimizer.lr=3e-4", "data.path=other", "train.steps=7", "model.head.tied=true",
             "model.mixer.gla.num_heads=4", "model.mixer.gla.expand_v=2", "ckpt.keep_last=5"});
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.data.path, "other");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_TRUE(config.model.head.tied);
  EXPECT_EQ(config.model.mixer.Get<int64_t>("num_heads"), 4);
  EXPECT_EQ(config.model.mixer.Get<double>("expand_v"), 2);
  EXPECT_EQ(config.ckpt.store.retention.keep_last, 5);
}

// A group without a mixer must be an error, because it would silently get the default mixer.
TEST(RunConfig, HybridLayersNameTheirMixer) {
  const RunConfig config =
      ParseRunConfig("data { path: 'd' } model { hybrid { layers: [1, 3] } }", "recipe", {});
  EXPECT_HL_ERROR(Validate(config, 1), ExitCode::kUsage,
                  "the hybrid group of layers 1, 3 names no mixer, channel mixer or block");
}

TEST(RunConfig, TheLastNormIsThatOfTheOthersUnlessNamed) {
  const auto parse = [](const std::vector<std::string>& overrides) {
    return ParseRunConfig("data { path: 'd' } model { norm { layer_norm {} } }", "recipe",
                          overrides);
  };
  EXPECT_FALSE(parse({}).model.final_norm);
  EXPECT_EQ(parse({}).model.head.logit_scale, 1);
  const RunConfig bare = parse({"model.final_norm={ none {} }", "model.head.logit_scale=0"});
  EXPECT_EQ(bare.model.final_norm->name(), "none");
  EXPECT_EQ(bare.model.head.logit_scale, 0);
  const RunConfig config = parse({"model.final_norm={ rms_norm { eps: 1e-3 } }"});
  const RunConfig again = ParseRunConfig(ToText(config), "what a run keeps", {});
  for (const RunConfig& read : {config, again}) {
    ASSERT_TRUE(read.model.final_norm);
    EXPECT_EQ(read.model.final_norm->name(), "rms_norm");
    EXPECT_EQ(read.model.final_norm->Get<double>("eps"), 1e-3);
  }
}

TEST(RunConfig, LayersHaveTheBlockOfTheirGroup) {
  const RunConfig config = ParseRunConfig(
      "data { path: 'd' } model { hybrid { layers: [1] block { output_norm {} } } }", "recipe", {});
  const RunConfig again = ParseRunConfig(ToText(config), "what a run keeps", {});
  for (const RunConfig& read : {config, again}) {
    EXPECT_EQ(read.model.block_of(0).name(), "pre_norm");
    EXPECT_EQ(read.model.block_of(1).name(), "output_norm");
  }
}

TEST(RunConfig, AnOverrideInBracketsTakesThePlaceOfAll) {
  const std::string recipe =
      "model { mixer { gla { num_heads: 2 } } hybrid { layers: [1] mixer { softmax {} } } }";
  const auto parse = [&](const std::string& override) {
    return ParseRunConfig(recipe, "recipe", {override}).model;
  };
  EXPECT_TRUE(parse("model.hybrid=[]").hybrid.empty());
  const model::ModelConfig two = parse(
      "model.hybrid=[{ layers: [0] mixer { d2d {} } }, { layers: [2, 3] mixer { softmax {} } }]");
  ASSERT_EQ(two.hybrid.size(), 2u);
  EXPECT_EQ(two.hybrid[0].mixer->name(), "d2d");
  EXPECT_EQ(two.hybrid[1].layers, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(parse("model.mixer={ gla { expand_v: 2 } }").mixer.Get<int64_t>("num_heads"),
            model::MixerConfig("gla").Get<int64_t>("num_heads"));
  EXPECT_HL_ERROR(parse("model.hybrid.layers=1"), ExitCode::kUsage, "--set model.hybrid.layers",
                  "'hybrid' is a list", "=[] for none");
  EXPECT_HL_ERROR(parse("model.hybrid=softmax"), ExitCode::kUsage, "'hybrid' is a list",
                  "--set 'model.hybrid=[{ layers: ... }]', or =[] for none");
  EXPECT_HL_ERROR(
      parse("eval.set.name=a"), ExitCode::kUsage,
      "'set' is a list, and only a whole list can be set: --set 'eval.set=[{ name: ... }]'");
  EXPECT_HL_ERROR(parse("model.hybrid=[{ layer: [1] }]"), ExitCode::kUsage,
                  "--set model.hybrid=[{ layer: [1] }]: 'layer' is not a field of model.hybrid.",
                  "did you mean 'layers'");
}

TEST(RunConfig, AMisspeltNameGetsASuggestion) {
  EXPECT_HL_ERROR(Parse({"optimizer.lrr=1"}), ExitCode::kUsage, "did you mean 'lr'?");
  EXPECT_HL_ERROR(Parse({"trian.steps=1"}), ExitCode::kUsage, "did you mean 'train'?");
}

TEST(RunConfig, StepsOverriddenByEpochsAreReported) {
  const auto parse = [](const std::vector<std::string>& overrides) {
    return ParseRunConfig("train { max_epochs: 64 } schedule { per_epoch: true }", "recipe",
                          overrides);
  };
  EXPECT_HL_ERROR(parse({"train.steps=20"}), ExitCode::kUsage,
                  "--set train.steps=20 would be ignored: train.max_epochs 64 decides",
                  "Use --set train.max_epochs=0 and --set schedule.per_epoch=false");
  EXPECT_HL_ERROR(parse({"train={ steps: 20 max_epochs: 2 }"}), ExitCode::kUsage,
                  "--set train.steps=20 would be ignored: train.max_epochs 2 decides");
  EXPECT_HL_ERROR(Parse({"train.max_epochs=3", "train.steps=20"}), ExitCode::kUsage,
                  "Use --set train.max_epochs=0 to make train.steps count.");
  for (const std::vector<std::string>& either :
       {std::vector<std::string>{"train.steps=20", "train.max_epochs=0"},
        {"train.max_epochs=0", "train.steps=20"}})
    EXPECT_EQ(parse(either).train.steps, 20);
  EXPECT_EQ(parse({"train={ steps: 20 }"}).train.steps, 20);
  EXPECT_EQ(parse({"train.max_epochs=2"}).train.max_epochs, 2);
  // The config of an existing run contains both settings.
  const RunConfig resolved = parse({});
  EXPECT_EQ(ToText(ParseRunConfig(ToText(resolved), "resolved", {})), ToText(resolved));
}

TEST(RunConfig, ABatchThatNoStepEndsIsRefused) {
  const auto validate = [](const std::string& value) {
    Validate(Parse({"train.global_batch=" + value}), 1);
  };
  EXPECT_HL_ERROR(validate("9223372036854775804"), ExitCode::kUsage, "train.global_batch",
                  "Use at most 33554432 (2^32 tokens per step, with rows of 128)");
  EXPECT_HL_ERROR(Validate(Parse({"train.steps=9223372036854775807"}), 1), ExitCode::kUsage,
                  "train.steps", "at most 1073741824");
  Validate(Parse({"train.global_batch=33554432"}), 1);
}

TEST(RunConfig, AMicroBatchOfAnySizeIsChecked) {
  const auto validate = [](const std::string& value) {
    Validate(Parse({"data.seq_len=1024", "train.micro_batch=" + value}), 1);
  };
  for (const char* value : {"2097152", "4194305", "9223372036854775807"})
    EXPECT_HL_ERROR(validate(value), ExitCode::kUsage, Concat("train.micro_batch: ", value),
                    "Use at most 2097151 (micro_batch x seq_len must fit in 32 bits)");
}

TEST(RunConfig, ABestValidationNeedsValidations) {
  const auto validate = [](std::vector<std::string> set) {
    set.emplace_back("ckpt.keep_best=val_loss");
    Validate(Parse(set), 1);
  };
  EXPECT_NO_THROW(validate({"eval.every=5"}));
  EXPECT_NO_THROW(validate({"eval.every_epochs=1"}));
  EXPECT_HL_ERROR(validate({"eval.every=0"}), ExitCode::kUsage,
                  "ckpt.keep_best: val_loss. Use loss or '' without eval.every");
}

TEST(RunConfig, ATimeoutIsAnyNumberAboveZero) {
  for (const char* field : {"comm.timeout_s", "ckpt.timeout_s"}) {
    for (const char* value : {"0.5", "1e10", "1e300", "inf"})
      EXPECT_NO_THROW(Validate(Parse({Concat(field, "=", value)}), 1)) << field << " " << value;
    for (const char* value : {"0", "-1", "nan", "-inf"})
      EXPECT_HL_ERROR(Validate(Parse({Concat(field, "=", value)}), 1), ExitCode::kUsage, field,
                      "Use seconds > 0 (inf: no limit)");
  }
}

// Writes the texts to files and loads the files in this order.
class MergedRecipes : public testing::Test {
 protected:
  RunConfig Merge(const std::vector<std::string>& texts,
                  const std::vector<std::string>& overrides = {}) {
    std::vector<std::filesystem::path> files;
    for (const std::string& text : texts) {
      files.push_back(dir_ / Concat("r", files.size(), ".textproto"));
      std::ofstream(files.back()) << text;
    }
    return LoadRunConfig(files, overrides);
  }
  test::TempDir dir_;
};

TEST_F(MergedRecipes, TheLaterFileWinsFieldByField) {
  const RunConfig config =
      Merge({kRecipe, "optimizer { lr: 0.5 } train { seed: 9 } model { head { tied: true } }",
             "train { seed: 10 }"},
            {"train.micro_batch=4"});
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_EQ(config.train.seed, 10u);
  EXPECT_EQ(config.train.steps, 20);
  EXPECT_EQ(config.train.micro_batch, 4);
  EXPECT_TRUE(config.model.head.tied);
  EXPECT_EQ(config.model.mixer.Get<int64_t>("num_heads"), 2);
  EXPECT_EQ(ToText(Merge({kRecipe, kRecipe})), ToText(Parse({})));
  EXPECT_EQ(ToText(Merge({"", kRecipe, ""})), ToText(Parse({})));
  EXPECT_EQ(ToText(Merge({kRecipe, "train { seed: 9 }"}, {"train.seed=1"})), ToText(Parse({})));
}

TEST_F(MergedRecipes, AnotherVariantReplacesAndTheSameOneIsMerged) {
  const auto mixer = [&](const std::string& changes) {
    return Merge({"model { mixer { gla { num_heads: 16 expand_v: 3 } } }", changes}).model.mixer;
  };
  const model::MixerConfig same = mixer("model { mixer { gla { expand_v: 2 } } }");
  EXPECT_EQ(same.Get<int64_t>("num_heads"), 16);
  EXPECT_EQ(same.Get<double>("expand_v"), 2);
  const model::MixerConfig other = mixer("model { mixer { retention { expand_k: 0.25 } } }");
  EXPECT_EQ(other.name(), "retention");
  EXPECT_EQ(other.Get<int64_t>("num_heads"),
            model::MixerConfig("retention").Get<int64_t>("num_heads"));
  EXPECT_EQ(other.Get<double>("expand_k"), 0.25);
  EXPECT_EQ(mixer("model { mixer {} }").Get<int64_t>("num_heads"), 16);
}

TEST_F(MergedRecipes, AListReplacesTheList) {
  const std::string base = "model { hybrid { layers: [0, 1] mixer { softmax {} } } }";
  const auto hybrid = [&](const std::string& changes) {
    return Merge({base, changes}).model.hybrid;
  };
  ASSERT_EQ(hybrid("model { num_layers: 2 }").size(), 1u);
  const std::vector<model::LayerGroup> replaced = hybrid(
      "model { hybrid { layers: 3 mixer { d2d {} } } hybrid { layers: 2 mixer { gla {} } } }");
  ASSERT_EQ(replaced.size(), 2u);
  EXPECT_EQ(replaced[0].layers, std::vector<int64_t>{3});
  EXPECT_EQ(replaced[1].mixer->name(), "gla");
  EXPECT_TRUE(hybrid("model { hybrid: [] }").empty());
  EXPECT_TRUE(hybrid("model: { hybrid []; num_layers: 2 }").empty());
}

TEST_F(MergedRecipes, AnErrorNamesItsFile) {
  EXPECT_HL_ERROR(Merge({kRecipe, "train {\n stepps: 3 }"}), ExitCode::kUsage,
                  "r1.textproto:2:2: ");
  EXPECT_HL_ERROR(
      Merge({"train { max_epochs: 3 } schedule { per_epoch: true }", "", "train { steps: 7 }"}),
      ExitCode::kUsage, "r2.textproto: train.steps=7 would be ignored: train.max_epochs 3 decides",
      "Use --set train.max_epochs=0 and --set schedule.per_epoch=false");
  EXPECT_EQ(
      Merge({"train { max_epochs: 3 }", "train { steps: 7 }"}, {"train.max_epochs=0"}).train.steps,
      7);
  // The config of a finished run contains both numbers, also if it is loaded as a later file.
  const std::string resolved = ToText(ParseRunConfig("train { max_epochs: 3 }", "r", {}));
  EXPECT_EQ(ToText(Merge({kRecipe, resolved})), ToText(ParseRunConfig(resolved, "r", {})));
}

TEST(RunConfig, ResolvedTextReadsBackTheSame) {
  const RunConfig config =
      Parse({"optimizer.eps=1.2345678901234567e-9", "train.seed=18446744073709551615"});
  const std::string text = ToText(config);
  const RunConfig again = ParseRunConfig(text, "resolved", {});
  EXPECT_EQ(ToText(again), text);
  EXPECT_EQ(again.optimizer.adamw.eps, config.optimizer.adamw.eps);
  EXPECT_EQ(again.train.seed, config.train.seed);
  EXPECT_EQ(TrajectoryFields(again), TrajectoryFields(config));
}

TEST(RunConfig, FlatFieldsHoldEveryField) {
  const std::map<std::string, std::string> fields =
      FlatFields(Parse({"model.head.tied=true", "data.path=a b", "optimizer.eps=1e-9"}));
  EXPECT_EQ(fields.at("optimizer.lr"), "0.01");
  EXPECT_EQ(fields.at("optimizer.eps"), "1e-09");
  EXPECT_EQ(fields.at("model.head.tied"), "true");
  EXPECT_EQ(fields.at("data.path"), "a b");
  EXPECT_EQ(fields.at("model.mixer"), "gla");
  EXPECT_EQ(fields.at("model.mixer.gla.num_heads"), "2");
  EXPECT_EQ(fields.at("log.tensorboard"), "true");
}

TEST(RunConfig, FlatFieldsHoldHybridLayers) {
  const RunConfig config = ParseRunConfig(
      "model { hybrid { layers: [1, 3] mixer { softmax { window: 7 } } } }", "recipe", {});
  const std::map<std::string, std::string> fields = FlatFields(config);
  EXPECT_EQ(fields.at("model.hybrid.0.layers.1"), "3");
  EXPECT_EQ(fields.at("model.hybrid.0.mixer.softmax.window"), "7");
}

TEST(RunConfig, PhasesOfTheSchedule) {
  const std::string phases =
      "schedule.phase=[{ name: 'up' steps: 5 from: 0 to: 1 }, { name: 'rest' }, { name: 'down' "
      "share: 0.25 to: 0.1 shape: 'cosine' }]";
  const RunConfig config = Parse({phases});
  for (const RunConfig& read : {config, ParseRunConfig(ToText(config), "what a run keeps", {})}) {
    EXPECT_EQ(read.schedule.kind, "phases");
    EXPECT_EQ(read.schedule.PhasesText(),
              "5 steps from 0 to 1, the rest, 0.25 of the run to 0.1 (cosine)");
    EXPECT_EQ(TrajectoryFields(read).at("schedule.phase"), read.schedule.PhasesText());
    EXPECT_NO_THROW(Validate(read, 1));
  }
  EXPECT_FALSE(TrajectoryFields(Parse({})).contains("schedule.phase"));
  const auto expect_problem = [&](const std::vector<std::string>& set, const char* problem) {
    EXPECT_HL_ERROR(Validate(Parse(set), 1), ExitCode::kUsage, problem);
  };
  expect_problem({phases, "schedule.kind=constant"},
                 "schedule.kind: constant. Use phases with schedule.phase, or --set "
                 "'schedule.phase=[]'");
  expect_problem({"schedule.kind=phases"},
                 "schedule.kind: phases. Use another kind, or add a schedule.phase");
  expect_problem({phases, "schedule.warmup_steps=3"},
                 "schedule.warmup_steps: 3. Use 0 with schedule.phase, and a phase of this length");
  expect_problem({"schedule.phase=[{ name: 'a' }, { name: 'b' }]"},
                 "schedule.phase: a and b. Use steps or share in all phases but one");
  expect_problem({"schedule.phase=[{ name: 'a' share: 0.6 }, { name: 'b' share: 0.6 }]"},
                 "schedule.phase: shares with the sum 1.2. Use a sum of at most 1");
  expect_problem({"schedule.phase=[{ name: 'a' steps: 5 share: 0.6 to: -1 }]"},
                 "schedule.phase.0.share: 0.6. Use either steps or share\n  schedule.phase.0.to: "
                 "-1. Use a number >= 0");
  expect_problem({"schedule.phase=[{ name: 'a' steps: 5 }, { name: 'a' shape: 'step' }]"},
                 "schedule.phase.1.name: a. Use a name that no other phase has\n  "
                 "schedule.phase.1.shape: 'step'. Use one of linear, cosine, sqrt, exponential");
  expect_problem({"schedule.phase=[{ name: 'a' to: 0 shape: 'exponential' }]"},
                 "schedule.phase: a, exponential from 1 to 0. Use rates above 0, or another shape");
  expect_problem({"schedule.phase=[{ name: 'a' steps: 9999999999 }, { name: 'b' steps: 9 to: 0 }, "
                  "{ name: 'c' share: 1e-12 shape: 'exponential' to: 1 }]"},
                 "schedule.phase: c, exponential from 0 to 1. Use rates above 0");
  expect_problem({"schedule.phase=[{ steps: -1 }]"}, "schedule.phase.0.steps: -1. Use 1 to ");
}

TEST(RunConfig, RollbacksNeedSpikesAndCheckpoints) {
  EXPECT_HL_ERROR(
      Validate(Parse({"train.max_rollbacks=2", "train.rollback_window=2"}), 1), ExitCode::kUsage,
      "train.max_rollbacks: 2. Use 0 without train.spike_sigmas, which defines a spike",
      "train.max_rollbacks: 2. Use 0 without ckpt.every: there is no checkpoint to go back to",
      "train.rollback_window: 2. Use at least train.rollback_spikes, 3");
  EXPECT_NO_THROW(
      Validate(Parse({"train.max_rollbacks=2", "train.spike_sigmas=6", "ckpt.every=5"}), 1));
  EXPECT_HL_ERROR(
      Validate(Parse({"train.max_rollbacks=2", "train.spike_sigmas=6", "ckpt.every=5",
                      "schedule.per_epoch=true", "train.max_epochs=3", "eval.every_epochs=1"}),
               1),
      ExitCode::kUsage,
      "train.max_rollbacks: 2. Use 0 with schedule.per_epoch, whose epochs are counted in steps",
      "train.max_rollbacks: 2. Use 0 with eval.every_epochs, or eval.every");
}

TEST(RunConfig, MissingFile) {
  EXPECT_HL_ERROR(LoadRunConfig("/nowhere/r.textproto", {}), ExitCode::kUsage,
                  "there is no recipe /nowhere/r.textproto. Use the name of a file");
}

TEST(RunConfig, ValidateListsEveryProblemAtOnce) {
  const RunConfig config = Parse({"optimizer.lr=-1", "train.global_batch=6", "schedule.kind=step",
                                  "ckpt.keep_last=1", "train.precision=fp16", "train.recompute=all",
                                  "parallel.sp=3", "parallel.grad_reduce=fp16"});
  EXPECT_HL_ERROR(Validate(config, 2), ExitCode::kUsage, "optimizer.lr: -1",
                  "train.global_batch: 6. Use a multiple of micro_batch x ranks = 2 x 2 = 4",
                  "schedule.kind: 'step'. Use one of cosine, linear, constant, wsd",
                  "ckpt.keep_last: 1", "train.precision: 'fp16'. Use one of fp32, bf16, fp8",
                  "train.recompute: 'all'. Use one of none, mixer, block",
                  "parallel.sp: 3. Use a divisor of the number of ranks, 2",
                  "parallel.grad_reduce: 'fp16'. Use one of fp32, bf16, ordered");
}

TEST(RunConfig, SlicesOfRows) {
  const auto parallel = [](std::vector<std::string> set) { return Parse(set).parallel; };
  EXPECT_EQ(parallel({"parallel.sp=2"}).row_ranks(), 2);
  EXPECT_FALSE(parallel({"parallel.sp=2"}).sums_each_micro_batch());
  const ParallelConfig sliced = parallel({"parallel.sp=2", "parallel.slices=8"});
  EXPECT_EQ(sliced.row_ranks(), 8);
  EXPECT_EQ(sliced.ranks_of_process(), 4);
  EXPECT_TRUE(sliced.sums_each_micro_batch());
  EXPECT_NO_THROW(Validate(Parse({"parallel.sp=2", "parallel.slices=8"}), 8));
  EXPECT_HL_ERROR(Validate(Parse({"parallel.sp=2", "parallel.slices=3"}), 6), ExitCode::kUsage,
                  "parallel.slices: 3. Use 0 (parallel.sp, 2) or a multiple of it");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.slices=-4"}), 1), ExitCode::kUsage,
                  "parallel.slices: -4. Use 0 (parallel.sp, 1) or a multiple of it");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.sp=2", "parallel.slices=4"}), 6), ExitCode::kUsage,
                  "parallel.sp: 2. Use a divisor of the number of processes, 3");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.sp=0", "parallel.slices=4"}), 1), ExitCode::kUsage,
                  "parallel.sp: 0");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.slices=2", "parallel.grad_reduce=bf16"}), 2),
                  ExitCode::kUsage,
                  "parallel.grad_reduce: bf16. Use fp32 or ordered with parallel.slices");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.slices=1", "train.cuda_graphs=true"}), 1),
                  ExitCode::kUsage, "false with parallel.slices");
}

TEST(RunConfig, ShardGroupsDivideTheRanks) {
  const auto validate = [](const std::string& shard, int stage, int world_size, int sp = 1) {
    Validate(Parse({"parallel.shard=" + shard, Concat("parallel.zero_stage=", stage),
                    Concat("parallel.sp=", sp), "train.micro_batch=1"}),
             world_size);
  };
  for (const char* shard : {"auto", "node", "world", "2", "4"})
    EXPECT_NO_THROW(validate(shard, 3, 4, 2));
  EXPECT_NO_THROW(validate("auto", 0, 4));
  EXPECT_HL_ERROR(
      validate("3", 1, 4), ExitCode::kUsage,
      "parallel.shard: 3. Use auto, node, world or a divisor of the number of ranks, 4");
  EXPECT_HL_ERROR(validate("all", 1, 4), ExitCode::kUsage, "parallel.shard: all. Use auto, node");
  EXPECT_HL_ERROR(validate("2", 0, 4), ExitCode::kUsage,
                  "parallel.shard: 2. Use auto with parallel.zero_stage 0");
  EXPECT_HL_ERROR(validate("2", 4, 4), ExitCode::kUsage,
                  "parallel.zero_stage: 4. Use 0, 1, 2 or 3");
  EXPECT_HL_ERROR(Validate(Parse({"parallel.prefetch=99"}), 1), ExitCode::kUsage,
                  "parallel.prefetch: 99. Use 0 to 64, or -1");
}

TEST(RunConfig, GraphsOfMicroBatches) {
  const auto validate = [](std::vector<std::string> set, int world_size) {
    set.emplace_back("train.cuda_graphs=true");
    Validate(Parse(set), world_size);
  };
  EXPECT_NO_THROW(validate({}, 1));
  EXPECT_NO_THROW(validate({"data.positions=skipwise", "data.positions_length=4096"}, 1));
  EXPECT_HL_ERROR(validate({"parallel.sp=2"}, 2), ExitCode::kUsage,
                  "train.cuda_graphs: true. Use false with parallel.sp above 1");
  EXPECT_HL_ERROR(validate({"parallel.zero_stage=2"}, 1), ExitCode::kUsage,
                  "train.cuda_graphs: true. Use false with parallel.zero_stage 2");
  EXPECT_HL_ERROR(validate({"train.global_batch=4", "train.micro_batch=2"}, 2), ExitCode::kUsage,
                  "train.cuda_graphs: true. Use false with one micro-batch per step");
}

// The values are checked here. Whether the model uses the positions is checked in plan_test.cc,
// with the built model.
TEST(RunConfig, OverriddenPositions) {
  const auto validate = [](const std::vector<std::string>& set) { Validate(Parse(set), 1); };
  const std::string skipwise = "data.positions=skipwise", length = "data.positions_length=4096";
  EXPECT_NO_THROW(validate({skipwise, length}));
  EXPECT_HL_ERROR(validate({skipwise, length, "data.positions_chunks=0"}), ExitCode::kUsage,
                  "data.positions_chunks: 0. Use a number >= 1");
  EXPECT_HL_ERROR(validate({"data.positions=randomised", "data.positions_length=16"}),
                  ExitCode::kUsage, "data.positions_length: 16. Use data.seq_len, ");
  EXPECT_HL_ERROR(validate({length}), ExitCode::kUsage,
                  "data.positions_length: 4096. Use 0 with plain positions");
  EXPECT_HL_ERROR(validate({"data.positions=jumping"}), ExitCode::kUsage,
                  "data.positions: 'jumping'. Use one of plain, skipwise, randomised");
}

TEST(RunConfig, ValidAsItStands) { EXPECT_NO_THROW(Validate(Parse({}), 4)); }

}  // namespace
}  // namespace halflife::train
