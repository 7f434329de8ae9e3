// Checks the predicted step time and memory of a run on a described cluster.
#include "train/plan/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dist/parameter_layout.h"
#include "model/model_cost.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024 * 1024;

RunConfig Recipe(const std::vector<std::string>& overrides = {}) {
  constexpr char kRecipe[] = R"(
    data { path: "d" seq_len: 512 }
    model { vocab_size: 1000 model_dim: 64 num_layers: 2 mixer { gla { num_heads: 2 } } }
    train { steps: 10 global_batch: 32 micro_batch: 2 precision: "bf16" }
    ckpt { every: 5 }
    parallel { first_bucket_bytes: 65536 bucket_bytes: 131072 exchange: "gather" }
  )";
  return ParseRunConfig(kRecipe, "recipe", overrides);
}

ClusterPlan PlanOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const PlanRequest request = ParsePlan(text);
  RunConfig config = ConfigFor(Recipe(overrides), request);
  Validate(config, request.cluster.world_size());
  return PlanCluster(config, request.cluster);
}

const PlannedCollective& Find(const ClusterPlan& plan, const std::string& what) {
  for (const PlannedCollective& row : plan.collectives)
    if (row.what == what) return row;
  throw std::runtime_error("no " + what);
}

TEST(ClusterPlan, OneRankHasNoCollectivesAndWaitsForNothing) {
  const ClusterPlan plan = PlanOf("gpus=1");
  EXPECT_TRUE(plan.collectives.empty());
  EXPECT_EQ(plan.exposed_s(), 0);
  EXPECT_NEAR(plan.step_s, plan.compute_s, 1e-12 * plan.step_s);
}

// Each bucket of the layout is summed once, in the group that the metrics name.
TEST(ClusterPlan, SumsEveryBucketOnceAndGathersWhatIsComputedWith) {
  const ClusterPlan whole = PlanOf("gpus=8"), shares = PlanOf("gpus=8,zero=1");
  model::LanguageModel model(Recipe().model);
  const dist::ParameterLayout layout(
      model.parameters().specs(),
      {.first_bucket_bytes = 65536, .bucket_bytes = 131072, .num_slices = 8});
  const auto buckets = static_cast<int64_t>(layout.buckets().size());
  EXPECT_EQ(Find(whole, "grad_bucket").kind, "all_reduce");
  EXPECT_EQ(Find(whole, "grad_bucket").group, "world");
  EXPECT_EQ(Find(whole, "grad_bucket").count, buckets);
  EXPECT_EQ(Find(whole, "grad_bucket").bytes, 4 * layout.num_elements());
  EXPECT_EQ(Find(shares, "grad_bucket").kind, "reduce_scatter");
  // bf16 for the region that has a compute copy, fp32 for the rest.
  EXPECT_EQ(Find(shares, "param_bucket").bytes,
            4 * layout.num_elements() - 2 * layout.num_compute_elements());
  EXPECT_EQ(Find(shares, "step_scalars").count, 1);
  EXPECT_EQ(shares.BytesByGroup().at("world"),
            Find(shares, "grad_bucket").bytes + Find(shares, "param_bucket").bytes);
  // Two micro-batches sum every bucket.
  EXPECT_EQ(Find(PlanOf("gpus=8,zero=2"), "grad_bucket").count, 2 * buckets);
}

TEST(ClusterPlan, LossesAndProductsAtThePeakAreTheStep) {
  for (const char* text : {"gpus=1", "gpus=8,zero=1", "nodes=2,gpus=8,sp=4,zero=2"}) {
    const ClusterPlan plan = PlanOf(text);
    double sum = plan.mfu_full * plan.step_s;  // Only matrix products, at the peak rate.
    for (const PlannedLoss& loss : plan.losses) {
      EXPECT_GE(loss.seconds, -1e-9 * plan.step_s) << loss.what;
      sum += loss.seconds;
    }
    EXPECT_NEAR(sum / plan.step_s, 1, 1e-9) << text;
    EXPECT_NEAR(plan.tokens_per_s * plan.step_s, 32 * 512, 1e-6);
  }
}

