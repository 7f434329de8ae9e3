// Checks the predicted memory of a run, and the advice if it does not fit.
#include "train/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/blocks/block.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/config/plan.h"
#include "train/config/small_recipe.h"
#include "train/plan/step_operations.h"

namespace halflife::train {
namespace {

using testing::HasSubstr;

uint64_t TotalOf(const RunConfig& config) {
  const model::LanguageModel model(config.model);
  return static_cast<uint64_t>(PlanMemory(config, model, 1).total());
}

std::string Verdict(const RunConfig& config, uint64_t memory_bytes, int ranks = 1) {
  return MemoryVerdict(config, model::LanguageModel(config.model),
                       {.ranks_of_device = ranks, .memory_bytes = memory_bytes});
}

TEST(MemoryPlan, SaysNothingOfWhatFitsOrCannotBeKnown) {
  EXPECT_EQ(Verdict(SmallRecipe(), TotalOf(SmallRecipe()) + 1), "");
  EXPECT_EQ(Verdict(SmallRecipe(), 0), "");
}

TEST(MemoryPlan, SaysWhichMicroBatchWouldFit) {
  const uint64_t memory = TotalOf(SmallRecipe({"train.micro_batch=4"})) + 1;
  EXPECT_THAT(Verdict(SmallRecipe(), memory),
              testing::AllOf(HasSubstr("does not fit: "), HasSubstr("Use train.micro_batch 4.")));
  EXPECT_THAT(Verdict(SmallRecipe(), 2 * memory, 2),
              testing::AllOf(HasSubstr("for each of 2 ranks"), HasSubstr("train.micro_batch 4")));
}

TEST(MemoryPlan, SaysThatRecomputationWouldFit) {
  const uint64_t kept = TotalOf(SmallRecipe()),
                 again = TotalOf(SmallRecipe({"train.recompute=block"}));
  EXPECT_LT(again, TotalOf(SmallRecipe({"train.recompute=mixer"})));
  EXPECT_LT(again, kept);
  EXPECT_THAT(Verdict(SmallRecipe(), again + 1), HasSubstr("Use train.recompute block."));
  EXPECT_THAT(Verdict(SmallRecipe({"train.recompute=block"}), again - 1),
              testing::Not(HasSubstr("recompute")));
}

// If no single change is enough, the suggestion says so.
TEST(MemoryPlan, SaysThatTwoChangesWouldFit) {
  const auto recipe = [](const std::string& recompute, const std::string& background) {
    return SmallRecipe(
        {"train.recompute=" + recompute, "ckpt.background=" + background, "ckpt.every=5"});
  };
  const uint64_t both = TotalOf(recipe("block", "false"));
  ASSERT_GT(TotalOf(recipe("block", "true")), both + 1);
  ASSERT_GT(TotalOf(recipe("none", "false")), both + 1);
  RunConfig one_row = recipe("none", "true");
  one_row.train.micro_batch = one_row.train.global_batch;
  RunConfig fits = recipe("block", "false");
  fits.train.micro_batch = fits.train.global_batch;
  EXPECT_THAT(Verdict(one_row, TotalOf(fits) + 1), HasSubstr("Use train.micro_batch"));
  one_row.train.micro_batch = one_row.train.global_batch = 1;
  fits.train.micro_batch = fits.train.global_batch = 1;
  EXPECT_THAT(Verdict(one_row, TotalOf(fits) + 1),
              HasSubstr("Use ckpt.background false and train.recompute block."));
}

// Micro-batches that cannot be replayed need activations in addition to those of the recorded
// graph.
// The CPU records no graph.
TEST(MemoryPlan, GraphsOfMicroBatchesHoldASecondOnesActivations) {
  const model::LanguageModel model(SmallRecipe().model);
  const auto plan = [&](const std::string& device, const std::string& graphs) {
    return PlanMemory(SmallRecipe({"train.device=" + device, "train.cuda_graphs=" + graphs}), model,
                      1);
  };
  const MemoryPlan launched = plan("cuda", "false"), replayed = plan("cuda", "true");
  EXPECT_EQ(replayed.activations, 2 * launched.activations);
  EXPECT_EQ(replayed.loss, 2 * launched.loss);
  EXPECT_EQ(replayed.workspace, 2 * launched.workspace);
  EXPECT_EQ(plan("cpu", "true").activations, plan("cpu", "false").activations);
}

TEST(MemoryPlan, SaysWhichLengthWouldFitWhereNoMicroBatchDoes) {
  const uint64_t memory = TotalOf(SmallRecipe({"train.micro_batch=1", "data.seq_len=64"})) + 1;
  EXPECT_THAT(Verdict(SmallRecipe(), memory),
              HasSubstr("train.micro_batch 1 with data.seq_len 64"));
}

TEST(MemoryPlan, ReportsTheMemoryOfWeightsIfNothingHelps) {
  EXPECT_THAT(Verdict(SmallRecipe(), 100'000),
              HasSubstr("The weights, the optimizer's states and the gradients take"));
}

// A run that cannot fit fails before it allocates. A mere estimate only warns.
TEST(MemoryPlan, RefusesWhatCannotFitAndWarnsOfWhatMayNot) {
  const RunConfig config = SmallRecipe();
  const model::LanguageModel model(config.model);
  EXPECT_HL_ERROR(RequireMemory(config, model, {.memory_bytes = 100'000}, 0), ExitCode::kUsage,
                  "this run does not fit", "Use a model of at most");
  const MemoryPlan plan = PlanMemory(config, model, 1);
  const auto exact = static_cast<uint64_t>(plan.main_and_optimizer + plan.gradients);
  RequireMemory(config, model, {.memory_bytes = exact + 1}, 0);
}

TEST(MemoryPlan, RanksThatShareRowsShareActivations) {
  const RunConfig whole = SmallRecipe(), shared = SmallRecipe({"parallel.sp=2"});
  const model::LanguageModel model(whole.model);
  const MemoryPlan one = PlanMemory(whole, model, 2), two = PlanMemory(shared, model, 2);
  EXPECT_EQ(two.activations, one.activations / 2);
  EXPECT_EQ(two.main_and_optimizer, one.main_and_optimizer);
  EXPECT_EQ(NumMicroBatches(shared, 2), 2 * NumMicroBatches(whole, 2));
}

// sp is larger than the number of ranks, so the plan is for the ranks of one row. There are 16 x
// 256 tokens. The CPU holds the logits of 128 tokens at a time, a GPU those of 1024.
TEST(MemoryPlan, CountsTheLogitsOfItsDevice) {
  const RunConfig host = SmallRecipe({"model.vocab_size=131072"});
  RunConfig gpu = host;
  gpu.train.device = "cuda";
  const model::LanguageModel model(host.model);
  const double host_bytes = PlanMemory(host, model, 1).loss,
               gpu_bytes = PlanMemory(gpu, model, 1).loss;
  EXPECT_EQ(gpu_bytes - host_bytes, 4.0 * 131072 * (1024 - 128));
}

TEST(MemoryPlan, SaysWhatFitsForRanksThatAreNotThere) {
  const RunConfig config = SmallRecipe({"parallel.sp=4"});
  const model::LanguageModel model(config.model);
  EXPECT_EQ(NumMicroBatches(config, 1), NumMicroBatches(config, 4));
  EXPECT_THAT(MemoryVerdict(config, model, {.world_size = 1, .memory_bytes = 3'000'000}),
              HasSubstr(" here. The weights, the optimizer's states and the gradients take "));
}

TEST(MemoryPlan, RanksShareTheOptimizersState) {
  const RunConfig shares = SmallRecipe({"parallel.zero_stage=1"});
  const model::LanguageModel model(shares.model);
  const double whole = PlanMemory(SmallRecipe(), model, 4).main_and_optimizer;
  EXPECT_DOUBLE_EQ(PlanMemory(shares, model, 1).main_and_optimizer, whole);
  EXPECT_DOUBLE_EQ(PlanMemory(shares, model, 4).main_and_optimizer, whole * (4 + 8.0 / 4) / 12);
  EXPECT_DOUBLE_EQ(
      PlanMemory(SmallRecipe({"parallel.zero_stage=1", "train.precision=bf16"}), model, 4)
          .main_and_optimizer,
      whole / 4);
}

// The formulas of a start are within 2 % of the arrays that a rank allocates.
TEST(MemoryPlan, IsTheMemoryOfTheArenaInEveryStage) {
  for (const std::string setting :
       {"train.precision=bf16", "train.precision=fp32",
        "optimizer.group=[{ match: \"embeddings|layers.[12]\" frozen: true }]"})
    for (const int world : {4, 8})
      for (const int stage : {0, 1, 2, 3})
        for (const int shard : {2, world}) {
          if (stage == 0 && shard != world) continue;
          SCOPED_TRACE(Concat(setting, ", ", world, " ranks, stage ", stage, ", shard ", shard));
          const RunConfig config =
              SmallRecipe({setting, Concat("parallel.zero_stage=", stage),
                           Concat("parallel.shard=", stage == 0 ? "auto" : Concat(shard)),
                           "model.model_dim=256", "model.num_layers=32", "model.vocab_size=259",
                           Concat("train.global_batch=", world), "train.micro_batch=1",
                           "parallel.first_bucket_bytes=65536", "parallel.bucket_bytes=65536"});
          const model::LanguageModel model(config.model);
          const MemoryPlan plan = PlanMemory(config, model, world);
          RowRehearsals rows(config, 0, {});
          const StepOperations step = RehearseStep(config, {.rank = 0, .world_size = world}, rows);
          const double planned =
              plan.main_and_optimizer + plan.gradients + plan.compute_copy + plan.gathered;
          const double allocated = step.main_and_optimizer_bytes + step.gradient_bytes +
                                   step.compute_copy_bytes + step.unit_bytes +
                                   step.bucket_slot_bytes;
          EXPECT_NEAR(planned / allocated, 1, 0.02);
        }
}

// With whole gradients, the bf16 copy adds 2 bytes per element. With ZeRO stage 2, it replaces the
// buckets in flight. If buckets are small, the largest tensor determines their size, here the
// embedding.
TEST(MemoryPlan, CountsGradientsThatTravelInBf16) {
  const auto gradients = [](int world_size, int stage, const char* type) {
    const RunConfig config =
        SmallRecipe({Concat("parallel.zero_stage=", stage), Concat("parallel.grad_reduce=", type)});
    return PlanMemory(config, model::LanguageModel(config.model), world_size).gradients;
  };
  for (const int stage : {0, 1})
    EXPECT_DOUBLE_EQ(gradients(4, stage, "bf16"), gradients(4, stage, "fp32") * 6 / 4);
  EXPECT_DOUBLE_EQ(gradients(1, 0, "bf16"), gradients(1, 0, "fp32"));
  // One bucket holds everything. During the conversion its elements exist in both types.
  const double parameters = gradients(4, 0, "fp32") / 4;
  EXPECT_DOUBLE_EQ(gradients(4, 2, "fp32"), parameters * (4.0 / 4 + 4));
  EXPECT_DOUBLE_EQ(gradients(4, 2, "bf16"), parameters * (4.0 / 4 + 6));

  const auto slots = [](const char* type) {
    const RunConfig config =
        SmallRecipe({"model.num_layers=12", "parallel.zero_stage=2", "parallel.bucket_bytes=4096",
                     Concat("parallel.grad_reduce=", type)});
    const model::LanguageModel model(config.model);
    const auto count = static_cast<double>(model.CountParameters().total());
    return PlanMemory(config, model, 4).gradients - count;
  };
  EXPECT_DOUBLE_EQ(slots("fp32"), 1000 * 64 * 16);
  EXPECT_DOUBLE_EQ(slots("bf16"), 1000 * 64 * 10);
}

// A rank of a GPU adds the shares of its part of a bucket by itself.
TEST(MemoryPlan, CountsTheSharesOfOrderedSums) {
  const auto shares = [](int world_size, const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"parallel.zero_stage=1", "parallel.grad_reduce=ordered",
                                          "parallel.bucket_bytes=65536"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const RunConfig config = SmallRecipe(overrides);
    return PlanMemory(config, model::LanguageModel(config.model), world_size).shares;
  };
  EXPECT_EQ(shares(4, {"train.device=cpu"}), 0);
  EXPECT_EQ(shares(1, {"train.device=cuda"}), 0);
  EXPECT_EQ(shares(4, {"train.device=cuda", "parallel.grad_reduce=fp32"}), 0);
  const double bucket = shares(4, {"train.device=cuda"});
  EXPECT_GE(bucket, 65536);
  EXPECT_EQ(shares(4, {"train.device=cuda", "parallel.shard=2"}), 1.5 * bucket);
}

// fp32 states [H, K, V] and the tails of short convolutions, for two layers and 16 rows.
TEST(MemoryPlan, CountsTheStatesOfSharedRowsAndPinnedCopies) {
  const RunConfig whole = SmallRecipe(), shared = SmallRecipe({"parallel.sp=2"});
  const model::LanguageModel model(whole.model);
  EXPECT_EQ(PlanMemory(whole, model, 2).states, 0);
  double of_row = 0;
  for (const model::StateTensor& tensor : model.block(0).mixer().traits().state) {
    double bytes = 4;
    for (const int64_t size : tensor.shape) bytes *= static_cast<double>(size);
    of_row += bytes;
  }
  EXPECT_GE(of_row, 2 * 16 * 32 * 4) << "K is half of V";
  EXPECT_DOUBLE_EQ(PlanMemory(shared, model, 2).states, 16 * 2 * of_row);

  const RunConfig saves = SmallRecipe({"ckpt.every=5"});
  RunConfig on_gpu = saves;
  on_gpu.train.device = "cuda";
  const double copy = 12.0 * static_cast<double>(model.CountParameters().total()) / 2;
  EXPECT_DOUBLE_EQ(PlanMemory(saves, model, 2).saved_copy, copy);
  const RunConfig best = SmallRecipe({"ckpt.keep_best=val_loss"});
  EXPECT_DOUBLE_EQ(PlanMemory(best, model, 2).saved_copy, copy);
  EXPECT_EQ(PlanMemory(saves, model, 2).pinned_staging, 0);
  EXPECT_EQ(PlanMemory(on_gpu, model, 2).saved_copy, 0);
  EXPECT_DOUBLE_EQ(PlanMemory(on_gpu, model, 2).pinned_staging, copy);
}

// The recipe with 340 million parameters on an H100, calculated by hand: 8 rows of 2048 tokens, 4
// heads of 128 x 256 in blocks of 128 x 128. That gives 2 slices of the gradients' operands, in 2
// segments.
TEST(MemoryPlan, CountsTheWorkspaceOfAKernelOnAGpu) {
  RunConfig config = LoadRunConfig(
      std::filesystem::path(test::kSourceDir) / "launch/recipes/gla_340m.textproto", {});
  config.model.vocab_size = 259;
  const model::LanguageModel model(config.model);
  constexpr kernels::DeviceLimits kH100 = {true, 132, 227 << 10}, kA100 = {true, 108, 163 << 10};
  config.train.device = "cpu";
  EXPECT_EQ(PlanMemory(config, model, 1, kH100).workspace, 0);
  config.train.device = "cuda";
  constexpr double kTokens = 8 * 2048 * 4, kPieces = 8 * 4 * 2;
  // Per tile of 16 tokens: two operands, the scores, G and its logarithm; x, y and t of both
  // slices.
  constexpr double kOperands = kTokens / 16 * (2 * 16 * 128 * 2 + 16 * 24 * 2 + 2 * 128 * 4);
  constexpr double kProducts = 2 * kTokens / 16 * (2 * 16 + 1) * 128 * 4;
  constexpr double kSegments = kPieces * (128 * 256 + 128) * 4;
  constexpr double kGroups = kPieces * 2 * 8 * 128 * 128 * 2;
  const MemoryPlan plan = PlanMemory(config, model, 1, kH100);
  EXPECT_EQ(plan.workspace, kOperands + kProducts + kSegments + kGroups);
  EXPECT_EQ(plan.total(), plan.main_and_optimizer + plan.gradients + plan.compute_copy +
                              plan.activations + plan.loss + plan.workspace);
  // One segment already fills 108 multiprocessors.
  EXPECT_EQ(PlanMemory(config, model, 1, kA100).workspace, kOperands + kProducts + kGroups / 2);
  config.train.micro_batch = 4;
  EXPECT_LT(PlanMemory(config, model, 1, kH100).workspace, plan.workspace);
  EXPECT_THAT(PlanText(config, model, {}), HasSubstr("workspace of a kernel"));
}

// Layers reuse one workspace, so two layers need no more than one.
TEST(MemoryPlan, LayersShareAWorkspace) {
  RunConfig two = SmallRecipe(), four = SmallRecipe({"model.num_layers=4"});
  two.train.device = four.train.device = "cuda";
  const double once = PlanMemory(two, model::LanguageModel(two.model), 1).workspace;
  EXPECT_GT(once, 0);
  EXPECT_EQ(PlanMemory(four, model::LanguageModel(four.model), 1).workspace, once);
}

TEST(PlanText, BeginsWithItsSummaryAndEndsWithTheConfig) {
  const RunConfig config = SmallRecipe();
  const model::LanguageModel model(config.model);
  const auto text = [&](uint64_t memory_bytes) {
    return PlanText(config, model, {.ranks_of_device = 2, .memory_bytes = memory_bytes});
  };
  const std::string summary =
      "gla, 2 layers x 64, .* parameters, 32 x 256 tokens a step on 1 rank, 10 steps\n";
  EXPECT_THAT(
      text(uint64_t{1} << 40),
      testing::ContainsRegex("^" + summary +
                             "fits: .* on each rank, and there are 1.0 TiB here for 2 ranks\n"));
  EXPECT_THAT(text(1 << 20), testing::ContainsRegex("^" + summary + "does not fit: "));
  EXPECT_THAT(text(0), testing::ContainsRegex("^" + summary + "memory: .* on each rank\n"));
  EXPECT_LT(text(0).find("the whole run"), text(0).find("# the resolved config\ndata {"));
}

TEST(PlanText, ListsThePhasesOfTheSchedule) {
  const auto text = [](const std::vector<std::string>& set) {
    const RunConfig config = SmallRecipe(set);
    return PlanText(config, model::LanguageModel(config.model), {});
  };
  EXPECT_THAT(
      text({"optimizer.lr=0.01",
            "schedule.phase=[{ name: 'up' steps: 4 from: 0 to: 1 }, "
            "{ name: 'down' to: 0.5 shape: 'cosine' }]"}),
      testing::ContainsRegex("\nlearning rate\n  up +steps 1 to 4: 0 to 0.01, linear\n"
                             "  down +steps 5 to 10: 0.01 to 0.005, cosine\nthe whole run"));
  EXPECT_THAT(
      text({"optimizer.lr=0.01", "schedule.kind=wsd"}),
      testing::ContainsRegex("\n  stable +steps 1 to 9: 0.01\n  decay +step 10: 0.01 to 0.001"));
  EXPECT_THAT(text({"schedule.per_epoch=true", "train.max_epochs=2"}),
              testing::Not(HasSubstr("learning rate\n  ")));
}

TEST(PlanText, SaysWhereTheVocabularyIsAssumed) {
  const RunConfig config = SmallRecipe();
  const model::LanguageModel model(config.model);
  EXPECT_THAT(PlanText(config, model, {.assumed_vocabulary = true}),
              HasSubstr("parameters at an assumed vocabulary of 1000 (--set model.vocab_size=N "
                        "for another, 259 for bytes)\n"));
  EXPECT_THAT(PlanText(config, model, {}), HasSubstr("\nparameters\n"));
}

// 500 rows are 15 steps of 32 rows and one of 20. The runs have 10 steps, and 20 steps, which are
// one and a quarter epochs.
TEST(PlanText, AShortStepHasFewerTokens) {
  const auto text = [](const char* steps) {
    const RunConfig config = SmallRecipe({steps, "data.epoch_end=short"});
    return PlanText(
        config, model::LanguageModel(config.model),
        {.train_tokens = 128'000,
         .order = data::SampleOrder{
             .num_windows = 500, .global_batch = 32, .epoch_end = data::EpochEnd::kShort}});
  };
  EXPECT_THAT(text("train.steps=16"), testing::ContainsRegex("the whole run\n +tokens +128.0k\n"));
  EXPECT_THAT(text("train.steps=16"), testing::ContainsRegex("epochs +1.00 of 128.0k tokens"));
  EXPECT_THAT(text("train.steps=17"), testing::ContainsRegex("the whole run\n +tokens +136.2k\n"));
}

TEST(PlanText, ShowsEveryOptionInForceAndTheEpochs) {
  const RunConfig config = SmallRecipe();
  const std::string text =
      PlanText(config, model::LanguageModel(config.model), {.train_tokens = 163'840});
  for (const char* option : {"expand_k", "clamp_min", "conv_size", "use_output_gate"})
    EXPECT_THAT(text, HasSubstr(Concat(option, ": "))) << "of gla";
  EXPECT_THAT(text, testing::ContainsRegex("epochs +0.50 of 163.8k tokens"));
  const RunConfig epochs = SmallRecipe({"train.max_epochs=2"});
  EXPECT_THAT(PlanText(epochs, model::LanguageModel(epochs.model), {}),
              testing::ContainsRegex("the whole run\n +epochs +2\n"))
      << "the number of tokens is unknown without the dataset";
  const RunConfig again = ParseRunConfig(ToText(WithDerivedOptions(config)), "resolved", {});
  EXPECT_EQ(ToText(WithDerivedOptions(again)), ToText(WithDerivedOptions(config)));
}

}  // namespace
}  // namespace halflife::train
