// Checks the description of a cluster and the predicted times of its collectives.
#include "train/plan/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/concat.h"
#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

using dist::OpKind;
using testing::ElementsAre;

double SecondsOf(const Cluster& cluster, int ranks, OpKind kind, int64_t bytes,
                 const std::string& group = "world") {
  return cluster.Seconds({.group = group, .group_size = ranks, .kind = kind, .bytes = bytes});
}

TEST(Cluster, ReadsWhatAPlanNames) {
  const PlanRequest request = ParsePlan(
      "nodes=4,gpus=8,sp=16,zero=2,micro_batch=3,device=h200,peak_tflops=500,"
      "efficiency=0.6,hbm_gbs=4000,nvlink_gbs=300,network_gbs=20,memory_gib=100");
  EXPECT_EQ(request.cluster.world_size(), 32);
  EXPECT_EQ(request.sp, 16);
  EXPECT_EQ(request.zero, 2);
  EXPECT_EQ(request.micro_batch, 3);
  EXPECT_FALSE(request.search);
  EXPECT_DOUBLE_EQ(request.cluster.InPrecision("fp32").peak_flops, 500e12);
  EXPECT_DOUBLE_EQ(request.cluster.efficiency, 0.6);
  EXPECT_DOUBLE_EQ(request.cluster.hbm_bytes_per_s, 4e12);
  EXPECT_DOUBLE_EQ(request.cluster.nvlink_bytes_per_s, 3e11);
  EXPECT_DOUBLE_EQ(request.cluster.network_bytes_per_s, 2e10);
  EXPECT_DOUBLE_EQ(request.cluster.memory_bytes, 100.0 * (1 << 30));
}

// Explicit values override the preset, in any order.
TEST(Cluster, PresetsGiveTheRest) {
  const PlanRequest request = ParsePlan("auto,hbm_gbs=1,gpus=2,device=a100");
  EXPECT_TRUE(request.search);
  EXPECT_FALSE(request.sp);
  EXPECT_DOUBLE_EQ(request.cluster.hbm_bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(request.cluster.InPrecision("bf16").peak_flops, 312e12);
  EXPECT_DOUBLE_EQ(request.cluster.InPrecision("fp32").peak_flops, 19.5e12);
  EXPECT_EQ(request.cluster.world_size(), 2);
}

TEST(Cluster, NamesTheFix) {
  const std::pair<const char*, std::vector<std::string>> kBad[] = {
      {"", {"names no machines", "Use for example nodes=4,gpus=8."}},
      {"nodes=0", {"--plan nodes=0", "from 1 to 1048576"}},
      {"nodes=2x", {"--plan nodes=2x", "a whole number"}},
      {"nodes", {"--plan nodes= is invalid", "a whole number"}},
      {"gpus=-8", {"--plan gpus=-8", "from 1 to 1024"}},
      {"nodes=1048576,gpus=8", {"at most 1048576 ranks"}},
      {"zero=4", {"--plan zero=4", "from 0 to 3"}},
      {"node=4", {"no 'node'", "did you mean 'nodes'", "memory_gib"}},
      {"nodes=1,nodes=2", {"names nodes twice"}},
      {"device=h1000", {"device=h1000", "did you mean 'h100'", "h100, h200, a100, cpu"}},
      {"efficiency=1.5", {"efficiency=1.5", "and up to 1."}},
      {"efficiency=nan", {"efficiency=nan", "and up to 1."}},
      {"hbm_gbs=0", {"hbm_gbs=0", "Use a number > 0."}},
      {"auto=1", {"no 'auto'"}},
      {"device=cpu", {"device=cpu", "Add peak_tflops=NUMBER"}}};
  for (const auto& [text, pieces] : kBad) {
    for (const std::string& piece : pieces)
      EXPECT_HL_ERROR(ParsePlan(text), ExitCode::kUsage, piece);
  }
}

// A file of measured links replaces what a plan assumes. Keys of the text override the file.
TEST(Cluster, ReadsMeasuredLinks) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "links.json").string();
  const auto read = [&](const std::string& text, const std::string& more = "") {
    AtomicWriteFile(file, text, ExitCode::kUsage);
    return ParsePlan(Concat(more, "nodes=2,gpus=8,links=", file)).cluster;
  };
  const Cluster assumed = ParsePlan("nodes=2,gpus=8").cluster;
  const Cluster measured =
      read(R"({"node": {"gbs": 200, "latency_us": 5}, "network": {"gbs": 10}, "call_us": 20})");
  constexpr int64_t kBytes = 64 << 20;
  EXPECT_DOUBLE_EQ(SecondsOf(measured, 8, OpKind::kAllGather, kBytes),
                   20e-6 + 7 * 5e-6 + kBytes * 7.0 / 8 / 200e9);
  EXPECT_DOUBLE_EQ(SecondsOf(measured, 16, OpKind::kSendRecv, kBytes, "rows_0"),
                   20e-6 + assumed.network_hop_s + kBytes / 10e9);
  EXPECT_DOUBLE_EQ(read(R"({"node": {"gbs": 200}})", "nvlink_gbs=100,").nvlink_bytes_per_s, 1e11);
  EXPECT_HL_ERROR(read("[]"), ExitCode::kUsage, "links.json is not a JSON object");
  EXPECT_HL_ERROR(read(R"({"nodes": {}})"), ExitCode::kUsage, "has no key 'nodes'",
                  "did you mean 'node'");
  EXPECT_HL_ERROR(read(R"({"node": {"gb": 1}})"), ExitCode::kUsage, "has no key 'node.gb'",
                  "node.gbs, node.latency_us");
  EXPECT_HL_ERROR(read(R"({"network": {"gbs": 0}})"), ExitCode::kUsage, "network.gbs is 0",
                  "Use a number above 0.");
  EXPECT_HL_ERROR(ParsePlan("links=nowhere"), ExitCode::kUsage, "--plan links=nowhere",
                  "there is no such file", "Use a file like");
}