TEST(ClusterPlan, WhatIsRecomputedIsALossOfThatName) {
  const auto seconds = [](const ClusterPlan& plan, const std::string& what) {
    for (const PlannedLoss& loss : plan.losses)
      if (loss.what == what) return loss.seconds;
    throw std::runtime_error("no " + what);
  };
  const ClusterPlan keeps = PlanOf("gpus=1"), again = PlanOf("gpus=1", {"train.recompute=block"});
  const std::string slices = "slices of rows with more work than the mean";
  EXPECT_EQ(seconds(keeps, "recomputation"), 0);
  EXPECT_GT(seconds(again, "recomputation"), 0);
  EXPECT_NEAR(seconds(again, slices), seconds(keeps, slices), 1e-9 * again.step_s);
}

TEST(ClusterPlan, ComputesInTheRecipesPrecision) {
  const ClusterPlan bf16 = PlanOf("gpus=1"), fp32 = PlanOf("gpus=1", {"train.precision=fp32"});
  EXPECT_EQ(bf16.cluster.peak_flops, 989e12);
  EXPECT_EQ(fp32.cluster.peak_flops, 67e12);
  EXPECT_EQ(PlanOf("gpus=1,peak_tflops=100", {"train.precision=fp32"}).cluster.peak_flops, 100e12);
}

TEST(ClusterPlan, SlowerLinksExposeMoreAndAreWarnedOf) {
  const ClusterPlan fast = PlanOf("nodes=2,gpus=8,zero=1"),
                    slow = PlanOf("nodes=2,gpus=8,zero=1,network_gbs=0.001");
  EXPECT_GT(slow.exposed_s(), 10 * fast.exposed_s());
  EXPECT_EQ(slow.BytesByGroup(), fast.BytesByGroup());
  const std::string text = ClusterPlanText(slow);
  EXPECT_TRUE(text.starts_with("warning: communication: compute waits for it in ")) << text;
}

TEST(ClusterPlan, CountsMemoryByPart) {
  const ClusterPlan plan = PlanOf("gpus=8,zero=1,sp=2");
  model::LanguageModel model(Recipe().model);
  const dist::ParameterLayout layout(
      model.parameters().specs(),
      {.first_bucket_bytes = 65536, .bucket_bytes = 131072, .num_slices = 8});
  const MemoryPlan& memory = plan.memory;
  const auto all = static_cast<double>(layout.num_elements()),
             copied = static_cast<double>(layout.num_compute_elements());
  EXPECT_DOUBLE_EQ(memory.main_and_optimizer, copied * 4 / 8 + (all - copied) * 4 + all * 8 / 8);
  EXPECT_DOUBLE_EQ(memory.compute_copy, copied * 2);
  EXPECT_DOUBLE_EQ(memory.states, 2 * model::ModelCost(model, 256).StateBytesPerRow(2));
  // A layer sends two messages: a gather of both ranks' states, and its own.
  int64_t layer_states = 0;
  for (const PlannedCollective& row : plan.collectives)
    if (row.what == "state") layer_states = row.bytes / row.count;
  EXPECT_DOUBLE_EQ(memory.exchange, 1.5 * static_cast<double>(layer_states));
  EXPECT_DOUBLE_EQ(memory.libraries, kGiB / 2 + 2 * kGiB / 4) << "of two groups";
  EXPECT_DOUBLE_EQ(memory.margin, (memory.total() - memory.margin) * 0.05);
  EXPECT_DOUBLE_EQ(memory.pinned_staging, 12.0 * static_cast<double>(plan.parameters) / 8);
  EXPECT_EQ(memory.saved_copy, 0);
}

TEST(ClusterPlan, OnlyPeriodicSavesRunDuringTraining) {
  EXPECT_TRUE(PlanOf("gpus=8").save_blocked_s);
  for (const char* alone : {"ckpt.every=0", "ckpt.background=false"}) {
    SCOPED_TRACE(alone);
    const ClusterPlan plan = PlanOf("gpus=8", {alone});
    EXPECT_FALSE(plan.save_blocked_s);
    EXPECT_EQ(plan.memory.pinned_staging, 0);
    EXPECT_THAT(ClusterPlanText(plan), ContainsRegex("a save blocks +until written"));
    EXPECT_TRUE(ClusterPlanJson(plan)["save_blocked_seconds"].is_null());
  }
}

