// One file, one line and one message make an optimizer that recipes, training and checkpoints know:
// Lion of this folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/loop/training_runs.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kRecipe[] = R"(
data { seq_len: 32 prefetch: 0 }
model { model_dim: 16 num_layers: 1 channel_mixer { swiglu { width: 32 } }
        mixer { retention { num_heads: 2 } } }
optimizer { lr: 3e-3 algorithm { lion { rate: 0.8 } } }
schedule { kind: "constant" }
train { steps: 12 global_batch: 8 micro_batch: 4 device: "cpu" }
eval { windows: 1 }
ckpt { every: 1 keep_last: 99 }
log { tensorboard: false }
)";

RunConfig Recipe(const std::vector<std::string>& overrides = {}) {
  return ParseRunConfig(kRecipe, "my.textproto", overrides);
}

TEST(OutOfTreeOptimizer, RecipesAndOverridesKnowIt) {
  const RunConfig config = Recipe();
  EXPECT_EQ(config.optimizer.algorithm.name(), "lion");
  EXPECT_EQ(FlatFields(config).at("optimizer.algorithm"), "lion");
  EXPECT_EQ(FlatFields(config).at("optimizer.algorithm.lion.rate"), "0.8");
  EXPECT_EQ(FlatFields(Recipe({"optimizer.algorithm=lion"})).at("optimizer.algorithm.lion.rate"),
            "0.9")
      << "the default";
  EXPECT_EQ(ToText(ParseRunConfig(ToText(config), "config.textproto", {})), ToText(config));
  EXPECT_TRUE(TrajectoryFields(config).contains("optimizer.algorithm.lion.rate"));
  EXPECT_HL_ERROR(Recipe({"optimizer.algorithm=loin"}), ExitCode::kUsage,
                  "'loin' is not a variant of optimizer.algorithm", "did you mean 'lion'?");
  EXPECT_HL_ERROR(Validate(Recipe({"data.path=x", "optimizer.algorithm.lion.rate=2"}), 1),
                  ExitCode::kUsage, "optimizer.algorithm.lion.rate: 2. Use [0, 1)");
}

// Without decay, every weight moves by the learning rate.
TEST(OutOfTreeOptimizer, UpdatesOfWeightsAreSigns) {
  const auto lion = optim::OptimizerChoice("lion").Make({});
  std::vector<float> main(8, 1), grads = {1, -2, 3, -4, 5, -6, 7, 0}, momentum(8);
  const std::string table = lion->Prepare({{.parameter = "vector", .shape = {8}, .end = 8}});
  lion->Update({.main = main.data(),
                .grads = grads.data(),
                .states = {momentum.data()},
                .table = table.data(),
                .lr = 0.5});
  EXPECT_THAT(main, ElementsAre(0.5, 1.5, 0.5, 1.5, 0.5, 1.5, 0.5, 1));
}

class LionRun : public TrainingRuns {
 protected:
  LionRun() : TrainingRuns(kRecipe) {}

  // Returns every array of a step, in the order of the manifest.
  std::vector<std::vector<float>> ArraysOf(uint64_t step) const {
    const ckpt::StepReader reader = Open(step);
    std::vector<std::vector<float>> arrays;
    for (const ckpt::TensorInfo& tensor : reader.tensors()) {
      for (const std::string& array : tensor.arrays)
        reader.ReadTensor(array, tensor.name,
                          arrays.emplace_back(static_cast<size_t>(tensor.count())).data());
    }
    return arrays;
  }
};

TEST_F(LionRun, LearnsAndResumesWithEqualBits) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(Concat(ranks, " ranks"));
    fs::remove_all(folder_);
    const std::vector<std::string> stage = {Concat("parallel.zero_stage=", ranks - 1)};
    ASSERT_EQ(Train({.ranks = ranks, .set = stage}), ExitCode::kFinished);
    EXPECT_LT(Open(12).state().metrics.at("loss"), Open(1).state().metrics.at("loss") - 0.3);
    EXPECT_EQ(Open(12).state().optimizer, "lion");
    EXPECT_THAT(Open(12).manifest().array_names(), ElementsAre("main", "optim/momentum"));
    const auto whole = ArraysOf(12);
    ASSERT_EQ(Train({.ranks = ranks, .set = stage, .resume = "step=5"}), ExitCode::kFinished);
    EXPECT_EQ(ArraysOf(12), whole);
  }
}

TEST_F(LionRun, IsNotContinuedByAnotherOptimizer) {
  const std::vector<std::string> shorter = {"train.steps=3"};
  const std::vector<std::string> adamw = {"train.steps=3", "optimizer.algorithm=adamw"};
  ASSERT_EQ(Train({.set = shorter}), ExitCode::kFinished);
  EXPECT_HL_ERROR(Train({.set = adamw}), ExitCode::kUsage,
                  "optimizer.algorithm: checkpoint lion, this run adamw",
                  "optimizer.algorithm.lion.rate: checkpoint 0.8",
                  "optimizer state: checkpoint optim/momentum, this run optim/m, optim/v",
                  "Resume with the checkpoint's optimizer, or start another run");
  EXPECT_HL_ERROR(Train({.set = adamw,
                         .allow_change = {"optimizer.algorithm", "optimizer.algorithm.lion.rate"}}),
                  ExitCode::kUsage, "1 difference:", "optimizer state: checkpoint");
}

// docs/adding_an_optimizer.md shows what is tested here.
TEST(OutOfTreeOptimizer, TheGuideShowsIt) {
  const auto read = [](const char* path) {
    return ReadFile(std::string(test::kSourceDir) + "/" + path, ExitCode::kInternal);
  };
  const std::string guide = read("docs/adding_an_optimizer.md");
  EXPECT_THAT(guide, HasSubstr("```cpp\n" + read("tests/optim/out_of_tree/lion.cc") + "```\n"));
  EXPECT_THAT(guide, HasSubstr("```proto\n" +
                               read("tests/optim/out_of_tree/messages.proto").substr(1) + "```\n"));
}

}  // namespace
}  // namespace halflife::train