TEST(Cluster, RowsLieOnANodeOrOnWholeNodes) {
  EXPECT_THAT(ParsePlan("nodes=3,gpus=4").cluster.RowSizes(), ElementsAre(1, 2, 4, 12));
  RunConfig config;
  config.parallel.sp = 2;
  EXPECT_EQ(ConfigFor(config, ParsePlan("gpus=4")).parallel.sp, 2);
  EXPECT_EQ(ConfigFor(config, ParsePlan("gpus=4,sp=4,zero=1")).parallel.zero_stage, 1);
  EXPECT_HL_ERROR(ConfigFor(config, ParsePlan("nodes=3,gpus=4,sp=6")), ExitCode::kUsage,
                  "with sp 6", "Use sp 1, 2, 4, 12.");
}

// 8.4 us per operation, plus 3.4 us for each hop of the ring within a node and 14 us between nodes,
// plus the time for the bytes that a rank sends on at 360 GB/s.
TEST(Cluster, TimesRingsAndTrees) {
  const Cluster node = ParsePlan("gpus=8").cluster, large = ParsePlan("nodes=128,gpus=8").cluster;
  constexpr int64_t kBytes = 64 << 20;
  EXPECT_DOUBLE_EQ(SecondsOf(node, 8, OpKind::kAllGather, kBytes),
                   8.4e-6 + 7 * 3.4e-6 + kBytes * 7.0 / 8 / 360e9);
  EXPECT_DOUBLE_EQ(SecondsOf(large, 1024, OpKind::kReduceScatter, kBytes),
                   8.4e-6 + 895 * 3.4e-6 + 128 * 14e-6 + kBytes * 1023.0 / 1024 / 360e9);
  EXPECT_DOUBLE_EQ(SecondsOf(large, 1024, OpKind::kAllReduce, kBytes),
                   8.4e-6 + 2 * 7 * 3.4e-6 + 2 * 7 * 14e-6 + 2 * kBytes * 1023.0 / 1024 / 360e9);
  EXPECT_DOUBLE_EQ(SecondsOf(large, 8, OpKind::kSendRecv, kBytes, "rows_0"),
                   8.4e-6 + 3.4e-6 + kBytes / 360e9);
  EXPECT_DOUBLE_EQ(SecondsOf(large, 16, OpKind::kSendRecv, kBytes, "rows_0"),
                   8.4e-6 + 14e-6 + kBytes / 45e9);
  EXPECT_EQ(SecondsOf(node, 1, OpKind::kAllReduce, kBytes), 0);
  // Two ranks, each on its own node.
  EXPECT_DOUBLE_EQ(SecondsOf(ParsePlan("nodes=2").cluster, 2, OpKind::kAllGather, kBytes),
                   8.4e-6 + 14e-6 + kBytes / 2.0 / 45e9);
}

TEST(Cluster, TheCostOfRowsIsThatOfTheirOperations) {
  const Cluster cluster = ParsePlan("gpus=8").cluster;
  const ops::ExchangeCost cost = cluster.RowCost(8);
  constexpr int64_t kState = 1 << 20;  // Per rank.
  EXPECT_NEAR(cost.Seconds(ops::StateStrategy::kGather, 8, {.state = kState}),
              SecondsOf(cluster, 8, OpKind::kAllGather, 8 * kState, "rows_0"), 1e-12);
  EXPECT_NEAR(cost.Seconds(ops::StateStrategy::kRing, 8, {.state = kState}),
              7 * SecondsOf(cluster, 8, OpKind::kSendRecv, kState, "rows_0"), 1e-12);
}

}  // namespace
}  // namespace halflife::train
