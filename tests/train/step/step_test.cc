// Whole optimizer steps on rank threads: results must not depend on the world size, on gradient
// accumulation or on failures.
#include "train/step/step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "core/concat.h"
#include "dist/local_communicator.h"
#include "dist/rank_context.h"
#include "ops/torch/side_by_side.h"
#include "support/expect_error.h"
#include "support/peak_bytes.h"
#include "support/temp_dir.h"
#include "train/config/plan.h"
#include "train/step/step_data.h"

namespace halflife::train {
namespace {

using dist::LocalWorld;

constexpr char kRecipe[] = R"(
data { path: "data" seq_len: 32 prefetch: 0 }
model { vocab_size: 259 model_dim: 16 num_layers: 2 dropout: 0.1
        channel_mixer { swiglu { width: 32 } }
        mixer { retention { num_heads: 2 } } }
optimizer { lr: 3e-3 }
schedule { kind: "constant" }
train { steps: 100 global_batch: 8 micro_batch: 2 seed: 3 z_loss: 1e-3 log_samples: true }
parallel { first_bucket_bytes: 4096 bucket_bytes: 8192 }
)";

class StepTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    dir = new test::TempDir();
    test::PrepareStepData(dir->path());
  }
  static void TearDownTestSuite() { delete dir; }

  struct Outcome {
    std::vector<StepResult> steps;
    std::vector<float> main;  // The weights that the model computes with, as fp32.
    size_t optimizer_bytes = 0, gradient_bytes = 0;
    int64_t num_replays = 0;
    double step_bytes = 0;  // Peak bytes of tensors in the last step.
    // With one rank. After the first step: 0.1 times the clipped gradient.
    std::vector<float> adam_m;
    std::vector<SampleRecord> samples;  // Samples of the first step, over all ranks.
  };

  // Returns the weights that this rank updates. Other ranks may not have sent the rest yet.
  static std::vector<float> OwnWeights(ParameterArena& arena) {
    std::vector<float> weights;
    for (const dist::Fragment& part : arena.updated_fragments()) {
      const float* const first = arena.main().const_data_ptr<float>() +
                                 arena.layout().PlaceOf(part, arena.main_sliced_end());
      weights.insert(weights.end(), first, first + (part.end - part.begin));
    }
    return weights;
  }

  // Trains `steps` steps on `world` rank threads and returns the result of rank 0.
  static Outcome Train(int world, int steps, const std::vector<std::string>& overrides = {},
                       const dist::LocalOptions& options = {}) {
    Outcome outcome;
    std::mutex mutex;
    const auto body = [&](dist::Communicator& comm) {
      at::set_num_threads(1);
      const RunConfig config = ParseRunConfig(kRecipe, "test", overrides);
      const auto owned = dist::MakeLocalRankContext(comm);
      dist::RankContext& context = *owned;
      const dist::DataMesh mesh = MeshOf(config, comm.rank(), comm.size());
      const data::Dataset dataset = data::Dataset::Open(dir->path() / config.data.path);
      model::LanguageModel model(config.model);
      ParameterArena::Config of_arena =
          ParameterArena::Of(config, model, at::kCPU, comm.rank(), comm.size());
      if (keeps_frozen_gradients) of_arena.layout.frozen.clear();
      ParameterArena arena(model.parameters(), of_arena);
      arena.Initialise(config.train.seed);
      data::TokenSource source(dataset, data::Split::kTrain,
                               {.seq_len = config.data.seq_len,
                                .micro_batch = config.train.micro_batch,
                                .global_batch = config.train.global_batch,
                                .dp_rank = mesh.dp_index(),
                                .dp_size = mesh.dp(),
                                .in_turn = config.parallel.sums_each_micro_batch(),
                                .seed = config.train.seed,
                                .prefetch = 0,
                                .epoch_end = data::EpochEndOf(config.data.epoch_end)});
      StepRunner runner(config, model, arena, source, context, {});
      runner.ShareParameters();
      uint64_t num_updates = 0;
      for (int step = 0; step < steps; ++step) {
        // Until `before_update` is called, a background save may read the arena.
        const std::vector<float> before = OwnWeights(arena);
        const at::Tensor& state = arena.state(config.optimizer.state_names()[0]);
        const at::Tensor before_update = state.clone();
        int times = 0;
        const test::PeakBytes bytes;
        StepResult result = runner.Run(step, num_updates, {}, [&] {
          ++times;
          EXPECT_EQ(OwnWeights(arena), before);
          EXPECT_TRUE(state.equal(before_update));
        });
        EXPECT_EQ(times, result.skipped ? 0 : 1);
        EXPECT_EQ(state.equal(before_update), result.skipped);
        const std::lock_guard lock(mutex);
        if (comm.rank() == 0) outcome.step_bytes = bytes.peak();
        if (step == 0) {
          outcome.samples.insert(outcome.samples.end(), result.samples.begin(),
                                 result.samples.end());
        }
        if (comm.rank() == 0) outcome.steps.push_back(std::move(result));
      }
      runner.AwaitParameters();
      std::vector<float> weights;
      // Compares tensor by tensor, because the arena's padding depends on the number of slices.
      for (int i = 0; i < model.parameters().size(); ++i) {
        runner.AwaitLayer(model.LayerOf(i));
        const at::Tensor view = model.parameters().tensor(i).to(at::kFloat).contiguous();
        weights.insert(weights.end(), view.const_data_ptr<float>(),
                       view.const_data_ptr<float>() + view.numel());
      }
      if (comm.rank() == 0) {
        outcome.main = std::move(weights);
        for (const ParameterArena::StoredArray& array : arena.stored_arrays())
          outcome.optimizer_bytes += array.tensor->nbytes();
        outcome.gradient_bytes = arena.grads().nbytes();
        outcome.num_replays = runner.num_replays();
        if (world == 1) {
          const at::Tensor& m = arena.state(config.optimizer.state_names()[0]);
          outcome.adam_m.assign(m.const_data_ptr<float>(), m.const_data_ptr<float>() + m.numel());
        }
      }
    };
    LocalWorld::Run(world, body, options);
    std::sort(outcome.samples.begin(), outcome.samples.end(),
              [](const auto& a, const auto& b) { return a.sample < b.sample; });
    return outcome;
  }

  static void ExpectSameBits(const Outcome& got, const Outcome& want) {
    for (size_t step = 0; step < want.steps.size(); ++step) {
      EXPECT_EQ(got.steps[step].loss, want.steps[step].loss) << step;
      EXPECT_EQ(got.steps[step].grad_norm, want.steps[step].grad_norm) << step;
    }
    EXPECT_EQ(got.main, want.main);
  }

  static test::TempDir* dir;
  // Frozen parameters get gradients, which no update reads.
  static inline bool keeps_frozen_gradients = false;
};
test::TempDir* StepTest::dir = nullptr;

