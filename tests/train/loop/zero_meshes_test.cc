// Whole training runs under every ZeRO stage and in every shard group: with equal slices of rows,
// losses, validations and resumed runs are equal in every bit.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "train/loop/training_runs.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;

constexpr char kRecipe[] = R"(
data { seq_len: 32 prefetch: 0 }
model { model_dim: 16 num_layers: 3 dropout: 0.1 channel_mixer { swiglu { width: 32 } }
        mixer { gla { num_heads: 2 } } }
optimizer { lr: 3e-3 }
train { steps: 50 global_batch: 8 micro_batch: 2 device: "cpu" log_every: 1 }
eval { windows: 7 every: 25 }
ckpt { background: false }
log { tensorboard: false }
parallel { slices: 2 first_bucket_bytes: 4096 bucket_bytes: 8192 }
)";

// Two ranks share each row.
struct Mesh {
  int ranks, stage, shard;
  std::string name() const { return Concat(ranks, "_stage", stage, "_shard", shard); }
  std::vector<std::string> Settings(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {Concat("parallel.zero_stage=", stage)};
    if (stage > 0) all.push_back(Concat("parallel.shard=", shard));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

const std::vector<Mesh> kSmallMeshes = {{2, 1, 2}, {2, 1, 1}, {2, 2, 2}, {2, 2, 1},
                                        {2, 3, 2}, {2, 3, 1}, {4, 0, 4}, {4, 1, 2},
                                        {4, 2, 4}, {4, 2, 2}, {4, 3, 4}, {4, 3, 2}};

class ZeroMeshes : public TrainingRuns {
 protected:
  ZeroMeshes() : TrainingRuns(kRecipe) {}

  ExitCode Train(const fs::path& folder, const Mesh& mesh, const std::vector<std::string>& more,
                 const std::string& resume = "auto",
                 const decltype(Run::sample_text)& sample_text = nullptr) {
    return TrainingRuns::Train({.ranks = mesh.ranks,
                                .set = mesh.Settings(more),
                                .resume = resume,
                                .folder = folder,
                                .sample_text = sample_text});
  }

  // Returns the losses and validation losses of the last attempt, by step.
  static std::map<std::pair<int, std::string>, double> Losses(const fs::path& folder) {
    std::map<std::pair<int, std::string>, double> losses;
    std::ifstream file(folder / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      for (const char* name : {"loss", "grad_norm", "val_loss"})
        if (json.contains(name)) losses[{json["step"], name}] = json[name];
    }
    return losses;
  }

  // Trains 50 steps on each mesh, and compares them with those of stage 0 on one row group.
  void ExpectEqualLosses(const std::vector<std::string>& model, const std::vector<Mesh>& meshes) {
    const fs::path one = dir_ / "one";
    ASSERT_EQ(Train(one, {2, 0, 2}, model), ExitCode::kFinished);
    const auto want = Losses(one);
    ASSERT_EQ(want.size(), 2u * 50 + 3);
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(mesh.name());
      ASSERT_EQ(Train(dir_ / mesh.name(), mesh, model), ExitCode::kFinished);
      EXPECT_EQ(Losses(dir_ / mesh.name()), want);
    }
  }
};

TEST_F(ZeroMeshes, EveryMeshHasTheLossesOfOneRowGroup) {
  ExpectEqualLosses({}, {{2, 1, 2},
                         {2, 1, 1},
                         {2, 2, 2},
                         {2, 2, 1},
                         {2, 3, 2},
                         {2, 3, 1},
                         {4, 0, 4},
                         {4, 1, 2},
                         {4, 2, 4},
                         {4, 2, 2},
                         {4, 3, 4},
                         {4, 3, 2},
                         {4, 3, 1},
                         {8, 2, 4},
                         {8, 3, 4},
                         {8, 3, 2}});
}

TEST_F(ZeroMeshes, EveryMeshHasTheLossesOfRebased) {
  ExpectEqualLosses({"model.mixer=rebased", "model.mixer.rebased.num_heads=2"}, kSmallMeshes);
}

TEST_F(ZeroMeshes, EveryMeshHasTheLossesOfAHybridInBf16) {
  ExpectEqualLosses({"model.hybrid=[{ layers: 1 mixer { softmax { num_heads: 2 window: 20 } } }]",
                     "train.recompute=block", "train.precision=bf16"},
                    kSmallMeshes);
}

TEST_F(ZeroMeshes, EveryMeshHasTheLossesOfFloat8) {
  ExpectEqualLosses({"train.precision=fp8", "train.fp8.min_width=16", "train.recompute=mixer"},
                    {{2, 1, 2}, {2, 3, 1}, {4, 0, 4}, {4, 2, 2}, {4, 3, 2}});
}

// Whole matrices are brought together from the slices of any mesh.
TEST_F(ZeroMeshes, EveryMeshHasTheLossesOfMuon) {
  ExpectEqualLosses({"optimizer.algorithm=muon", "optimizer.ema_decay=0.9"}, kSmallMeshes);
}

// A sample of text reads every layer. With stage 3, all ranks generate it.
TEST_F(ZeroMeshes, SampleTextsGatherTheLayers) {
  for (const Mesh& mesh : {Mesh{2, 0, 2}, Mesh{2, 3, 2}, Mesh{2, 3, 1}}) {
    SCOPED_TRACE(mesh.name());
    std::mutex mutex;
    std::vector<at::Tensor> logits;
    const auto sample = [&](const model::LanguageModel& model) {
      model::ModelState state = model.EmptyState(1);
      at::Tensor last;
      for (const int64_t token : {5, 6, 7})
        last = model.Step(at::full({1}, token, at::kLong), state);
      const std::lock_guard lock(mutex);
      logits.push_back(last);
      return std::string("text");
    };
    ASSERT_EQ(Train(dir_ / mesh.name(), mesh,
                    {"train.steps=2", "eval.every=1", "log.tensorboard=true"}, "auto", sample),
              ExitCode::kFinished);
    ASSERT_EQ(logits.size(), mesh.stage == 3 ? 6u : 3u) << "three validations";
    EXPECT_TRUE(logits[0].isfinite().all().item<bool>());
    EXPECT_TRUE(logits[logits.size() - 2].equal(logits.back()) == (mesh.stage == 3))
        << "the same text on both ranks, or texts of two steps";
  }
}

TEST_F(ZeroMeshes, AnyMeshResumesAnyOther) {
  const Mesh meshes[] = {{2, 0, 2}, {2, 1, 1}, {4, 2, 2}, {4, 3, 4}, {4, 3, 2}, {2, 3, 1}};
  const std::vector<std::string> settings = {"train.steps=4", "ckpt.every=2", "ckpt.keep_last=9"};
  std::map<std::pair<int, std::string>, double> want;
  for (const Mesh& from : meshes) {
    const fs::path whole = dir_ / from.name();
    ASSERT_EQ(Train(whole, from, settings), ExitCode::kFinished);
    if (want.empty()) want = Losses(whole);
    EXPECT_EQ(Losses(whole), want) << from.name();
    for (const Mesh& to : meshes) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const fs::path folder = dir_ / "resumed";
      fs::copy(whole, folder, fs::copy_options::recursive);
      fs::remove(folder / "metrics.jsonl");
      fs::remove(folder / "DONE");
      ASSERT_EQ(Train(folder, to, settings, "step=2"), ExitCode::kFinished);
      const auto got = Losses(folder);
      for (const int step : {3, 4})
        EXPECT_EQ(got.at({step, "loss"}), want.at({step, "loss"})) << step;
      EXPECT_EQ(got.at({4, "val_loss"}), want.at({4, "val_loss"}));
      fs::remove_all(folder);
    }
  }
}

}  // namespace
}  // namespace halflife::train