double WorkspaceOf(const model::LanguageModel& model, const model::GpuBatch& batch) {
  return model::ModelCost(model, batch.seq_len).WorkspaceBytes(batch);
}

// The workspace is that of the rank's slices, as the cluster's GPU splits them.
TEST(ClusterPlan, CountsTheWorkspaceOfItsGpu) {
  constexpr kernels::DeviceLimits kH100 = {true, 132, 227 << 10, true},
                                  kA100 = {true, 108, 163 << 10};
  EXPECT_EQ(PlanOf("gpus=8,zero=1,sp=2").memory.workspace,
            WorkspaceOf(model::LanguageModel(Recipe().model), {2, 256, true, kH100}));
  const std::vector<std::string> wide = {"model.model_dim=1024", "model.mixer.gla.num_heads=4",
                                         "data.seq_len=2048", "train.micro_batch=4",
                                         "train.global_batch=32"};
  const model::LanguageModel model(Recipe(wide).model);
  const double h100 = PlanOf("gpus=8", wide).memory.workspace,
               a100 = PlanOf("gpus=8,device=a100", wide).memory.workspace;
  EXPECT_EQ(h100, WorkspaceOf(model, {4, 2048, true, kH100}));
  EXPECT_EQ(a100, WorkspaceOf(model, {4, 2048, true, kA100}));
  EXPECT_NE(h100, a100);
  EXPECT_EQ(PlanOf("gpus=8,device=cpu,peak_tflops=1").memory.workspace, 0);
}

TEST(ClusterPlan, WarnsOfMemoryFirst) {
  const double total = PlanOf("gpus=8").memory.total() / kGiB;
  const std::string tight = ClusterPlanText(PlanOf(Concat("gpus=8,memory_gib=", total / 0.95)));
  EXPECT_TRUE(tight.starts_with("warning: memory: ")) << tight;
  EXPECT_THAT(tight, HasSubstr("95 %; estimates may be too low"));
  EXPECT_THAT(ClusterPlanText(PlanOf(Concat("gpus=8,memory_gib=", total / 1.2))),
              HasSubstr("it does not fit"));
  EXPECT_THAT(ClusterPlanText(PlanOf("gpus=8")), testing::Not(HasSubstr("warning: memory")));
}

TEST(ClusterPlan, JsonHasWhatTheTextHas) {
  const ClusterPlan plan = PlanOf("nodes=2,gpus=8,sp=4,zero=1");
  const auto json = ClusterPlanJson(plan);
  EXPECT_EQ(json["collectives"].size(), plan.collectives.size());
  EXPECT_EQ(json["cluster"]["device"], "h100");
  EXPECT_EQ(json["memory_of_one_rank"]["total_bytes"].get<uint64_t>(),
            static_cast<uint64_t>(plan.memory.total()));
  EXPECT_EQ(json["memory_of_one_rank"]["workspace_bytes"].get<uint64_t>(),
            static_cast<uint64_t>(plan.memory.workspace));
  EXPECT_DOUBLE_EQ(json["step_seconds"].get<double>(), plan.step_s);
  const std::string text = ClusterPlanText(plan);
  for (const char* part : {"sums", "rows", "control", "grad_bucket", "param_bucket", "MFU, full",
                           "estimate", "largest losses", "a save blocks", "workspace of a kernel"})
    EXPECT_THAT(text, HasSubstr(part));
}

// Each rank of a row sees all tokens of the row before its own slice.
TEST(ClusterPlan, TheLastSliceOfSoftmaxHasTheMostWork) {
  const ClusterPlan softmax = PlanOf("gpus=8,sp=8", {"model.mixer=softmax", "data.seq_len=65536"});
  const auto of_slices = [](const ClusterPlan& plan) {
    for (const PlannedLoss& loss : plan.losses)
      if (loss.what.starts_with("slices of rows")) return loss.seconds;
    return -1.0;
  };
  EXPECT_GT(of_slices(softmax), 0.1 * softmax.step_s * softmax.mfu_full);
  EXPECT_NEAR(of_slices(PlanOf("gpus=8,sp=8")), 0, 1e-12);
}

