// Whole runs with Muon, parameter groups and an average of the weights: what checkpoints contain,
// and how runs resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ckpt/weight_source.h"
#include "support/expect_error.h"
#include "train/loop/training_runs.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

constexpr char kRecipe[] = R"(
data { seq_len: 32 prefetch: 0 }
model { model_dim: 16 num_layers: 1 channel_mixer { swiglu { width: 32 } }
        mixer { retention { num_heads: 2 } } }
optimizer { lr: 1e-2 }
schedule { kind: "constant" }
train { steps: 6 global_batch: 8 micro_batch: 2 device: "cpu" }
eval { windows: 1 }
ckpt { every: 1 keep_last: 99 }
parallel { first_bucket_bytes: 4096 bucket_bytes: 8192 }
log { tensorboard: false }
)";

using Arrays = std::map<std::string, std::vector<float>>;  // "main/norm.weight"

class OptimizerRunTest : public TrainingRuns {
 protected:
  OptimizerRunTest() : TrainingRuns(kRecipe) {}

  ExitCode Train(int ranks, const std::vector<std::string>& set,
                 const std::string& resume = "auto") {
    return TrainingRuns::Train({.ranks = ranks, .set = set, .resume = resume});
  }
  Arrays ArraysOf(uint64_t step) const {
    const ckpt::StepReader reader = Open(step);
    Arrays arrays;
    for (const ckpt::TensorInfo& tensor : reader.tensors()) {
      for (const std::string& array : tensor.arrays) {
        std::vector<float>& values = arrays[Concat(array, "/", tensor.name)];
        values.resize(static_cast<size_t>(tensor.count()));
        reader.ReadTensor(array, tensor.name, values.data());
      }
    }
    return arrays;
  }
};

struct Mesh {
  int ranks, stage;
};

std::vector<std::string> On(const Mesh& mesh, std::vector<std::string> set) {
  set.push_back(Concat("parallel.zero_stage=", mesh.stage));
  return set;
}

TEST_F(OptimizerRunTest, MuonLearnsAndResumesOnAnyMesh) {
  const std::vector<std::string> muon = {"optimizer.algorithm=muon", "optimizer.ema_decay=0.9"};
  const std::vector<Mesh> meshes = {{1, 0}, {2, 0}, {2, 1}, {4, 1}, {4, 2}};
  ASSERT_EQ(Train(1, muon), ExitCode::kFinished);
  const Arrays whole = ArraysOf(6);
  EXPECT_LT(Open(6).state().metrics.at("loss"), Open(1).state().metrics.at("loss") - 0.1);
  EXPECT_EQ(Open(6).state().optimizer, "muon");
  EXPECT_THAT(Open(6).manifest().array_names(),
              ElementsAre("main", "optim/momentum", "optim/v", "optim/ema"));
  Mesh last = {1, 0};
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(Concat("from ", last.ranks, " ranks, stage ", last.stage, " to ", mesh.ranks,
                        " ranks, stage ", mesh.stage));
    ASSERT_EQ(Train(mesh.ranks, On(mesh, muon), "step=3"), ExitCode::kFinished);
    EXPECT_EQ(ArraysOf(6), whole);
    last = mesh;
  }
}

// FP8 has no state of its own: a checkpoint has the arrays of any other run.
TEST_F(OptimizerRunTest, Float8ResumesInBitsOnAnyMesh) {
  const std::vector<std::string> float8 = {"train.precision=fp8", "train.fp8.min_width=16"};
  ASSERT_EQ(Train(1, float8), ExitCode::kFinished);
  const Arrays whole = ArraysOf(6);
  EXPECT_LT(Open(6).state().metrics.at("loss"), Open(1).state().metrics.at("loss") - 0.1);
  EXPECT_THAT(Open(6).manifest().array_names(), ElementsAre("main", "optim/m", "optim/v"));
  for (const Mesh& mesh : {Mesh{1, 0}, Mesh{2, 1}, Mesh{4, 3}}) {
    SCOPED_TRACE(Concat(mesh.ranks, " ranks, stage ", mesh.stage));
    ASSERT_EQ(Train(mesh.ranks, On(mesh, float8), "step=3"), ExitCode::kFinished);
    EXPECT_EQ(ArraysOf(6), whole);
  }
}