// A GPU multiplies several weights as one matrix, the CPU does not. The gradients differ only by
// fp32 roundings of sums of at most a hundred products, passed on through a few layers.
TEST_F(StepTest, JoinedProductsOnlyChangeRoundings) {
  for (const std::string& mixer : model::NamesOf(model::kMixers))
    for (const char* stage : {"0", "2"}) {
      SCOPED_TRACE(testing::Message() << mixer << " at stage " << stage);
      const std::vector<std::string> overrides = {
          "model.mixer=" + mixer,     "data.path=mqar",
          "data.seq_len=16",          "model.vocab_size=64",
          "model.objective=labelled", std::string("parallel.zero_stage=") + stage};
      const Outcome want = Train(1, 1, overrides);
      const ops::JoinedProductsEverywhere join;
      const Outcome got = Train(1, 1, overrides);
      ASSERT_EQ(got.adam_m.size(), want.adam_m.size());
      double difference = 0, square = 0;
      for (size_t i = 0; i < want.adam_m.size(); ++i) {
        difference += std::pow(got.adam_m[i] - want.adam_m[i], 2);
        square += std::pow(want.adam_m[i], 2);
      }
      EXPECT_GT(square, 0);
      EXPECT_LT(std::sqrt(difference / square), 1e-5);
    }
}

// If the number of ranks is a power of two, the same terms are summed by the same tree.
TEST_F(StepTest, WorldSizeChangesNoBit) {
  const Outcome one = Train(1, 10);
  for (const int world : {2, 4}) {
    const Outcome other = Train(world, 10);
    ASSERT_EQ(one.samples.size(), other.samples.size());
    for (size_t i = 0; i < one.samples.size(); ++i) {
      EXPECT_EQ(one.samples[i].sample, other.samples[i].sample);
      EXPECT_EQ(one.samples[i].tokens, other.samples[i].tokens);
    }
    for (int step = 0; step < 10; ++step) {
      EXPECT_EQ(one.steps[step].loss, other.steps[step].loss) << world << " ranks, step " << step;
      EXPECT_EQ(one.steps[step].grad_norm, other.steps[step].grad_norm);
    }
    EXPECT_EQ(one.main, other.main) << world << " ranks";
  }
}

// Head and embedding share one tensor. Its gradient has two parts, from both ends of backward.
TEST_F(StepTest, ATiedWeightIsSummedOnceBothItsGradientsAreThere) {
  const std::vector<std::string> tied = {"model.head.tied=true"};
  const Outcome one = Train(1, 6, tied);
  ExpectSameBits(Train(2, 6, tied), one);
  ExpectSameBits(Train(4, 6, {"model.head.tied=true", "parallel.zero_stage=1"}), one);
  const Outcome untied = Train(1, 1);
  EXPECT_NE(untied.main.size(), one.main.size());
}

// Layers share one table. Each recomputed layer adds its own gradient.
const std::vector<std::string>& T5Settings() {
  static const std::vector<std::string> settings = {
      "model.mixer=softmax", "model.mixer.softmax.num_heads=2", "model.mixer.softmax.rope_theta=0",
      "model.positions=t5"};
  return settings;
}

TEST_F(StepTest, ATableThatLayersShareIsSummedOnceAllTheirGradientsAreThere) {
  const std::vector<std::string>& t5 = T5Settings();
  const Outcome kept = Train(1, 3, t5);
  for (const char* way : {"mixer", "block"})
    for (const int stage : {0, 2}) {
      std::vector<std::string> recomputed = t5;
      recomputed.insert(recomputed.end(),
                        {std::string("train.recompute=") + way,
                         "parallel.zero_stage=" + std::to_string(stage), "train.micro_batch=4"});
      std::vector<std::string> same = t5;
      same.insert(same.end(), recomputed.end() - 2, recomputed.end());
      const Outcome got = Train(2, 3, recomputed), want = Train(2, 3, same);
      EXPECT_EQ(got.main, want.main) << way << " at stage " << stage;
      EXPECT_NEAR(got.steps[2].loss, kept.steps[2].loss, 1e-3);
    }
}

