// A rehearsed step has the same collectives as a real step on every rank: the same groups, order
// and bytes as in the flight records.
#include "train/plan/step_operations.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "data/prepare/prepare.h"
#include "dist/flight_report.h"
#include "dist/local_communicator.h"
#include "dist/mesh.h"
#include "dist/rank_context.h"
#include "model/model_cost.h"
#include "support/run_fixture.h"
#include "train/config/plan.h"
#include "train/lora/lora.h"
#include "train/step/step.h"

namespace halflife::train {
namespace {

constexpr char kRecipe[] = R"(
data { path: "data" seq_len: 128 prefetch: 0 }
model { vocab_size: 259 model_dim: 16 num_layers: 2 dropout: 0.1
        channel_mixer { swiglu { width: 32 } }
        mixer { gla { num_heads: 2 use_short_conv: true } } }
train { steps: 100 global_batch: 8 micro_batch: 2 seed: 3 }
parallel { first_bucket_bytes: 4096 bucket_bytes: 8192 exchange: "gather" }
)";

using Operations = std::map<std::string, std::vector<std::string>>;  // By group, in order.

std::string LineOf(const std::string& kind, const std::string& what, int64_t bytes) {
  return Concat(kind, " ", what, " ", bytes);
}

Operations Rehearsed(const RunConfig& config, const RankOfJob& rank) {
  RowRehearsals rows(config, rank.rank % config.parallel.sp, {});
  const StepOperations step = RehearseStep(config, rank, rows);
  Operations lines;
  for (const dist::RehearsedOperation& operation : step.operations())
    lines[operation.group].push_back(
        LineOf(dist::Name(operation.kind), operation.what, operation.bytes));
  return lines;
}

class StepOperationsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    dir = new test::TempDir();
    std::ofstream(dir->path() / "text.txt") << test::MakeText(30000, 2);
    data::Prepare({.input = {.paths = {(dir->path() / "text.txt").string()}, .tokenizer = "bytes"},
                   .documents = data::DocumentMode::kBlankLines,
                   .output = {.out = dir->path() / "data", .threads = 1}});
  }
  static void TearDownTestSuite() { delete dir; }

  // Returns the operations that a rank issued after its first `before` collectives.
  static Operations LastStepOf(const dist::FlightRecord& record, uint64_t before) {
    Operations lines;
    for (const dist::FlightOperation& operation : record.operations)
      if (operation.number > before)
        lines[operation.group].push_back(LineOf(operation.kind, operation.what, operation.bytes));
    return lines;
  }

  // Runs two steps on `world` rank threads and returns each rank's operations of the second step.
  static std::vector<Operations> Run(const RunConfig& config, int world) {
    std::vector<Operations> by_rank(static_cast<size_t>(world));
    const auto flight = dir->path() / Concat("flight", num_runs++);
    dist::LocalWorld::Run(world, [&](dist::Communicator& comm) {
      at::set_num_threads(1);
      const auto context = dist::MakeLocalRankContext(comm);
      context->flight().KeepIn(flight, "test");
      const dist::DataMesh mesh = MeshOf(config, comm.rank(), comm.size());
      const data::Dataset dataset = data::Dataset::Open(dir->path() / config.data.path);
      model::LanguageModel model(config.model);
      std::optional<Lora> lora;
      if (config.lora.rank > 0) lora.emplace(config.lora, model).Bind(at::kCPU, at::kFloat);
      ParameterArena arena(lora ? lora->parameters() : model.parameters(),
                           ParameterArena::Of(config, model, at::kCPU, comm.rank(), comm.size()));
      arena.Initialise(config.train.seed);
      data::TokenSource source(dataset, data::Split::kTrain,
                               {.seq_len = config.data.seq_len,
                                .micro_batch = config.train.micro_batch,
                                .global_batch = config.train.global_batch,
                                .dp_rank = mesh.dp_index(),
                                .dp_size = mesh.dp(),
                                .seed = config.train.seed,
                                .prefetch = 0});
      StepRunner runner(config, model, arena, source, *context, {}, lora ? &*lora : nullptr);
      runner.ShareParameters();
      uint64_t num_updates = 0;
      runner.Run(0, num_updates, {});
      const auto path = flight / dist::FlightRecordName(comm.rank());
      const uint64_t before = dist::ReadFlightRecord(path).num_operations;
      runner.Run(1, num_updates, {});
      by_rank[static_cast<size_t>(comm.rank())] = LastStepOf(dist::ReadFlightRecord(path), before);
      runner.AwaitParameters();
      context->flight().Discard();
    });
    return by_rank;
  }

  static void ExpectRehearsedAsRun(int world, const std::vector<std::string>& overrides) {
    const RunConfig config = ParseRunConfig(kRecipe, "test", overrides);
    const std::vector<Operations> by_rank = Run(config, world);
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_FALSE(by_rank[static_cast<size_t>(rank)].empty());
      EXPECT_EQ(Rehearsed(config, {.rank = rank, .world_size = world}),
                by_rank[static_cast<size_t>(rank)])
          << "rank " << rank << " of " << world << ", " << Join(overrides, " ");
    }
  }

  static test::TempDir* dir;
  static int num_runs;
};
test::TempDir* StepOperationsTest::dir = nullptr;
int StepOperationsTest::num_runs = 0;