// Two levels: sums and gathers within a node, and those of the ranges that a rank holds over nodes.
TEST(ClusterPlan, ShardGroupsSendLittleBetweenNodes) {
  const ClusterPlan flat = PlanOf("nodes=2,gpus=4,zero=1,shard=8"),
                    groups = PlanOf("nodes=2,gpus=4,zero=1");
  EXPECT_EQ(flat.shard, 8);
  EXPECT_EQ(groups.shard, 4);
  const auto bytes = groups.BytesByGroup();
  EXPECT_EQ(bytes.at("shard"), flat.BytesByGroup().at("world"));
  EXPECT_EQ(bytes.at("replica") * 4, bytes.at("shard"));
  EXPECT_THAT(ClusterPlanText(groups), HasSubstr("ZeRO stage 1 in groups of 4"));
}

TEST(ClusterPlan, StageZeroHasNoShardGroups) {
  EXPECT_HL_ERROR(PlanOf("gpus=8,zero=0,shard=4"), ExitCode::kUsage,
                  "--plan shard=4 with zero=0: stage 0 has no shard groups. Use zero=1, 2 or 3");
}

// Each block is gathered in forward, and in backward unless it is one of the last two; the head and
// the embedding once per micro-batch.
TEST(ClusterPlan, StageThreeGathersItsLayersTwice) {
  const ClusterPlan plan = PlanOf("gpus=8,zero=3", {"model.num_layers=6", "train.micro_batch=4"});
  int64_t units = 0;
  for (const PlannedCollective& row : plan.collectives)
    if (row.group == "units") units += row.count;
  EXPECT_GE(units, 6 + 4 + 2);
  EXPECT_GT(plan.memory.gathered, 0);
  const ClusterPlan second = PlanOf("gpus=8,zero=2", {"model.num_layers=6", "train.micro_batch=4"});
  EXPECT_LT(plan.memory.compute_copy, 0.2 * second.memory.compute_copy);
}

RunConfig OfFile(const std::string& file, const PlanRequest& request,
                 const std::vector<std::string>& overrides) {
  RunConfig config = LoadRunConfig(
      std::filesystem::path(test::kSourceDir) / "launch/recipes" / (file + ".textproto"),
      overrides);
  config = ConfigFor(std::move(config), request);
  CompleteForPlan(config, nullptr, request.cluster.world_size());
  return config;
}

// Weak scaling: the rate of a GPU among 1,024 is at least 90 % of that among 8, and groups of a
// node lose less than one group of all.
TEST(ClusterPlan, ShardGroupsScaleToAThousandGpus) {
  const auto rate = [](int nodes, const std::string& shard) {
    const PlanRequest request = ParsePlan(Concat("nodes=", nodes, ",gpus=8,zero=1", shard));
    const RunConfig config =
        OfFile("gla_1.3b", request, {Concat("train.global_batch=", 64 * nodes)});
    return PlanCluster(config, request.cluster).tokens_per_s / request.cluster.world_size();
  };
  const double one_node = rate(1, "");
  const double groups = rate(128, "");
  EXPECT_GE(groups, 0.9 * one_node);
  EXPECT_GT(groups, rate(128, ",shard=1024"));
}

// 80 layers of 8,192 channels: 70 billion parameters on 64 H100 with stage 3, but not with stage 2.
TEST(ClusterPlan, SeventyBillionParametersFitWithStageThree) {
  const auto memory = [](const std::string& zero) {
    const PlanRequest request = ParsePlan("nodes=8,gpus=8," + zero);
    const RunConfig config =
        OfFile("gla_7b", request,
               {"model.num_layers=80", "model.model_dim=8192", "model.mixer.gla.num_heads=64",
                "model.vocab_size=128000", "train.global_batch=64", "train.micro_batch=1",
                "data.seq_len=8192", "train.recompute=block"});
    const model::LanguageModel model(config.model);
    EXPECT_GT(model.CountParameters().total(), 60e9);
    const ClusterPlan plan = PlanCluster(config, request.cluster);
    return plan.memory.total() / plan.cluster.memory_bytes;
  };
  EXPECT_LE(memory("zero=3,shard=64"), kPlannedMemory);
  EXPECT_GT(memory("zero=2,shard=64"), 1);
}

