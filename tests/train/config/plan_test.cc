// Checks that a config is refused before training if the model, the dataset or the ranks do not
// support it.
#include "train/config/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "train/config/small_recipe.h"

namespace halflife::train {
namespace {

TEST(Plan, RefusesRowsThatTheModelDoesNotTake) {
  data::DatasetInfo packed, whole, rows;
  packed.train.num_documents = 2;
  whole.train.num_documents = whole.validation.num_documents = 1;
  rows.row_len = 64;
  const auto require = [](const std::vector<std::string>& overrides, const auto* dataset) {
    const RunConfig config = SmallRecipe(overrides);
    RequireRows(config, model::LanguageModel(config.model), dataset);
  };
  const std::string hyena = "model.mixer=hyena", test = "eval.split=test";
  require({}, &packed);
  require({hyena}, &whole);
  require({hyena, test}, &rows);
  require({hyena, test}, static_cast<data::DatasetInfo*>(nullptr));
  EXPECT_HL_ERROR(require({hyena}, &packed), ExitCode::kUsage, "the mixer of layer 0, hyena,",
                  "packed with several documents", "`prepare --documents file`",
                  "data.reset_at_documents=false");
  require({hyena, "data.reset_at_documents=false"}, &packed);
  EXPECT_HL_ERROR(require({"data.reset_at_documents=false"}, &rows), ExitCode::kUsage,
                  "data.reset_at_documents is false, and the documents of labelled rows are "
                  "separate examples. Use data.reset_at_documents=true");
  EXPECT_HL_ERROR(require({hyena, "data.seq_len=2000"}, &whole), ExitCode::kUsage,
                  "data.seq_len is 2000, beyond the 1024 tokens per row that the mixer of layer 0, "
                  "hyena, supports. Use a data.seq_len of at most 1024.");
  EXPECT_HL_ERROR(require({"model.mixer=d2d", "model.mixer.d2d.legacy_view=128"}, &packed),
                  ExitCode::kUsage,
                  "data.seq_len is 256, beyond the 128 tokens per row that the mixer of layer 0, "
                  "d2d, supports");
  EXPECT_HL_ERROR(
      require({"model.positions=learned", "model.positions.learned.max_positions=200"}, &packed),
      ExitCode::kUsage, "data.seq_len is 256, beyond the model's table of 200 positions");
  EXPECT_HL_ERROR(require({test}, &packed), ExitCode::kUsage, "eval.split is 'test'",
                  "text has no test split", "Use eval.split 'validation'.");
}

TEST(Plan, WarnsOfFp32OnAGpu) {
  const auto warning = [](const std::string& precision, bool on_gpu) {
    return PrecisionWarning(SmallRecipe({"train.precision=" + precision}), on_gpu);
  };
  EXPECT_THAT(warning("fp32", true), testing::HasSubstr("Use train.precision=bf16"));
  for (const char* precision : {"bf16", "fp8"}) EXPECT_EQ(warning(precision, true), "");
  EXPECT_EQ(warning("fp32", false), "");
}

TEST(Plan, ShardGroupsOfNodes) {
  const auto resolved = [](const std::string& shard, int world, int of_node, bool gpu, int sp = 1) {
    RunConfig config = SmallRecipe(
        {"parallel.zero_stage=1", "parallel.shard=" + shard, Concat("parallel.sp=", sp)});
    ResolveShard(config, world, of_node, gpu);
    return config.parallel.shard_ranks(world);
  };
  EXPECT_EQ(resolved("auto", 16, 8, true), 8);
  EXPECT_EQ(resolved("auto", 16, 8, false), 16) << "links between processes of a CPU are equal";
  EXPECT_EQ(resolved("auto", 8, 8, true), 8);
  EXPECT_EQ(resolved("auto", 12, 8, true), 12) << "nodes differ";
  EXPECT_EQ(resolved("node", 16, 8, false), 8);
  EXPECT_EQ(resolved("world", 16, 8, true), 16);
  EXPECT_EQ(resolved("4", 16, 8, true), 4);
  EXPECT_EQ(resolved("node", 32, 8, false, 16), 8) << "a row over two nodes";
  EXPECT_HL_ERROR(resolved("node", 12, 8, true), ExitCode::kUsage,
                  "parallel.shard node: 8 of 12 ranks are on this node",
                  "Use equal numbers of ranks on all nodes, with whole rows on each, or "
                  "parallel.shard world.");
  EXPECT_HL_ERROR(resolved("node", 16, 8, true, 3), ExitCode::kUsage, "and 3 ranks share a row");
}

TEST(Plan, SlicesNeedACpu) {
  const RunConfig sliced = SmallRecipe({"parallel.slices=2"});
  EXPECT_NO_THROW(RequireSlicesOn({Device::Kind::kCpu, 0}, sliced));
  EXPECT_NO_THROW(RequireSlicesOn({Device::Kind::kCuda, 0}, SmallRecipe({})));
  EXPECT_HL_ERROR(RequireSlicesOn({Device::Kind::kCuda, 0}, sliced), ExitCode::kUsage,
                  "parallel.slices 2: on a GPU, NCCL determines the order of sums",
                  "or train.device 'cpu'.");
}

// Overridden position ids require a model that uses them.
TEST(Plan, OverriddenPositionsNeedAModelThatUsesThem) {
  const auto require = [](std::vector<std::string> more) {
    more.insert(more.end(), {"data.positions=skipwise", "data.positions_length=4096"});
    const RunConfig config = SmallRecipe(more);
    RequireRows(config, model::LanguageModel(config.model), nullptr);
  };
  const std::string softmax = "model.mixer=softmax",
                    bare = "model.mixer.softmax.rope_theta=0";  // No layer has a rotation.
  EXPECT_NO_THROW(require({softmax}));
  EXPECT_NO_THROW(require({"model.mixer=retention"}));
  EXPECT_NO_THROW(require({softmax, bare, "model.positions=sinusoidal"}));
  EXPECT_NO_THROW(
      require({"model.positions=learned", "model.positions.learned.max_positions=4096"}))
      << "a table serves layers that declare nothing themselves";
  for (const char* turned : {"interpolated", "ntk_aware", "yarn", "llama3"})
    EXPECT_NO_THROW(require({softmax, Concat("model.positions=", turned)}));
  const std::vector<std::vector<std::string>> deaf = {{"model.mixer=rwkv4"}, {}, {softmax, bare}};
  for (const std::vector<std::string>& model : deaf)
    EXPECT_HL_ERROR(require(model), ExitCode::kUsage,
                    "data.positions: skipwise. Use plain: no layer rotates and nothing is added to "
                    "embeddings, so the model would not see other positions");
  for (const char* way : {"alibi", "t5", "kerple_log", "kerple_power", "xpos", "rerope",
                          "streaming_llm", "lm_infinite"})
    EXPECT_HL_ERROR(
        require({softmax, Concat("model.positions=", way)}), ExitCode::kUsage,
        Concat("data.positions: skipwise. Use plain: model.positions ", way,
               " counts distances in tokens, so the model would not see other positions"));
  EXPECT_HL_ERROR(
      require(
          {softmax, bare, "model.positions=learned", "model.positions.learned.max_positions=2048"}),
      ExitCode::kUsage,
      "data.positions_length: 4096. Use at most max_positions of the learned table, 2048");
}

TEST(Plan, RefusesRanksForAMixerOfWholeRows) {
  EXPECT_HL_ERROR(
      RequireRows(SmallRecipe({"model.mixer=hyena", "parallel.sp=2"}),
                  model::LanguageModel(SmallRecipe({"model.mixer=hyena"}).model), nullptr),
      ExitCode::kUsage, "parallel.sp 2: the mixer of layer 0, hyena,", "parallel.sp 1, or a mixer");
}

TEST(Plan, ARunThatNeedsValidationsNeedsAValidationSplit) {
  const auto require = [](const std::vector<std::string>& set, const data::DatasetInfo& dataset) {
    const RunConfig config = SmallRecipe(set);
    RequireRows(config, model::LanguageModel(config.model), &dataset);
  };
  const data::DatasetInfo none = {.train = {.num_tokens = 1000}, .vocab_size = 320};
  data::DatasetInfo some = none;
  some.validation.num_tokens = 1000;
  require({}, none);  // The run does not validate.
  require({"eval.every=5", "ckpt.keep_best=val_loss"}, some);
  EXPECT_HL_ERROR(require({"eval.every=5"}, none), ExitCode::kUsage,
                  "the dataset has no validation split, which the recipe needs for eval.every. "
                  "Remove this setting to train without validation, or prepare the dataset with "
                  "--validation-tail 0.05.");
  EXPECT_HL_ERROR(require({"eval.every_epochs=1", "ckpt.keep_best=val_loss"}, none),
                  ExitCode::kUsage, "needs for eval.every_epochs and ckpt.keep_best. Remove these");
  EXPECT_HL_ERROR(require({"eval.sample_prompt=The"}, none), ExitCode::kUsage,
                  "needs for eval.sample_prompt.");
  EXPECT_HL_ERROR(require({"eval.every=5", "eval.split=test"}, {.vocab_size = 320, .row_len = 256}),
                  ExitCode::kUsage, "the dataset has no test split",
                  "prepare the dataset with a test split.");
}

TEST(Plan, RefusesTheBestErrorOfWhatHasNoAccuracy) {
  const auto require = [](std::vector<std::string> set, const data::DatasetInfo& dataset) {
    set.emplace_back("ckpt.keep_best=val_error");
    const RunConfig config = SmallRecipe(set);
    RequireRows(config, model::LanguageModel(config.model), &dataset);
  };
  const data::SplitInfo split = {.num_tokens = 1000};
  const data::DatasetInfo text = {.validation = split, .vocab_size = 320};
  EXPECT_HL_ERROR(require({}, text), ExitCode::kUsage,
                  "ckpt.keep_best: val_error. Use val_loss or loss: next-token prediction on text");
  EXPECT_NO_THROW(require({"model.objective=masked_token"}, text));
  EXPECT_NO_THROW(require({}, {.validation = split, .vocab_size = 320, .row_len = 256}))
      << "prompts and answers";
}

TEST(Plan, AssumesAVocabularyOnlyWhereNoneIsNamed) {
  RunConfig named = SmallRecipe(), unnamed = ParseRunConfig("", "empty", {}), prepared = unnamed;
  EXPECT_FALSE(CompleteForPlan(named, nullptr, 1));
  EXPECT_EQ(named.model.vocab_size, 1000);
  EXPECT_TRUE(CompleteForPlan(unnamed, nullptr, 1));
  EXPECT_EQ(unnamed.model.vocab_size, 32000);
  EXPECT_EQ(unnamed.data.path, "");
  const data::DatasetInfo dataset = {.vocab_size = 320};
  EXPECT_FALSE(CompleteForPlan(prepared, &dataset, 1));
  EXPECT_EQ(prepared.model.vocab_size, 320);
  RunConfig zero = SmallRecipe({"train.micro_batch=0"});
  EXPECT_HL_ERROR(CompleteForPlan(zero, nullptr, 1), ExitCode::kUsage, "train.micro_batch: 0");
}

TEST(Plan, NamesEveryMixerOfAHybrid) {
  RunConfig config = SmallRecipe();
  config.model.hybrid = {{.layers = {1}, .mixer = model::MixerConfig("softmax")}};
  EXPECT_THAT(PlanSummary(config, model::LanguageModel(config.model), 1),
              testing::StartsWith("gla + softmax in 1 of 2 layers, 2 layers x 64"));
}

}  // namespace
}  // namespace halflife::train