TEST_F(StepOperationsTest, AreThoseOfARunInShardGroups) {
  for (const int stage : {1, 2, 3})
    for (const int shard : {2, 4})
      for (const std::string more : {"parallel.sp=1", "parallel.sp=2", "train.precision=bf16"})
        ExpectRehearsedAsRun(4, {Concat("parallel.zero_stage=", stage),
                                 Concat("parallel.shard=", shard), more, "model.num_layers=5"});
}

TEST_F(StepOperationsTest, AreThoseOfARunOnEveryMesh) {
  struct Mesh {
    int world, sp, zero;
  };
  for (const Mesh& mesh : {Mesh{2, 1, 0}, Mesh{2, 1, 1}, Mesh{2, 2, 0}, Mesh{4, 2, 1},
                           Mesh{4, 1, 2}, Mesh{4, 4, 2}, Mesh{3, 3, 1}}) {
    const bool thirds = mesh.world == 3;
    ExpectRehearsedAsRun(
        mesh.world, {Concat("parallel.sp=", mesh.sp), Concat("parallel.zero_stage=", mesh.zero),
                     thirds ? "train.global_batch=6" : "train.global_batch=8"});
  }
}

TEST_F(StepOperationsTest, AreThoseOfARunWhoseGradientsTravelInBf16) {
  for (const int stage : {0, 1, 2})
    ExpectRehearsedAsRun(4, {"parallel.grad_reduce=bf16", Concat("parallel.zero_stage=", stage)});
}

// Only A and B have gradients and are gathered, all before the first layer.
TEST_F(StepOperationsTest, AreThoseOfARunWithLora) {
  for (const int stage : {0, 1, 2})
    for (const std::string more : {"parallel.sp=1", "parallel.sp=2", "lora.targets=.*_proj.weight"})
      ExpectRehearsedAsRun(
          4, {"lora.rank=4", Concat("parallel.zero_stage=", stage), more, "model.num_layers=3"});
}

// Ranks that own no matrix take part in the exchange, too.
TEST_F(StepOperationsTest, AreThoseOfARunThatExchangesMatrices) {
  for (const char* per_head : {"false", "true"})
    for (const int stage : {0, 1, 2})
      ExpectRehearsedAsRun(4, {"optimizer.algorithm=muon", Concat("parallel.zero_stage=", stage),
                               Concat("optimizer.algorithm.muon.per_head=", per_head)});
}

// Recomputation adds no collectives, only compute: the forward of each block runs again.
TEST_F(StepOperationsTest, RecomputationAddsOnlyWork) {
  for (const char* way : {"mixer", "block"})
    ExpectRehearsedAsRun(
        4, {"parallel.sp=2", "parallel.zero_stage=2", Concat("train.recompute=", way)});
  const auto flops = [](const char* way) {
    const RunConfig config = ParseRunConfig(kRecipe, "test", {Concat("train.recompute=", way)});
    RowRehearsals rows(config, 0, {});
    double sum = 0;
    for (const ComputePiece& piece :
         RehearseStep(config, {.rank = 0, .world_size = 1}, rows).pieces)
      sum += piece.flops();
    return sum;
  };
  const RunConfig config = ParseRunConfig(kRecipe, "test", {});
  const model::LanguageModel model(config.model);
  const double tokens = 2.0 * 128;
  const model::ModelCost cost(model, 128);
  double blocks = 0, mixers = 0;
  for (int64_t layer = 0; layer < config.model.num_layers; ++layer) {
    const model::FlopCount block = cost.FlopsOfLayer(layer);
    const model::FlopCount mixer = cost.RecomputedFlopsOfLayer(layer, model::Recompute::kMixer);
    blocks += block.matmul + block.mixing;
    mixers += mixer.matmul + mixer.mixing;
  }
  EXPECT_LT(mixers, blocks);
  EXPECT_DOUBLE_EQ(flops("block"), flops("none") + tokens * blocks);
  EXPECT_DOUBLE_EQ(flops("mixer"), flops("none") + tokens * mixers);
}

