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
                  "packed with several documents", "`prepare --documents file`", "would work");
  EXPECT_HL_ERROR(
      require({hyena, "data.seq_len=2000"}, &whole), ExitCode::kUsage,
      "data.seq_len is 2000, beyond the 1024 tokens of a row that the mixer of layer 0, "
      "hyena, takes; a data.seq_len of at most 1024 would work");
  EXPECT_HL_ERROR(
      require({"model.mixer=d2d", "model.mixer.d2d.legacy_view=128"}, &packed), ExitCode::kUsage,
      "data.seq_len is 256, beyond the 128 tokens of a row that the mixer of layer 0, d2d, takes");
  EXPECT_HL_ERROR(
      require({"model.positions=learned", "model.positions.learned.max_positions=200"}, &packed),
      ExitCode::kUsage, "data.seq_len is 256, beyond the model's table of 200 positions");
  EXPECT_HL_ERROR(require({test}, &packed), ExitCode::kUsage, "eval.split is 'test'",
                  "text has no test split", "'validation' would work");
}

TEST(Plan, RefusesRanksForAMixerOfWholeRows) {
  EXPECT_HL_ERROR(
      RequireRows(SmallRecipe({"model.mixer=hyena", "parallel.sp=2"}),
                  model::LanguageModel(SmallRecipe({"model.mixer=hyena"}).model), nullptr),
      ExitCode::kUsage, "parallel.sp 2: the mixer of layer 0, hyena,", "parallel.sp 1, or a mixer");
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