// The parts of one micro-batch are added before they join the other micro-batches, as on a GPU.
TEST_F(StepTest, ATableThatLayersShareIsSummedAlikeWhereMicroBatchesAreAddedInOrder) {
  std::vector<std::string> kept = T5Settings();
  kept.insert(kept.end(), {"train.cuda_graphs=true", "train.micro_batch=2"});
  const Outcome want = Train(1, 3, kept);
  kept.push_back("train.recompute=block");
  EXPECT_EQ(Train(1, 3, kept).main, want.main);
}

// Any other split of the batch changes the order of sums: an error of about 2^-24 in the first
// step, amplified by later updates.
TEST_F(StepTest, AnyNumberOfRanksAndMicroBatchesAgreesToRounding) {
  const std::vector<std::string> batch = {"train.global_batch=12"};
  const Outcome one = Train(1, 10, batch), three = Train(3, 10, batch);
  for (int step = 0; step < 10; ++step) {
    EXPECT_NEAR(one.steps[step].loss / three.steps[step].loss, 1, step == 0 ? 1e-6 : 1e-5);
    EXPECT_NEAR(one.steps[step].grad_norm / three.steps[step].grad_norm, 1, 1e-4);
  }
}

// (dp, sp) = (1, 2), (2, 2) and (1, 4): the same rows and targets, with sums in different orders.
TEST_F(StepTest, RanksThatShareRowsAgreeToRounding) {
  const Outcome one = Train(1, 10);
  struct Mesh {
    int world, sp;
  };
  for (const Mesh& mesh : {Mesh{2, 2}, Mesh{4, 2}, Mesh{4, 4}}) {
    const Outcome other = Train(mesh.world, 10, {Concat("parallel.sp=", mesh.sp)});
    ASSERT_EQ(one.samples.size(), other.samples.size());
    for (size_t i = 0; i < one.samples.size(); ++i)
      EXPECT_EQ(one.samples[i].sample, other.samples[i].sample);
    for (int step = 0; step < 10; ++step) {
      const StepResult &want = one.steps[step], &got = other.steps[step];
      EXPECT_EQ(got.num_targets, want.num_targets);
      EXPECT_NEAR(got.loss / want.loss, 1, step == 0 ? 1e-6 : 1e-5) << mesh.world << "/" << mesh.sp;
      EXPECT_NEAR(got.grad_norm / want.grad_norm, 1, 1e-4) << mesh.world << "/" << mesh.sp;
    }
  }
}

// Overridden position ids depend only on the samples. No split of the batch changes a bit, ranks
// that share a row get their part of the ids, and the model uses them.
TEST_F(StepTest, OverriddenPositionsFollowTheSamples) {
  const Outcome plain = Train(1, 3);
  for (const std::string kind : {"skipwise", "randomised"}) {
    std::vector<std::string> settings = {"data.positions=" + kind, "data.positions_length=500"};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> all = settings;
      all.push_back(more);
      return all;
    };
    const Outcome one = Train(1, 3, settings);
    ExpectSameBits(Train(1, 3, settings), one);
    ExpectSameBits(Train(2, 3, settings), one);
    ExpectSameBits(Train(4, 3, settings), one);
    EXPECT_GT(std::abs(one.steps[0].loss - plain.steps[0].loss), 1e-6) << kind;
    const Outcome shared = Train(2, 3, with("parallel.sp=2")),
                  larger = Train(1, 3, with("train.micro_batch=8"));
    for (int step = 0; step < 3; ++step) {
      EXPECT_NEAR(shared.steps[step].loss / one.steps[step].loss, 1, step == 0 ? 1e-6 : 1e-5);
      EXPECT_NEAR(larger.steps[step].loss / one.steps[step].loss, 1, step == 0 ? 1e-6 : 1e-5);
    }
  }
}

// If rows are split equally, groups of ranks and single micro-batches are summed by the same tree.
TEST_F(StepTest, GroupsThatShareRowsChangeNoBit) {
  for (const std::string stage : {"0", "1"}) {
    const std::vector<std::string> settings = {"parallel.sp=2", "parallel.zero_stage=" + stage};
    const Outcome one = Train(2, 10, settings);
    ExpectSameBits(Train(4, 10, settings), one);
    ExpectSameBits(Train(8, 10, settings), one);
  }
}

// A mixer may need no token before its slice: a convolution with one tap, or a window of one token.
TEST_F(StepTest, MixersWithoutAPastShareRowsToo) {
  for (const std::vector<std::string>& mixer :
       {std::vector<std::string>{"model.mixer=gated_conv", "model.mixer.gated_conv.conv_size=1"},
        {"model.mixer=softmax", "model.mixer.softmax.num_heads=2",
         "model.mixer.softmax.window=1"}}) {
    std::vector<std::string> shared = mixer;
    shared.push_back("parallel.sp=2");
    const Outcome one = Train(1, 2, mixer), two = Train(2, 2, shared);
    EXPECT_NEAR(two.steps[1].loss / one.steps[1].loss, 1, 1e-5) << mixer[0];
  }
}