// Softmax windows that end in the neighbour's slice, that reach beyond it, and that are unlimited;
// rows whose slices have equal lengths, and rows of 100 tokens.
TEST_F(StepOperationsTest, AreThoseOfARunForEveryStrategyAndPast) {
  for (const char* exchange : {"gather", "ring", "scan"}) {
    for (const char* window : {"30", "50", "0"}) {
      const std::string hybrid = Concat(
          "model.hybrid=[{ layers: 1 mixer { softmax { num_heads: 2 window: ", window, " } } }]");
      ExpectRehearsedAsRun(4, {"parallel.sp=4", Concat("parallel.exchange=", exchange), hybrid});
    }
  }
  ExpectRehearsedAsRun(2, {"parallel.sp=2", "data.seq_len=100", "train.precision=bf16"});
}

TEST_F(StepOperationsTest, AreThoseOfARunForEveryMixerThatSharesRows) {
  for (const std::string& mixer : model::NamesOf(model::kMixers)) {
    const RunConfig config = ParseRunConfig(kRecipe, "test", {"model.mixer=" + mixer});
    if (!model::LanguageModel(config.model).LayerOfWholeRows().empty()) continue;
    ExpectRehearsedAsRun(2, {"parallel.sp=2", "model.mixer=" + mixer});
  }
}

// Rows of 8 x 2048 tokens are rehearsed on shorter rows, with the result of the full length.
TEST_F(StepOperationsTest, LongRowsHaveTheOperationsOfTheirLength) {
  for (const char* window : {"0", "20", "200", "5000"}) {
    const RunConfig config = ParseRunConfig(
        kRecipe, "test",
        {"parallel.sp=8", "data.seq_len=16384", "train.global_batch=2", "train.micro_batch=2",
         "model.mixer=softmax", Concat("model.mixer.softmax.window=", window),
         "model.mixer.softmax.num_heads=2"});
    const Operations lines = Rehearsed(config, {.rank = 1, .world_size = 8});
    // [2 rows, tokens, 2 heads, keys and values of 8] in fp32, in two layers.
    const int64_t count = std::atoi(window), of_token = 2 * 2 * 16 * 4;
    const bool gathered = count == 0 || count > 2048;
    const int64_t bytes = of_token * (gathered ? 8 * 2048 : count - 1);
    const std::string line = LineOf(gathered ? "all_gather" : "send_recv", "tokens_before", bytes);
    EXPECT_EQ(std::ranges::count(lines.at("rows_0"), line), 2) << window;
  }
}

// With ZeRO stage 2, no rank holds all gradients at one time. The rehearsal finds the peak.
TEST_F(StepOperationsTest, ReportsTheArenasSizes) {
  RunConfig config = ParseRunConfig(kRecipe, "test", {"parallel.zero_stage=2"});
  RowRehearsals rows(config, 0, {});
  const StepOperations step = RehearseStep(config, {.rank = 0, .world_size = 4}, rows);
  model::LanguageModel model(config.model);
  const dist::ParameterLayout layout(model.parameters().specs(),
                                     ParameterArena::Of(config, model, at::kCPU, 0, 4).layout);
  const auto elements = static_cast<double>(layout.num_elements());
  EXPECT_EQ(step.main_and_optimizer_bytes, elements * (4 + 8.0 / 4)) << "fp32 weights are whole";
  EXPECT_EQ(step.gradient_bytes, elements * 4 / 4);
  EXPECT_GE(step.bucket_slot_bytes, 8192);
  EXPECT_LE(step.bucket_slot_bytes, 4 * elements);
  EXPECT_EQ(step.num_micro_batches, 1);
  EXPECT_EQ(step.tokens, 2 * 128);
}

// One bucket, which exists in both types during the conversion.
TEST_F(StepOperationsTest, ReportsTheBucketsOfBf16Gradients) {
  const RunConfig config = ParseRunConfig(
      kRecipe, "test",
      {"parallel.zero_stage=2", "parallel.grad_reduce=bf16", "parallel.first_bucket_bytes=16777216",
       "parallel.bucket_bytes=16777216", "train.precision=fp32"});
  RowRehearsals rows(config, 0, {});
  const StepOperations step = RehearseStep(config, {.rank = 0, .world_size = 4}, rows);
  model::LanguageModel model(config.model);
  const dist::ParameterLayout layout(model.parameters().specs(),
                                     ParameterArena::Of(config, model, at::kCPU, 0, 4).layout);
  int64_t longest = 0;
  for (const dist::Bucket& bucket : layout.buckets())
    longest = std::max(longest, bucket.end - bucket.begin);
  EXPECT_GE(step.bucket_slot_bytes, 6.0 * static_cast<double>(longest));
  EXPECT_LE(step.bucket_slot_bytes, 6.0 * static_cast<double>(layout.num_elements()));
}

}  // namespace
}  // namespace halflife::train