TEST_F(OptimizerRunTest, MuonIsNotContinuedByAnotherOptimizer) {
  const std::vector<std::string> adamw = {"train.steps=2"};
  ASSERT_EQ(Train(1, adamw), ExitCode::kFinished);
  EXPECT_HL_ERROR(Train(1, {"train.steps=4", "optimizer.algorithm=muon"}), ExitCode::kUsage,
                  "optimizer.algorithm: checkpoint adamw, this run muon",
                  "optimizer.algorithm.muon.per_head: checkpoint (absent), this run false",
                  "optimizer state: checkpoint optim/m, optim/v, this run optim/momentum, optim/v",
                  "Resume with the checkpoint's optimizer, or start another run");
}

// After each update t: average = d average + (1 - d) w, with d = min(ema_decay, (1 + t) / (10 +
// t)).
TEST_F(OptimizerRunTest, TheAverageFollowsItsFormula) {
  const double most = 0.35;
  ASSERT_EQ(Train(2, {"parallel.zero_stage=1", "optimizer.ema_decay=0.35"}), ExitCode::kFinished);
  Arrays before = ArraysOf(1);
  for (uint64_t step = 2; step <= 6; ++step) {
    const Arrays after = ArraysOf(step);
    const auto t = static_cast<double>(step);
    const double decay = std::min(most, (1 + t) / (10 + t));
    for (const auto& [name, average] : before) {
      if (!name.starts_with("optim/ema/")) continue;
      const std::vector<float>& got = after.at(name);
      const std::vector<float>& main = after.at("main" + name.substr(9));
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], decay * average[i] + (1 - decay) * main[i],
                    4 * 0x1p-24 * (1 + std::abs(got[i])))
            << name << " " << i << " step " << step;
    }
    before = after;
  }
}

// The arena has no average of frozen parameters, so saves continue the one of the checkpoint.
TEST_F(OptimizerRunTest, TheAverageOfAParameterThatIsFrozenOnAResumeDoesNotJump) {
  const std::vector<std::string> set = {"optimizer.ema_decay=0.9"};
  ASSERT_EQ(Train(1, set), ExitCode::kFinished);
  const Arrays start = ArraysOf(3);
  const std::vector<float>& weights = start.at("main/embeddings.weight");
  std::vector<float> expected = start.at("optim/ema/embeddings.weight");
  std::vector<std::string> freezes = set;
  freezes.emplace_back("optimizer.group=[{ match: \"embeddings\" frozen: true }]");
  const auto freeze_at = [&](const Mesh& mesh, int save_every = 1) {
    std::vector<std::string> on_mesh = On(mesh, freezes);
    on_mesh.push_back(Concat("ckpt.every=", save_every));
    return TrainingRuns::Train(
        {.ranks = mesh.ranks,
         .set = on_mesh,
         .resume = "step=3",
         .allow_change = {"optimizer.group.0.frozen", "optimizer.group.0.lr_scale",
                          "optimizer.group.0.match"}});
  };
  ASSERT_EQ(freeze_at({1, 0}), ExitCode::kFinished) << log_;
  double moved = 0;
  for (uint64_t step = 4; step <= 6; ++step) {
    const auto t = static_cast<double>(step);
    const double decay = std::min(0.9, (1 + t) / (10 + t));
    const Arrays arrays = ArraysOf(step);
    const std::vector<float>& average = arrays.at("optim/ema/embeddings.weight");
    EXPECT_EQ(arrays.at("main/embeddings.weight"), weights);
    for (size_t i = 0; i < expected.size(); ++i) {
      moved = std::max<double>(moved, std::abs(expected[i] - weights[i]));
      expected[i] = static_cast<float>(decay * expected[i] + (1 - decay) * weights[i]);
      ASSERT_NEAR(average[i], expected[i], 8 * 0x1p-24 * (1 + std::abs(expected[i])))
          << i << " step " << step;
    }
  }
  EXPECT_GT(moved, 1e-4) << "the average was not the weights";
  const Arrays last = ArraysOf(6);
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{4, 3}}) {
    SCOPED_TRACE(Concat(mesh.ranks, " ranks, stage ", mesh.stage));
    ASSERT_EQ(freeze_at(mesh), ExitCode::kFinished) << log_;
    EXPECT_EQ(ArraysOf(6), last);
  }
  ASSERT_EQ(Train(1, freezes, "step=5"), ExitCode::kFinished) << log_;
  EXPECT_EQ(ArraysOf(6), last);
  for (const int save_every : {0, 2}) {  // 0: only after the last step
    ASSERT_EQ(freeze_at({1, 0}, save_every), ExitCode::kFinished) << log_;
    EXPECT_EQ(ArraysOf(6), last) << "saved every " << save_every << " steps";
  }
}