TEST(PlanSearch, FindsTheFastestThatFits) {
  const PlanRequest request = ParsePlan("auto,nodes=2,gpus=4");
  const FoundPlan found = SearchPlan(Recipe(), request);
  EXPECT_EQ(found.num_possible, 4 * (1 + 3 * 2))
      << "sp 1, 2, 4 and 8, stage 0, and three stages with one or two shard groups; the largest "
         "micro-batches fit";
  EXPECT_EQ(found.num_fitting, found.num_possible);
  for (const char* text : {"nodes=2,gpus=4,sp=1,zero=0,micro_batch=4", "nodes=2,gpus=4,sp=2,zero=1",
                           "nodes=2,gpus=4,sp=8,zero=2,micro_batch=32"})
    EXPECT_GE(found.plan.tokens_per_s, PlanOf(text).tokens_per_s) << text;
  PlanRequest fixed = request;
  fixed.sp = 4, fixed.zero = 2, fixed.micro_batch = 8;
  const FoundPlan one = SearchPlan(Recipe(), fixed);
  EXPECT_EQ(one.num_possible, 2) << "one or two shard groups";
  EXPECT_EQ(one.plan.sp, 4);
  EXPECT_EQ(one.plan.zero_stage, 2);
  EXPECT_EQ(one.plan.micro_batch, 8);
}

TEST(ClusterPlan, WarnsOfFp32OnAGpu) {
  const auto warns = [](const std::string& precision, const std::string& machines) {
    const auto warnings =
        SearchPlan(Recipe({"train.precision=" + precision}), ParsePlan(machines)).plan.warnings;
    return std::ranges::any_of(warnings, [](const std::string& warning) {
      return warning.find("Use train.precision=bf16") != std::string::npos;
    });
  };
  EXPECT_TRUE(warns("fp32", "auto,gpus=2"));
  EXPECT_FALSE(warns("bf16", "auto,gpus=2"));
  EXPECT_FALSE(warns("fp32", "auto,gpus=2,device=cpu,peak_tflops=1"));
}

TEST(PlanSearch, NeedsNoDataset) {
  EXPECT_GT(SearchPlan(Recipe({"data.path="}), ParsePlan("auto,gpus=2")).num_fitting, 0);
}

TEST(PlanSearch, TakesLessMemoryWhereItHasTo) {
  PlanRequest request = ParsePlan("auto,gpus=4,sp=1,device=cpu,peak_tflops=1");
  const FoundPlan roomy = SearchPlan(Recipe(), request);
  EXPECT_EQ(roomy.plan.micro_batch, 8);
  request.cluster.memory_bytes = roomy.plan.memory.total();
  const FoundPlan tight = SearchPlan(Recipe(), request);
  EXPECT_EQ(tight.plan.micro_batch, 4);
  EXPECT_LE(tight.plan.memory.total(), kPlannedMemory * request.cluster.memory_bytes);
  EXPECT_LE(tight.plan.tokens_per_s, roomy.plan.tokens_per_s);
  for (const std::string& warning : tight.plan.warnings)
    EXPECT_FALSE(warning.starts_with("memory")) << warning;
}

TEST(PlanSearch, NamesAFixIfNothingFits) {
  EXPECT_HL_ERROR(SearchPlan(Recipe(), ParsePlan("auto,nodes=8,gpus=8,sp=1")), ExitCode::kUsage,
                  "train.global_batch 32 has no split over 64 ranks", "Use a multiple of 64,");
  EXPECT_HL_ERROR(SearchPlan(Recipe(), ParsePlan("auto,gpus=8,memory_gib=0.01")), ExitCode::kUsage,
                  "fits 9.2 MiB", "the smallest needs", "Use more nodes");
  EXPECT_EQ(SearchPlan(Recipe({"model.mixer=hyena"}), ParsePlan("auto,gpus=8")).plan.sp, 1);
}

}  // namespace
}  // namespace halflife::train
