// Plans agree with steps that were measured on one GPU and with published ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "train/config/plan.h"
#include "train/plan/cluster_plan.h"

namespace halflife::train {
namespace {

// `model` and `train` are parts of a recipe. `error` is the plan's relative error today.
struct MeasuredStep {
  std::string name, cluster, model, train;
  double tokens_per_s = 0;  // per GPU
  double error = 0;
};

constexpr char kSmall[] = "vocab_size: 32000 model_dim: 1024 num_layers: 24 ";
constexpr char kTokens[] = "global_batch: 8 micro_batch: 8";
const std::vector<MeasuredStep> kSteps = {
    // bench/RESULTS.md, commit 51f3f612, on one H100 80GB.
    {"gla_340m", "gpus=1", Concat(kSmall, "mixer { gla { num_heads: 4 } }"), kTokens, 158.7e3,
     0.030},
    {"gla_1_3b", "gpus=1",
     "vocab_size: 32000 model_dim: 2048 num_layers: 24 mixer { gla { num_heads: 8 } }", kTokens,
     57.5e3, -0.040},
    {"retention_340m", "gpus=1",
     Concat(kSmall,
            "mixer { retention { num_heads: 8 } } channel_mixer { swiglu { width: 1536 } }"),
     kTokens, 157.4e3, 0.023},
    {"softmax_340m", "gpus=1", Concat(kSmall, "mixer { softmax { num_heads: 16 } }"), kTokens,
     154.8e3, 0},
    {"rebased_340m", "gpus=1", Concat(kSmall, "mixer { rebased { num_heads: 16 } }"), kTokens,
     102.7e3, 0},
    {"mamba_430m", "gpus=1", Concat(kSmall, "mixer { mamba {} }"), kTokens, 77.7e3, 0},
    // Llama 3.1 8B by torchtitan with torch.compile on 8 H100 of 2.4 TB/s and 500 W (its
    // docs/performance.md, table 1). It recomputes more than the mixers.
    {"llama3_8b_of_torchtitan", "gpus=8,zero=3,hbm_gbs=2400",
     "vocab_size: 128256 model_dim: 4096 num_layers: 32 "
     "mixer { softmax { num_heads: 32 num_kv_heads: 8 } } "
     "channel_mixer { swiglu { width: 14336 } }",
     "global_batch: 16 micro_batch: 2 recompute: \"mixer\"", 6667, 0.075}};

class MeasuredSteps : public testing::TestWithParam<MeasuredStep> {};
INSTANTIATE_TEST_SUITE_P(Table, MeasuredSteps, testing::ValuesIn(kSteps),
                         [](const auto& at) { return at.param.name; });

// An error that grows or shrinks by a point shows that the model of a step has changed.
TEST_P(MeasuredSteps, PlansHaveTheErrorOfTheTable) {
  const MeasuredStep& step = GetParam();
  const std::string seq_len = step.name.starts_with("llama") ? "8192" : "2048";
  const RunConfig recipe =
      ParseRunConfig(Concat("data { path: \"d\" seq_len: ", seq_len, " } model { ", step.model,
                            " } train { steps: 10 precision: \"bf16\" ", step.train, " }"),
                     step.name, {});
  const PlanRequest request = ParsePlan(step.cluster);
  const ClusterPlan plan = PlanCluster(ConfigFor(recipe, request), request.cluster);
  const double per_gpu = plan.tokens_per_s / request.cluster.world_size();
  EXPECT_NEAR(per_gpu / step.tokens_per_s - 1, step.error, 0.01);
}

// Decay attention by the shape of its heads: bench/RESULTS.md, the same H100.
struct MeasuredKernel {
  std::string mixer;
  int64_t tokens, heads, head_dim_k, head_dim_v;
  double ms;  // forward and backward
};

TEST(MeasuredKernels, PlansHaveTheirTimesByShape) {
  for (const MeasuredKernel& kernel : {MeasuredKernel{"retention", 32768, 16, 128, 128, 1.528},
                                       {"retention", 16384, 32, 64, 64, 0.615},
                                       {"retention", 16384, 8, 128, 256, 0.829},
                                       {"mamba2", 32768, 16, 128, 128, 1.801},
                                       {"mamba2", 16384, 32, 64, 64, 0.760},
                                       {"mamba2", 16384, 8, 128, 256, 0.930},
                                       {"gla", 32768, 16, 128, 128, 4.383},
                                       {"gla", 16384, 32, 64, 64, 1.718},
                                       {"gla", 16384, 8, 128, 256, 1.534}}) {
    const int64_t elements = kernel.head_dim_k * kernel.head_dim_v;
    SCOPED_TRACE(Concat(kernel.mixer, " ", elements));
    // 4 operations per element in forward, and twice as many in backward.
    const auto flops = 12 * static_cast<double>(kernel.tokens * kernel.heads * elements);
    const double share = MeasuredMixingShare(kernel.mixer, elements).value();
    EXPECT_NEAR(1e3 * flops / (989e12 * share) / kernel.ms, 1, 0.15);
  }
}

TEST(MeasuredKernels, SharesBetweenShapesAreBetweenThoseOfTheShapes) {
  const auto share = [](int64_t elements) { return *MeasuredMixingShare("gla", elements); };
  EXPECT_LT(share(64 * 64), share(64 * 128));
  EXPECT_LT(share(64 * 128), share(128 * 128));
  EXPECT_NEAR(share(64 * 128), std::sqrt(share(64 * 64) * share(128 * 128)), 1e-12);
  EXPECT_EQ(share(16 * 16), share(64 * 64));
  EXPECT_EQ(share(256 * 512), share(128 * 256));
  EXPECT_EQ(MeasuredMixingShare("kda", 128 * 128), std::nullopt) << "its kernel was not measured";
}

// Small heads use less of the GPU, so the same work between tokens takes longer.
TEST(MeasuredKernels, APlanDependsOnTheShapeOfTheHeads) {
  const auto mixing = [](int heads) {
    const RunConfig recipe =
        ParseRunConfig(Concat("data { path: \"d\" seq_len: 2048 } model { ", kSmall,
                              "mixer { gla { num_heads: ", heads,
                              " } } } train { steps: 10 precision: \"bf16\" ", kTokens, " }"),
                       "heads", {});
    const PlanRequest request = ParsePlan("gpus=1");
    const ClusterPlan plan = PlanCluster(ConfigFor(recipe, request), request.cluster);
    return std::ranges::find(plan.losses, "mixing of tokens below the device's peak",
                             &PlannedLoss::what)
        ->seconds;
  };
  // Heads of 32 x 64 have a quarter of the operations of heads of 128 x 256, and less than half of
  // their share.
  EXPECT_GT(mixing(16), 2 * mixing(4) / 4);
}

}  // namespace
}  // namespace halflife::train