// A matrix has one owner, which transforms it as a whole. Neither the number of ranks nor slices
// that cut matrices change a bit.
TEST_F(StepTest, MuonHasEqualBitsOnAnyMesh) {
  for (const char* per_head : {"false", "true"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(Concat("per_head ", per_head, ", ", precision));
      const std::vector<std::string> muon = {"optimizer.algorithm=muon",
                                             Concat("optimizer.algorithm.muon.per_head=", per_head),
                                             Concat("train.precision=", precision)};
      const auto with = [&](int64_t micro_batch, int stage) {
        std::vector<std::string> all = muon;
        all.push_back(Concat("train.micro_batch=", micro_batch));
        all.push_back(Concat("parallel.zero_stage=", stage));
        return all;
      };
      const Outcome one = Train(1, 5, with(2, 0));
      for (const int world : {1, 2, 4})
        for (const int stage : {0, 1}) ExpectSameBits(Train(world, 5, with(2, stage)), one);
      // Stage 2 keeps the bits of one micro-batch per rank.
      ExpectSameBits(Train(4, 5, with(2, 2)), one);
      ExpectSameBits(Train(2, 5, with(4, 2)), Train(2, 5, with(4, 0)));
    }
  }
}

TEST_F(StepTest, MuonHeadsAndOptionsMatter) {
  const Outcome adamw = Train(1, 3);
  const Outcome fused = Train(1, 3, {"optimizer.algorithm=muon"});
  const Outcome heads =
      Train(1, 3, {"optimizer.algorithm=muon", "optimizer.algorithm.muon.per_head=true"});
  EXPECT_EQ(fused.steps[0].loss, adamw.steps[0].loss);
  EXPECT_NE(fused.steps[2].loss, adamw.steps[2].loss);
  EXPECT_NE(heads.steps[2].loss, fused.steps[2].loss);
}

// Each rank updates its slices with the same sums. The boundaries of slices change no bit.
TEST_F(StepTest, SharesOfTheOptimizerChangeNoBit) {
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const auto& [world, sp] : {std::pair{2, 1}, std::pair{4, 1}, std::pair{4, 2}}) {
      std::vector<std::string> settings = {"train.precision=" + precision,
                                           Concat("parallel.sp=", sp), "parallel.zero_stage=0"};
      const Outcome whole = Train(world, 6, settings);
      settings.back() = "parallel.zero_stage=1";
      ExpectSameBits(Train(world, 6, settings), whole);
    }
  }
}

// With one micro-batch per rank, the sums are the same. With several, ranks are summed before
// micro-batches.
TEST_F(StepTest, SharesOfGradientsChangeNoBitOfOneMicroBatch) {
  const std::vector<std::string> whole = {"train.precision=bf16"},
                                 shares = {"train.precision=bf16", "parallel.zero_stage=2"};
  ExpectSameBits(Train(4, 6, shares), Train(4, 6, whole));
  const Outcome other = Train(2, 6, shares), want = Train(2, 6, whole);
  for (int step = 0; step < 6; ++step) {
    EXPECT_NEAR(other.steps[step].loss / want.steps[step].loss, 1, 1e-4) << step;
    EXPECT_NEAR(other.steps[step].grad_norm / want.steps[step].grad_norm, 1, 1e-3) << step;
  }
}

