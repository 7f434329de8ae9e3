// Whole optimiser steps on rank threads: what must not depend on the world size, the accumulation
// or bad luck.
#include "train/step/step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>

#include "data/prepare.h"
#include "data/synthetic/prepare_mqar.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"
#include "support/local_rank_context.h"
#include "support/run_fixture.h"

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
    std::ofstream(dir->path() / "text.txt") << test::MakeText(30000, 2);
    data::Prepare({.inputs = {(dir->path() / "text.txt").string()},
                   .tokenizer = "bytes",
                   .out = dir->path() / "data",
                   .threads = 1});
    data::PrepareMqar(
        {.train = {{16, 4, 20}}, .vocab_size = 64, .out = dir->path() / "mqar", .threads = 1});
  }
  static void TearDownTestSuite() { delete dir; }

  struct Outcome {
    std::vector<StepResult> steps;
    std::vector<float> main;
    std::vector<float> adam_m;  // on one rank: after a first step a tenth of the clipped gradient
    std::vector<SampleRecord> samples;  // of the first step, all ranks
  };

  // Trains `steps` steps on `world` rank threads; the result is rank 0's.
  static Outcome Train(int world, int steps, const std::vector<std::string>& overrides = {},
                       const dist::LocalOptions& options = {}) {
    Outcome outcome;
    std::mutex mutex;
    const auto body = [&](dist::Communicator& comm) {
      at::set_num_threads(1);
      const RunConfig config = ParseRunConfig(kRecipe, "test", overrides);
      test::LocalRankContext context(comm);
      const data::Dataset dataset = data::Dataset::Open(dir->path() / config.data.path);
      model::LanguageModel model(config.model);
      ParameterArena arena(model.parameters(),
                           {.layout = {.first_bucket_bytes = config.parallel.first_bucket_bytes,
                                       .bucket_bytes = config.parallel.bucket_bytes,
                                       .num_slices = comm.size()}});
      arena.Initialise(config.train.seed);
      data::TokenSource source(dataset, data::Split::kTrain,
                               {.seq_len = config.data.seq_len,
                                .micro_batch = config.train.micro_batch,
                                .global_batch = config.train.global_batch,
                                .dp_rank = comm.rank(),
                                .dp_size = comm.size(),
                                .seed = config.train.seed,
                                .prefetch = 0,
                                .epoch_end = data::EpochEndOf(config.data.epoch_end)});
      StepRunner runner(config, model, arena, source, context, {});
      uint64_t num_updates = 0;
      for (int step = 0; step < steps; ++step) {
        StepResult result = runner.Run(step, num_updates, {});
        const std::lock_guard lock(mutex);
        if (step == 0) {
          outcome.samples.insert(outcome.samples.end(), result.samples.begin(),
                                 result.samples.end());
        }
        if (comm.rank() == 0) outcome.steps.push_back(std::move(result));
      }
      if (comm.rank() == 0) {
        // tensors one by one: the arena's padding depends on the number of slices
        for (int i = 0; i < model.parameters().size(); ++i) {
          const at::Tensor view = arena.View(arena.main(), i).contiguous();
          outcome.main.insert(outcome.main.end(), view.const_data_ptr<float>(),
                              view.const_data_ptr<float>() + view.numel());
        }
        if (world == 1) {
          const at::Tensor& m = arena.adam_m();
          outcome.adam_m.assign(m.const_data_ptr<float>(), m.const_data_ptr<float>() + m.numel());
        }
      }
    };
    LocalWorld::Run(world, body, options);
    std::sort(outcome.samples.begin(), outcome.samples.end(),
              [](const auto& a, const auto& b) { return a.sample < b.sample; });
    return outcome;
  }

  static test::TempDir* dir;
};
test::TempDir* StepTest::dir = nullptr;

// Powers of two of ranks sum the same terms by the same tree.
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

// Any other cut of the batch changes the order of the sums: about 2^-24 at the first step, grown by
// the updates after.
TEST_F(StepTest, AnyNumberOfRanksAndMicroBatchesAgreesToRounding) {
  const std::vector<std::string> batch = {"train.global_batch=12"};
  const Outcome one = Train(1, 10, batch), three = Train(3, 10, batch);
  for (int step = 0; step < 10; ++step) {
    EXPECT_NEAR(one.steps[step].loss / three.steps[step].loss, 1, step == 0 ? 1e-6 : 1e-5);
    EXPECT_NEAR(one.steps[step].grad_norm / three.steps[step].grad_norm, 1, 1e-4);
  }
}

TEST_F(StepTest, MicroBatchSizeIsFree) {
  const Outcome small = Train(1, 5, {"train.micro_batch=1"}),
                large = Train(1, 5, {"train.micro_batch=8"});
  for (int step = 0; step < 5; ++step) {
    EXPECT_NEAR(small.steps[step].loss / large.steps[step].loss, 1, 1e-5);
    EXPECT_EQ(small.steps[step].num_targets, large.steps[step].num_targets);
  }
}

// Number 21 of D2D's properties: where each row has as many targets, 8 micro-batches of 4 rows have
// the gradient of one of 32, and two ranks that of one.
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
    worst = std::max(worst, std::abs(double{parts.adam_m[i]} - whole.adam_m[i]));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(worst, 1e-5 * largest);
  EXPECT_EQ(ranks.main, parts.main);
  EXPECT_EQ(ranks.steps[0].loss, parts.steps[0].loss);
}

// Rows with labels of their own, 20 of them in steps of 8: the third has 4, and on one rank of two
// none.
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
    // As MicroBatchSizeIsFree: about 2^-24 at the first step, grown by the updates after.
    EXPECT_NEAR(small.steps[step].loss / large.steps[step].loss, 1, 1e-5) << step;
    EXPECT_NEAR(small.steps[step].grad_norm / large.steps[step].grad_norm, 1, 1e-4) << step;
    EXPECT_NEAR(one.steps[step].loss / large.steps[step].loss, 1, 1e-5) << step;
  }
}

TEST_F(StepTest, AdversarialSchedulesGiveTheSameBits) {
  const Outcome plain = Train(2, 3);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Outcome delayed = Train(2, 3, {}, {.schedule = dist::LocalSchedule{.seed = seed}});
    EXPECT_EQ(plain.main, delayed.main) << "schedule seed " << seed;
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
  EXPECT_EQ(poisoned.main, Train(2, 0).main);  // nothing was updated
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
