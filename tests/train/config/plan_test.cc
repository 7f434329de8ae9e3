#include "train/config/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

using testing::HasSubstr;

RunConfig Small(const std::vector<std::string>& overrides = {}) {
  constexpr char kRecipe[] = R"(
    data { path: "d" seq_len: 256 }
    model { vocab_size: 1000 model_dim: 64 num_layers: 2
            mixer { gla { num_heads: 2 } } }
    train { steps: 10 global_batch: 32 micro_batch: 16 device: "cpu" }
  )";
  return ParseRunConfig(kRecipe, "recipe", overrides);
}

uint64_t TotalOf(const RunConfig& config) {
  const model::LanguageModel model(config.model);
  return static_cast<uint64_t>(PlanMemory(config, model, 1).total());
}

std::string Verdict(const RunConfig& config, uint64_t memory_bytes, int ranks = 1) {
  return MemoryVerdict(config, model::LanguageModel(config.model),
                       {.ranks_of_device = ranks, .memory_bytes = memory_bytes});
}

TEST(Plan, SaysNothingOfWhatFitsOrCannotBeKnown) {
  EXPECT_EQ(Verdict(Small(), TotalOf(Small()) + 1), "");
  EXPECT_EQ(Verdict(Small(), 0), "");
}

TEST(Plan, SaysWhichMicroBatchWouldFit) {
  const uint64_t memory = TotalOf(Small({"train.micro_batch=4"})) + 1;
  EXPECT_THAT(Verdict(Small(), memory),
              testing::AllOf(HasSubstr("does not fit: "), HasSubstr("train.micro_batch 4 would")));
  EXPECT_THAT(Verdict(Small(), 2 * memory, 2),
              testing::AllOf(HasSubstr("for each of 2 ranks"), HasSubstr("train.micro_batch 4")));
}

TEST(Plan, SaysWhichLengthWouldFitWhereNoMicroBatchDoes) {
  const uint64_t memory = TotalOf(Small({"train.micro_batch=1", "data.seq_len=64"})) + 1;
  EXPECT_THAT(Verdict(Small(), memory), HasSubstr("train.micro_batch 1 with data.seq_len 64"));
}

TEST(Plan, SaysWhatTheWeightsAloneTakeWhereNothingHelps) {
  EXPECT_THAT(Verdict(Small(), 100'000), HasSubstr("weights, Adam and gradients alone take"));
}

// A start that must fail fails before it allocates; an estimate alone stops nothing.
TEST(Plan, RefusesWhatCannotFitAndWarnsOfWhatMayNot) {
  const RunConfig config = Small();
  const model::LanguageModel model(config.model);
  EXPECT_HL_ERROR(RequireMemory(config, model, {.memory_bytes = 100'000}, 0), ExitCode::kUsage,
                  "this run does not fit", "parameters would fit");
  const MemoryPlan plan = PlanMemory(config, model, 1);
  const auto exact = static_cast<uint64_t>(plan.main_and_adam + plan.gradients);
  RequireMemory(config, model, {.memory_bytes = exact + 1}, 0);
}

TEST(Plan, RefusesRowsThatTheModelDoesNotTake) {
  data::DatasetInfo packed, whole, rows;
  packed.train.num_documents = 2;
  whole.train.num_documents = whole.validation.num_documents = 1;
  rows.row_len = 64;
  const auto require = [](const std::vector<std::string>& overrides, const auto* dataset) {
    const RunConfig config = Small(overrides);
    RequireRows(config, model::LanguageModel(config.model), dataset);
  };
  const std::string hyena = "model.mixer=hyena", test = "eval.split=test";
  require({}, &packed);
  require({hyena}, &whole);
  require({hyena, test}, &rows);
  require({hyena, test}, static_cast<data::DatasetInfo*>(nullptr));
  EXPECT_HL_ERROR(require({hyena}, &packed), ExitCode::kUsage, "the mixer of layer 0, hyena,",
                  "packed with several documents", "`prepare --documents file`", "would work");
  EXPECT_HL_ERROR(require({hyena, "data.seq_len=2000"}, &whole), ExitCode::kUsage,
                  "data.seq_len is 2000", "at most 1024 would work");
  EXPECT_HL_ERROR(require({test}, &packed), ExitCode::kUsage, "eval.split is 'test'",
                  "text has no test split", "'validation' would work");
}

TEST(Plan, ShowsEveryOptionInForceAndTheEpochs) {
  const RunConfig config = Small();
  const std::string text =
      PlanText(config, model::LanguageModel(config.model), {.train_tokens = 163'840});
  for (const char* option : {"expand_k", "clamp_min", "conv_size", "use_output_gate"})
    EXPECT_THAT(text, HasSubstr(Concat(option, ": "))) << "of gla";
  EXPECT_THAT(text, testing::ContainsRegex("epochs +0.50 of 163.8k tokens"));
  const RunConfig again = ParseRunConfig(ToText(WithDerivedOptions(config)), "resolved", {});
  EXPECT_EQ(ToText(WithDerivedOptions(again)), ToText(WithDerivedOptions(config)));
}

TEST(Plan, AssumesAVocabularyOnlyWhereNoneIsNamed) {
  RunConfig named = Small(), unnamed = ParseRunConfig("", "empty", {}), prepared = unnamed;
  EXPECT_FALSE(CompleteForPlan(named, nullptr, 1));
  EXPECT_EQ(named.model.vocab_size, 1000);
  EXPECT_TRUE(CompleteForPlan(unnamed, nullptr, 1));
  EXPECT_EQ(unnamed.model.vocab_size, 32000);
  EXPECT_EQ(unnamed.data.path, "");
  const data::DatasetInfo dataset = {.vocab_size = 320};
  EXPECT_FALSE(CompleteForPlan(prepared, &dataset, 1));
  EXPECT_EQ(prepared.model.vocab_size, 320);
  RunConfig zero = Small({"train.micro_batch=0"});
  EXPECT_HL_ERROR(CompleteForPlan(zero, nullptr, 1), ExitCode::kUsage, "train.micro_batch: 0");
}

TEST(Plan, NamesEveryMixerOfAHybrid) {
  RunConfig config = Small();
  config.model.hybrid = {{.layers = {1}, .mixer = model::MixerConfig("softmax")}};
  EXPECT_THAT(PlanSummary(config, model::LanguageModel(config.model), 1),
              testing::StartsWith("gla + softmax in 1 of 2 layers, 2 layers x 64"));
}

}  // namespace
}  // namespace halflife::train