// Frozen parameters have no gradients, states and messages, which changes no bit of the others.
TEST_F(StepTest, FrozenParametersHaveOnlyWeights) {
  const auto bytes_of = [](const StepResult& step) {
    int64_t bytes = 0;
    for (const auto& [group, count] : step.comm_bytes) bytes += group == "control" ? 0 : count;
    return bytes;
  };
  struct Case {
    int world, stage;
    std::vector<std::string> more;
  };
  const std::vector<Case> cases = {{1, 0, {}},
                                   {2, 0, {"train.recompute=block"}},
                                   {2, 1, {"optimizer.ema_decay=0.9"}},
                                   {4, 1, {"parallel.shard=2", "parallel.grad_reduce=bf16"}},
                                   {2, 2, {"optimizer.algorithm=muon"}},
                                   {4, 2, {"parallel.shard=2"}},
                                   {4, 3, {"model.head.tied=true"}},
                                   {4, 3, {"parallel.shard=2", "train.precision=bf16"}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(Concat(c.world, " ranks, stage ", c.stage, " ", Join(c.more, " ")));
    std::vector<std::string> overrides = {
        Concat("parallel.zero_stage=", c.stage),
        "optimizer.group=[{ match: \"embeddings|layers.1|norm\" frozen: true }, "
        "{ match: \"o_proj\" lr_scale: 0 }]"};
    overrides.insert(overrides.end(), c.more.begin(), c.more.end());
    keeps_frozen_gradients = true;
    const Outcome want = Train(c.world, 3, overrides);
    keeps_frozen_gradients = false;
    const Outcome got = Train(c.world, 3, overrides);
    ExpectSameBits(got, want);
    EXPECT_LT(got.gradient_bytes, 0.6 * want.gradient_bytes);
    EXPECT_LT(got.optimizer_bytes, want.optimizer_bytes);
    const int64_t sent = bytes_of(got.steps[2]), most = bytes_of(want.steps[2]);
    EXPECT_TRUE(c.world == 1 || sent < most) << sent << " of " << most;
  }
}

// Rows in four slices: on one, two and four groups of ranks, with four, two and one micro-batches.
TEST_F(StepTest, EqualSlicesGiveEqualBitsOnAnyMesh) {
  const auto train = [](int row_groups, int stage) {
    return Train(4 * row_groups, 6, {"parallel.slices=4", Concat("parallel.zero_stage=", stage)});
  };
  const Outcome want = train(1, 0);
  for (const int row_groups : {1, 2, 4})
    for (const int stage : {0, 1, 2}) {
      SCOPED_TRACE(Concat(row_groups, " groups at stage ", stage));
      ExpectSameBits(train(row_groups, stage), want);
    }
}

// A mesh with the settings of ZeRO that it is trained with.
struct ZeroCase {
  int world, stage, shard;
  std::vector<std::string> settings = {};

  std::vector<std::string> All(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {Concat("parallel.zero_stage=", stage)};
    if (shard > 0) all.push_back(Concat("parallel.shard=", shard));
    all.insert(all.end(), settings.begin(), settings.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string name() const { return Concat(world, " ranks, stage ", stage, ", shard ", shard); }
};

// Each row is rounded by itself, so no bit depends on ranks, stages or recomputation. Stage 3 makes
// the FP8 copies of weights at each use, the others once an update.
TEST_F(StepTest, Float8HasTheSameBitsOnEveryMesh) {
  const std::vector<std::string> float8 = {"train.precision=fp8", "train.fp8.min_width=16"};
  const Outcome want = Train(4, 5, float8);
  EXPECT_NE(want.main, Train(4, 5, {"train.precision=bf16"}).main);
  for (const ZeroCase& mesh : {ZeroCase{1, 0, 0}, ZeroCase{2, 1, 2}, ZeroCase{4, 2, 1},
                               ZeroCase{4, 3, 4}, ZeroCase{4, 3, 2, {"train.recompute=block"}}}) {
    SCOPED_TRACE(mesh.name());
    ExpectSameBits(Train(mesh.world, 5, mesh.All(float8)), want);
  }
  // On three ranks, padding separates projections that are adjacent on one.
  const std::vector<std::string> sixths = {"train.precision=fp8", "train.fp8.min_width=16",
                                           "train.global_batch=6"};
  const Outcome one = Train(1, 5, sixths);
  for (const int stage : {0, 1, 2, 3})
    ExpectSameBits(Train(3, 5, ZeroCase{3, stage, 0}.All(sixths)), one);
}

// Shard groups of 2^k ranks are subtrees of the sum. Stages 2 and 3 sum micro-batches after shard
// groups, so only one micro-batch per rank has equal bits.
TEST_F(StepTest, ShardGroupsChangeNoBit) {
  for (const std::string precision : {"train.precision=fp32", "train.precision=bf16"}) {
    const Outcome want = Train(4, 5, {precision});
    for (const ZeroCase& mesh :
         {ZeroCase{4, 1, 4}, ZeroCase{4, 1, 2}, ZeroCase{4, 1, 1}, ZeroCase{4, 2, 2},
          ZeroCase{4, 2, 1}, ZeroCase{4, 3, 4}, ZeroCase{4, 3, 2}, ZeroCase{4, 3, 1}}) {
      SCOPED_TRACE(mesh.name() + " " + precision);
      ExpectSameBits(Train(mesh.world, 5, mesh.All({precision})), want);
    }
  }
}

// With several micro-batches per rank, stage 3 computes as stage 2 at the same shard, and stage 1
// as stage 0.
TEST_F(StepTest, StagesAgreeWithSeveralMicroBatches) {
  const std::vector<std::string> small = {"train.micro_batch=1"};
  const Outcome whole = Train(4, 3, small);
  ExpectSameBits(Train(4, 3, ZeroCase{4, 1, 2}.All(small)), whole);
  for (const int shard : {1, 2, 4}) {
    SCOPED_TRACE(shard);
    const Outcome second = Train(4, 3, ZeroCase{4, 2, shard}.All(small));
    ExpectSameBits(Train(4, 3, ZeroCase{4, 3, shard}.All(small)), second);
    for (int step = 0; step < 3; ++step)
      EXPECT_NEAR(second.steps[step].loss / whole.steps[step].loss, 1, 1e-5) << step;
  }
}

// With equal slices of rows, every stage and every division has equal bits.
TEST_F(StepTest, EqualSlicesGiveEqualBitsInAnyShardGroups) {
  const Outcome want = Train(4, 4, {"parallel.slices=2"});
  for (const ZeroCase& mesh :
       {ZeroCase{2, 3, 0}, ZeroCase{4, 1, 2}, ZeroCase{4, 2, 2}, ZeroCase{4, 3, 2},
        ZeroCase{4, 3, 4}, ZeroCase{8, 3, 4}, ZeroCase{8, 2, 2}}) {
    SCOPED_TRACE(mesh.name());
    ExpectSameBits(Train(mesh.world, 4, mesh.All({"parallel.slices=2"})), want);
  }
}

// Rows over several ranks, without equal slices: sums add the slices of a row first.
TEST_F(StepTest, ShardGroupsOfSharedRowsAgreeToRounding) {
  const Outcome want = Train(4, 5, {"parallel.sp=2"});
  for (const ZeroCase& mesh : {ZeroCase{4, 1, 2}, ZeroCase{4, 2, 2}, ZeroCase{4, 3, 2},
                               ZeroCase{4, 3, 4}, ZeroCase{6, 3, 2, {"train.global_batch=12"}}}) {
    SCOPED_TRACE(mesh.name());
    const Outcome got = Train(mesh.world, 5, mesh.All({"parallel.sp=2"}));
    const Outcome& same = mesh.world == 4 ? want : Train(6, 5, {"parallel.sp=2", mesh.settings[0]});
    for (int step = 0; step < 5; ++step)
      EXPECT_NEAR(got.steps[step].loss / same.steps[step].loss, 1, step == 0 ? 1e-6 : 1e-5);
  }
}

// Units are gathered ahead or not, and recomputed, tied or shared weights are read at the right
// time. Released slots hold NaN.
TEST_F(StepTest, UnitsAreReadWhileTheyAreThere) {
  ASSERT_EQ(setenv("HALFLIFE_POISON_UNITS", "1", 1), 0);
  const std::vector<std::vector<std::string>> models = {
      {"model.num_layers=5"},
      {"model.num_layers=5", "train.recompute=block"},
      {"model.num_layers=5", "train.recompute=mixer", "train.precision=bf16"},
      {"model.head.tied=true"},
      T5Settings(),
      {"model.num_layers=4", "model.mixer=hgrn2", "model.mixer.hgrn2.num_heads=2"},
      {"model.mixer=gla", "model.mixer.gla.num_heads=2", "model.num_layers=3"},
  };
  for (const std::vector<std::string>& model : models) {
    SCOPED_TRACE(Join(model, " "));
    const Outcome want = Train(2, 3, ZeroCase{2, 2, 0}.All(model));
    for (const int prefetch : {0, 1, 2, 8})
      for (const int shard : {1, 2}) {
        std::vector<std::string> settings = ZeroCase{2, 3, shard}.All(model);
        settings.push_back(Concat("parallel.prefetch=", prefetch));
        const Outcome same = shard == 2 ? Outcome() : Train(2, 3, ZeroCase{2, 2, shard}.All(model));
        SCOPED_TRACE(Concat("prefetch ", prefetch, " shard ", shard));
        ExpectSameBits(Train(2, 3, settings), shard == 2 ? want : same);
      }
  }
  unsetenv("HALFLIFE_POISON_UNITS");
}

// Each rank's share of a gradient and the sum are rounded to bf16. These are independent errors of
// 2^-9, which add up to a few thousandths of the norm. One rank sends nothing.
TEST_F(StepTest, GradientsThatTravelInBf16) {
  const auto in_bf16 = [](int world, int stage) {
    return Train(world, 6, {"parallel.grad_reduce=bf16", Concat("parallel.zero_stage=", stage)});
  };
  ExpectSameBits(in_bf16(1, 0), Train(1, 6));
  const Outcome fp32 = Train(4, 6), whole = in_bf16(4, 0);
  for (const int stage : {1, 2}) ExpectSameBits(in_bf16(4, stage), whole);

  EXPECT_EQ(whole.steps[0].loss, fp32.steps[0].loss) << "before an update";
  EXPECT_NE(whole.steps[0].grad_norm, fp32.steps[0].grad_norm);
  for (int step = 0; step < 6; ++step) {
    EXPECT_NEAR(whole.steps[step].loss / fp32.steps[step].loss, 1, 1e-3) << step;
    EXPECT_NEAR(whole.steps[step].grad_norm / fp32.steps[step].grad_norm, 1, 1e-2) << step;
  }
  const auto bytes = [](const Outcome& outcome) {
    double sum = 0;
    for (const auto& [group, sent] : outcome.steps[5].comm_bytes) sum += sent;
    return sum;
  };
  EXPECT_NEAR(bytes(whole) / bytes(fp32), 0.5, 0.02) << "a step's scalars are fp64";
}

// Main weights, m and v take 12 bytes per parameter without sharding. With it, m and v and weights
// that have a compute copy cost a rank only its share. Gradients take 4 bytes. Buckets are padded.
TEST_F(StepTest, SharesTakeTheirShareOfMemory) {
  const auto train = [](const std::string& precision, int stage) {
    return Train(4, 0, {"train.precision=" + precision, Concat("parallel.zero_stage=", stage)});
  };
  const Outcome fp32 = train("fp32", 0), bf16 = train("bf16", 0);
  const auto ratio = [](size_t a, size_t b) { return static_cast<double>(a) / b; };
  EXPECT_NEAR(ratio(train("fp32", 1).optimizer_bytes, fp32.optimizer_bytes), (4 + 8.0 / 4) / 12,
              0.001);
  EXPECT_NEAR(ratio(train("bf16", 1).optimizer_bytes, bf16.optimizer_bytes), 1.0 / 4,
              0.01);  // Norms are fp32 and not sharded.
  EXPECT_EQ(train("fp32", 1).gradient_bytes, fp32.gradient_bytes);
  EXPECT_NEAR(ratio(train("fp32", 2).gradient_bytes, fp32.gradient_bytes), 1.0 / 4, 0.001);
}

TEST_F(StepTest, MicroBatchSizeIsFree) {
  const Outcome small = Train(1, 5, {"train.micro_batch=1"}),
                large = Train(1, 5, {"train.micro_batch=8"});
  for (int step = 0; step < 5; ++step) {
    EXPECT_NEAR(small.steps[step].loss / large.steps[step].loss, 1, 1e-5);
    EXPECT_EQ(small.steps[step].num_targets, large.steps[step].num_targets);
  }
}

// For two micro-batches, the sum in order equals the pairwise sum. In text, some of
// the eight micro-batches have a document that starts within a row. All are replayed except the
// first of each kind. With two ranks, the last micro-batch is never replayed.
TEST_F(StepTest, GraphsOfMicroBatchesChangeNoBit) {
  struct Case {
    int world;
    std::vector<std::string> settings;
    int64_t num_replays;
  };
  const std::vector<std::string> mqar = {"data.path=mqar", "data.seq_len=16",
                                         "model.objective=labelled", "train.micro_batch=4"};
  const auto with = [&](const auto&... more) {
    std::vector<std::string> all = mqar;
    (all.emplace_back(more), ...);
    return all;
  };
  for (const Case& one :
       {Case{1, mqar, 7}, Case{1, with("train.precision=bf16"), 7},
        Case{1, with("train.recompute=block"), 7}, Case{1, {"train.micro_batch=4"}, 6},
        Case{1, {"train.micro_batch=4", "model.mixer=gated_delta_net"}, 6},
        Case{1, with("data.positions=randomised", "data.positions_length=500"), 7},
        Case{1, {"train.precision=fp8", "train.fp8.min_width=16", "train.micro_batch=4"}, 6},
        Case{2, with("train.micro_batch=2"), 3}, Case{2, with("parallel.zero_stage=1"), 3}}) {
    std::vector<std::string> settings = one.settings;
    if (one.world == 2) settings.emplace_back("train.micro_batch=2");
    SCOPED_TRACE(testing::Message() << one.world << " ranks, " << settings.back());
    const Outcome launched = Train(one.world, 4, settings);
    settings.emplace_back("train.cuda_graphs=true");
    const Outcome replayed = Train(one.world, 4, settings);
    ExpectSameBits(replayed, launched);
    EXPECT_FALSE(launched.steps[0].num_replays.has_value());
    EXPECT_EQ(replayed.num_replays, one.num_replays);
    int64_t sum = 0;
    for (const StepResult& step : replayed.steps) sum += step.num_replays.value();
    EXPECT_EQ(sum, one.num_replays);
  }
}

// Property 21 of D2D: if all rows have the same number of targets, 8 micro-batches of 4 rows have
// the gradient of one batch of 32, and two ranks have that of one. The test also covers
// accumulation, buckets that are summed during backward, shares of gradients, and rows on several
// ranks.
TEST_F(StepTest, RecomputationChangesNoBit) {
  const std::vector<std::vector<std::string>> meshes = {
      {}, {"parallel.zero_stage=2"}, {"parallel.sp=2", "train.precision=bf16"}};
  for (std::vector<std::string> overrides : meshes) {
    overrides.emplace_back("model.num_layers=8");
    const Outcome kept = Train(2, 3, overrides);
    for (const char* way : {"mixer", "block"}) {
      overrides.emplace_back(Concat("train.recompute=", way));
      SCOPED_TRACE(overrides.front() + " " + way);
      const Outcome again = Train(2, 3, overrides);
      ExpectSameBits(again, kept);
      EXPECT_LT(again.step_bytes, kept.step_bytes);
    }
  }
}

TEST_F(StepTest, D2dsGradientIsThatOfTheWholeBatch) {
  std::vector<std::string> settings = {"data.path=mqar",        "data.seq_len=16",
                                       "train.global_batch=32", "model.objective=labelled",
                                       "model.mixer=d2d",       "model.mixer.d2d.num_heads=2",
                                       "train.micro_batch=4"};
  const Outcome parts = Train(1, 1, settings), ranks = Train(2, 1, settings);
  settings.back() = "train.micro_batch=32";
  const Outcome whole = Train(1, 1, settings);
  ASSERT_EQ(parts.adam_m.size(), whole.adam_m.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < whole.adam_m.size(); ++i) {
    largest = std::max(largest, std::abs(double{whole.adam_m[i]}));
    const double error = std::abs(double{parts.adam_m[i]} - whole.adam_m[i]);
    ASSERT_FALSE(std::isnan(error)) << i;
    worst = std::max(worst, error);
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(worst, 1e-5 * largest);
  EXPECT_EQ(ranks.main, parts.main);
  EXPECT_EQ(ranks.steps[0].loss, parts.steps[0].loss);
}

// Property 23 of D2D: 200 updates in bf16 on rows of 512 tokens reduce the loss. No update is
// skipped, and decays and all other values stay finite.
TEST_F(StepTest, D2dLearnsInBf16) {
  for (const char* map : {"elu", "exp"}) {
    SCOPED_TRACE(map);
    const Outcome outcome =
        Train(1, 200,
              {"model.mixer=d2d", "model.mixer.d2d.num_heads=2",
               Concat("model.mixer.d2d.feature_map=", map), "model.dropout=0", "data.seq_len=512",
               "train.precision=bf16", "train.global_batch=2"});
    const auto mean_loss = [&](size_t first) {
      double sum = 0;
      for (size_t step = first; step < first + 20; ++step) sum += outcome.steps[step].loss;
      return sum / 20;
    };
    EXPECT_LT(mean_loss(180), mean_loss(0) - 1);
    for (const StepResult& step : outcome.steps) {
      EXPECT_TRUE(std::isfinite(step.loss) && std::isfinite(step.grad_norm));
      EXPECT_FALSE(step.skipped);
    }
    for (const float weight : outcome.main) ASSERT_TRUE(std::isfinite(weight));
  }
}

// 20 labelled rows in steps of 8: the third step has 4 rows. With two ranks, one of them has none.
TEST_F(StepTest, AShortStepIsTheMeanOverItsRowsHoweverItIsCut) {
  std::vector<std::string> settings = {"data.path=mqar", "data.seq_len=16", "data.epoch_end=short",
                                       "model.objective=labelled", "train.micro_batch=4"};
  const Outcome one = Train(1, 6, settings), two = Train(2, 6, settings);
  EXPECT_EQ(one.main, two.main) << "equal micro-batches on 1 and 2 ranks";
  settings.back() = "train.micro_batch=1";
  const Outcome small = Train(1, 6, settings);
  settings.back() = "train.micro_batch=8";
  const Outcome large = Train(1, 6, settings);
  for (int step = 0; step < 6; ++step) {
    EXPECT_EQ(large.steps[step].num_targets, step % 3 == 2 ? 4 * 4 : 8 * 4) << step;
    EXPECT_EQ(small.steps[step].num_targets, large.steps[step].num_targets);
    // The bound of MicroBatchSizeIsFree: about 2^-24 in the first step, amplified by later updates.
    EXPECT_NEAR(small.steps[step].loss / large.steps[step].loss, 1, 1e-5) << step;
    EXPECT_NEAR(small.steps[step].grad_norm / large.steps[step].grad_norm, 1, 1e-4) << step;
    EXPECT_NEAR(one.steps[step].loss / large.steps[step].loss, 1, 1e-5) << step;
  }
}

TEST_F(StepTest, AdversarialSchedulesGiveTheSameBits) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{},
                                                    {"parallel.sp=2", "parallel.exchange=scan"},
                                                    {"parallel.sp=2", "parallel.exchange=auto"},
                                                    {"parallel.zero_stage=2"}}) {
    const Outcome plain = Train(2, 3, overrides);
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      const Outcome delayed =
          Train(2, 3, overrides, {.schedule = dist::LocalSchedule{.seed = seed}});
      EXPECT_EQ(plain.main, delayed.main) << "schedule seed " << seed;
    }
  }
}