TEST_F(OptimizerRunTest, TheAverageIsLoadedByName) {
  ASSERT_EQ(Train(1, {"train.steps=2", "optimizer.ema_decay=0.9"}), ExitCode::kFinished);
  const ckpt::StepWeights main(Open(2)), average(Open(2), ckpt::WeightsArray(Open(2), "ema"));
  const Arrays arrays = ArraysOf(2);
  for (const ckpt::WeightInfo& weight : main.weights()) {
    std::vector<float> values(static_cast<size_t>(weight.count()));
    average.ReadRange(weight.name, 0, weight.count(), values.data());
    EXPECT_EQ(values, arrays.at("optim/ema/" + weight.name));
    main.ReadRange(weight.name, 0, weight.count(), values.data());
    EXPECT_EQ(values, arrays.at("main/" + weight.name));
  }
  fs::remove_all(folder_);
  ASSERT_EQ(Train(1, {"train.steps=2"}), ExitCode::kFinished);
  EXPECT_EQ(ckpt::WeightsArray(Open(2), "main"), "main");
  EXPECT_HL_ERROR(ckpt::WeightsArray(Open(2), "ema"), ExitCode::kUsage,
                  "has no average of the weights. Use --weights main, or train with "
                  "optimizer.ema_decay.");
}

TEST_F(OptimizerRunTest, GroupsHaveTheirOwnRates) {
  constexpr char kGroups[] =
      "optimizer.group=[{ match: \"embeddings\" frozen: true }, { match: \"q_proj\" frozen: true "
      "}, "
      "{ match: \"down_proj\" lr_scale: 0 }, { match: \"norm\" weight_decay: 0.5 lr_scale: 0.5 }]";
  for (const char* algorithm : {"adamw", "muon"}) {
    SCOPED_TRACE(algorithm);
    const std::vector<std::string> groups = {kGroups, Concat("optimizer.algorithm=", algorithm),
                                             "optimizer.ema_decay=0.9"};
    fs::remove_all(folder_);
    ASSERT_EQ(Train(1, groups), ExitCode::kFinished);
    const Arrays first = ArraysOf(1), last = ArraysOf(6);
    for (const auto& [name, values] : first) {
      if (!name.starts_with("main/")) continue;
      const auto contains = [&](const char* part) { return name.find(part) != std::string::npos; };
      const bool stays = contains("embeddings") || contains("q_proj") || contains("down_proj");
      EXPECT_EQ(last.at(name) == values, stays) << name;
    }
    const auto state =
        ArraysOf(6).at(Concat("optim/", std::string(algorithm) == "muon" ? "momentum" : "m",
                              "/layers.0.attn.q_proj.weight"));
    EXPECT_EQ(*std::ranges::max_element(state), 0) << "a frozen parameter has no momentum";
    EXPECT_EQ(last.at("optim/ema/embeddings.weight"), last.at("main/embeddings.weight"));
    for (const Mesh& mesh : {Mesh{1, 0}, Mesh{2, 0}, Mesh{2, 1}, Mesh{4, 2}, Mesh{4, 3}}) {
      SCOPED_TRACE(Concat("resumed on ", mesh.ranks, " ranks, stage ", mesh.stage));
      ASSERT_EQ(Train(mesh.ranks, On(mesh, groups), "step=3"), ExitCode::kFinished);
      EXPECT_EQ(ArraysOf(6), last);
    }
    fs::remove_all(folder_);
    ASSERT_EQ(Train(2, On({2, 1}, groups)), ExitCode::kFinished);
    EXPECT_EQ(ArraysOf(6), last);
  }
  EXPECT_HL_ERROR(Train(1, {"train.steps=8"}), ExitCode::kUsage,
                  "optimizer.group.0.match: checkpoint embeddings, this run (absent)");
}

}  // namespace
}  // namespace halflife::train