TEST_F(StepTest, BucketSizeDoesNotChangeTheBits) {
  const Outcome small = Train(2, 3);
  const Outcome large =
      Train(2, 3, {"parallel.first_bucket_bytes=1000000", "parallel.bucket_bytes=1000000"});
  EXPECT_EQ(small.main, large.main);
}

TEST_F(StepTest, NonFiniteGradientSkipsTheUpdateOnEveryRank) {
  dist::LocalOptions options;
  options.faults = {
      {.kind = dist::LocalFault::Kind::kNan, .rank = 1, .what = "grad_bucket", .nth = 1}};
  const Outcome poisoned = Train(2, 1, {}, options);
  EXPECT_TRUE(poisoned.steps[0].skipped);
  EXPECT_EQ(poisoned.steps[0].nonfinite, "the gradient");
  EXPECT_TRUE(std::isnan(poisoned.steps[0].grad_norm)) << "0 would read as a gradient of nothing";
  EXPECT_EQ(poisoned.steps[0].clip_factor, 1);
  EXPECT_EQ(poisoned.main, Train(2, 0).main);  // Nothing was updated.
}

// Initial logits are small: ln Z is ln 259 for all tokens, and so is the loss. A step without
// targets occurs with documents of one token, with unlabelled rows, or if masking chooses no
// token.
TEST_F(StepTest, AStepWithoutATargetSkipsTheUpdateOnEveryRank) {
  const std::vector<std::string> hides = {"model.objective=masked_token",
                                          "model.objective.masked_token.rate=1e-12"};
  for (const int world : {1, 2}) {
    for (const int stage : {0, 1, 2}) {
      SCOPED_TRACE(Concat(world, " ranks, stage ", stage));
      std::vector<std::string> set = hides;
      set.push_back(Concat("parallel.zero_stage=", world == 1 ? 0 : stage));
      const Outcome outcome = Train(world, 2, set);
      for (const StepResult& step : outcome.steps) {
        EXPECT_TRUE(step.skipped);
        EXPECT_EQ(step.num_targets, 0);
        EXPECT_EQ(step.nonfinite, "") << "which is another matter";
        EXPECT_TRUE(std::isnan(step.loss));
        EXPECT_TRUE(std::isnan(step.grad_norm));
        EXPECT_EQ(step.clip_factor, 1);
      }
    }
  }
}

TEST_F(StepTest, LossAndZLossAreTheirOwnMeans) {
  const double log_vocab = std::log(259.0);
  for (const char* micro_batch : {"train.micro_batch=1", "train.micro_batch=8"}) {
    const StepResult first = Train(1, 1, {micro_batch}).steps[0];
    EXPECT_NEAR(first.loss, log_vocab, 0.2);
    EXPECT_NEAR(first.z_loss, log_vocab * log_vocab, 2.0);
  }
}

TEST_F(StepTest, RanksAtDifferentStepsAreFound) {
  EXPECT_HL_ERROR(LocalWorld::Run(2,
                                  [](dist::Communicator& comm) {
                                    StepScalars scalars;
                                    scalars[Scalar::kStep] = 5 + comm.rank();
                                    scalars.Reduce(comm);
                                  }),
                  ExitCode::kInternal, "come apart", "step is");
}

}  // namespace
}  // namespace halflife::train
