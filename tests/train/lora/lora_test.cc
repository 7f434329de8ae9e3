// Low-rank adaptation: the targets, gradients against autograd, and whole runs: equal bits on any
// number of ranks and after a resume, and merged weights.
#include "train/lora/lora.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/merged_weights.h"
#include "ckpt/step_writer.h"
#include "core/concat.h"
#include "ops/torch/gradient_sink.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "train/loop/training_runs.h"
#include "train/plan/memory_plan.h"
#include "train/step/step_data.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

model::ModelConfig SmallModel(const std::string& mixer) {
  model::MixerConfig config(mixer);
  return {.vocab_size = 259,
          .model_dim = 32,
          .num_layers = 2,
          .mixer = mixer == "softmax" || mixer == "gla" || mixer == "gated_delta_net"
                       ? model::MixerConfig(mixer, {{"num_heads", 2}})
                       : config,
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 48}})};
}

std::vector<std::string> NamesOf(const LoraOptions& options, const model::LanguageModel& model) {
  std::vector<std::string> names;
  for (const int param : LoraTargets(options, model))
    names.push_back(model.parameters().specs()[param].name);
  return names;
}

TEST(LoraTargets, AreMatricesOfLayers) {
  const model::LanguageModel model(SmallModel("gla"));
  const std::vector<std::string> all = NamesOf({.rank = 4}, model);
  EXPECT_THAT(all, Contains("layers.0.attn.q_proj.weight"));
  EXPECT_THAT(all, Contains("layers.1.mlp.down_proj.weight"));
  for (const std::string& name : all) EXPECT_THAT(name, HasSubstr("layers."));
  EXPECT_EQ(
      NamesOf({.rank = 4, .targets = ".*1.attn.[qk]_proj.weight"}, model),
      (std::vector<std::string>{"layers.1.attn.q_proj.weight", "layers.1.attn.k_proj.weight"}));
}

TEST(LoraTargets, Refuses) {
  const model::LanguageModel model(SmallModel("gla"));
  EXPECT_HL_ERROR(LoraTargets({.rank = 4, .targets = "q_proj"}, model), ExitCode::kUsage,
                  "lora.targets 'q_proj' matches no matrix of a layer",
                  "Use an expression for whole names such as: layers.0.attn.");
  EXPECT_HL_ERROR(LoraTargets({.rank = 4, .targets = "(q_proj"}, model), ExitCode::kUsage,
                  "lora.targets: '(q_proj' is not a regular expression");
  EXPECT_HL_ERROR(LoraTargets({.rank = 32, .targets = ".*q_proj.weight"}, model), ExitCode::kUsage,
                  "lora.rank 32 is not below the sides of layers.0.attn.q_proj.weight, which is ",
                  "Use a lower rank, or lora.targets that leave the matrix out.");
}

// Sums the gradients of a parameter.
class Sum : public ops::GradientSink {
 public:
  explicit Sum(at::Tensor& sum) : sum_(sum) {}
  Target Next() override { return {.sum = sum_, .added = true}; }
  void Written() override {}

 private:
  at::Tensor& sum_;
};

at::Tensor LossOf(const model::LanguageModel& model) {
  const at::Tensor tokens = at::randint(3, 200, {2, 24}, at::kLong);
  const auto slice = model::SequenceSlice::Contiguous(2, 24, 0, at::kCPU);
  return model.Loss(tokens, tokens, {.slice = &slice, .training = true}).objective;
}

// The gradients of A and B equal those of autograd through W = W0 + scale B A, for every matrix of
// several models. Tolerance: products of at most 48 terms in fp32, relative to the largest value.
TEST(Lora, GradientsAreThoseOfAutograd) {
  for (const std::string mixer : {"softmax", "gla", "gated_delta_net", "mamba2", "mla", "rwkv7"}) {
    SCOPED_TRACE(mixer);
    const model::ModelConfig config = SmallModel(mixer);
    model::LanguageModel adapted(config), reference(config);
    const LoraOptions options = {.rank = 3, .alpha = 5};
    Lora lora(options, adapted);
    lora.Bind(at::kCPU, at::kFloat);
    reference.BindOwnMemory(/*seed=*/1, /*requires_grad=*/false);
    std::vector<at::Tensor> sums;
    model::ParameterSet& trained = lora.parameters();
    {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < adapted.parameters().size(); ++i)
        adapted.parameters().tensor(i).copy_(reference.parameters().tensor(i));
    }
    for (int i = 0; i < trained.size(); ++i) {
      at::Tensor values = at::randn(trained.specs()[i].shape).mul_(0.1);
      trained.Bind(i, values.requires_grad_(true));
      sums.push_back(at::zeros_like(values, values.options().requires_grad(false)));
    }
    for (int i = 0; i < trained.size(); ++i)
      ops::SetGradientSink(trained.tensor(i), std::make_unique<Sum>(sums[i]));

    class ReferenceWeights : public ckpt::WeightSource {
     public:
      explicit ReferenceWeights(const model::LanguageModel& model) : model_(model) {}
      std::string where() const override { return "reference"; }
      const std::vector<ckpt::WeightInfo>& weights() const override { return none_; }
      void ReadRange(const std::string& name, int64_t begin, int64_t end,
                     float* out) const override {
        for (int i = 0; i < model_.parameters().size(); ++i)
          if (model_.parameters().specs()[i].name == name)
            std::copy_n(model_.parameters().tensor(i).const_data_ptr<float>() + begin, end - begin,
                        out);
      }

     private:
      const model::LanguageModel& model_;
      std::vector<ckpt::WeightInfo> none_;
    } weights(reference);
    lora.Load(weights);
    lora.Refresh();
    lora.PassGradients();
    at::manual_seed(7);
    LossOf(adapted).backward();

    std::vector<at::Tensor> leaves;
    const std::vector<int> targets = LoraTargets(options, reference);
    ASSERT_EQ(2 * targets.size(), sums.size());
    for (size_t i = 0; i < targets.size(); ++i) {
      const at::Tensor a = trained.tensor(2 * i).detach().clone().requires_grad_(true),
                       b = trained.tensor(2 * i + 1).detach().clone().requires_grad_(true);
      leaves.push_back(a), leaves.push_back(b);
      const at::Tensor base = reference.parameters().tensor(targets[i]);
      reference.parameters().Bind(targets[i], at::addmm(base, b, a, 1, 5.0 / 3));
    }
    at::manual_seed(7);
    LossOf(reference).backward();
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor wanted = leaves[i].grad();
      ASSERT_TRUE(wanted.defined()) << trained.specs()[i].name;
      EXPECT_LE((sums[i] - wanted).abs().max().item<float>(),
                1e-5f * wanted.abs().max().item<float>() + 1e-7f)
          << trained.specs()[i].name;
    }
    for (int i = 0; i < trained.size(); ++i) ops::SetGradientSink(trained.tensor(i), nullptr);
  }
}

class LoraRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    data_dir = new test::TempDir();
    test::PrepareStepData(data_dir->path());
  }
  static void TearDownTestSuite() { delete data_dir; }

  static RunConfig Config(const std::string& mixer, std::vector<std::string> set) {
    set.push_back(Concat("data.path=", (data_dir->path() / "data").string()));
    return ParseRunConfig(Concat(R"(
data { seq_len: 32 prefetch: 0 }
model { model_dim: 16 num_layers: 2 channel_mixer { swiglu { width: 32 } } mixer { )",
                                 mixer, R"( { num_heads: 2 } } }
optimizer { lr: 3e-2 }
train { steps: 6 global_batch: 8 micro_batch: 2 device: "cpu" }
eval { windows: 4 }
log { tensorboard: false }
)"),
                          "test", set);
  }
  struct Run {
    std::string folder, mixer = "gla";
    int ranks = 1;
    std::vector<std::string> set = {};
    std::string from = {}, resume = "auto";
  };
  ExitCode Train(const Run& run) {
    std::unique_ptr<ckpt::WeightSource> from;
    if (!run.from.empty())
      from = ckpt::WeightsOfStep(ckpt::StepReader::Open(ckpt::FindStep(dir_ / run.from)));
    std::string log;
    return TrainOnThreads(Config(run.mixer, run.set), dir_ / run.folder, run.ranks,
                          {.resume = ckpt::ParseResume(run.resume), .init_from = from.get()}, log);
  }
  ckpt::StepReader Step(const std::string& folder) const {
    return ckpt::StepReader::Open(ckpt::FindStep(dir_ / folder));
  }
  double ValidationLoss(const std::string& folder) const {
    return Step(folder).state().metrics.at("val_loss");
  }
  std::string Digest(const std::string& folder) const {
    return ToHex(ckpt::GatheredHash(Step(folder)));
  }

  static test::TempDir* data_dir;
  test::TempDir dir_;
};
test::TempDir* LoraRun::data_dir = nullptr;

const std::vector<std::string> kLora = {"lora.rank=4", "lora.alpha=8"};

std::vector<std::string> With(std::vector<std::string> set, const std::vector<std::string>& more) {
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

// A run that starts from the merged weights, and trains nothing more than a step with a rate of 0,
// has the same validation loss. Tolerance: the merge rounds in another order.
TEST_F(LoraRun, MergedWeightsAreThoseThatWereTrained) {
  for (const std::string mixer : {"softmax", "gla", "gated_delta_net"}) {
    SCOPED_TRACE(mixer);
    const auto name = [&](const char* what) { return Concat(mixer, ".", what); };
    Train({.folder = name("base"), .mixer = mixer});
    Train({.folder = name("lora"), .mixer = mixer, .set = kLora, .from = name("base")});
    EXPECT_LT(ValidationLoss(name("lora")), ValidationLoss(name("base")) - 0.01);
    Train({.folder = name("merged"),
           .mixer = mixer,
           .set = {"optimizer.lr=0", "train.steps=1"},
           .from = name("lora")});
    EXPECT_NEAR(ValidationLoss(name("merged")), ValidationLoss(name("lora")), 2e-6);

    const ckpt::StepReader step = Step(name("lora")), base = Step(name("base"));
    for (const ckpt::TensorInfo& tensor : step.tensors())
      EXPECT_THAT(tensor.name, testing::AnyOf(HasSubstr(".lora_a"), HasSubstr(".lora_b")));
    const auto merged = ckpt::WeightsOfStep(Step(name("lora")));
    ASSERT_EQ(merged->weights().size(), base.tensors().size());
    std::vector<float> before(16 * 259), after(before.size());
    base.ReadTensor(ckpt::kMainArray, "embeddings.weight", before.data());
    merged->ReadRange("embeddings.weight", 0, std::ssize(after), after.data());
    EXPECT_EQ(before, after) << "the base is frozen";
    // Ranges that begin and end within rows.
    std::vector<float> whole(16 * 16), part(37);
    merged->ReadRange("layers.0.attn.o_proj.weight", 0, std::ssize(whole), whole.data());
    merged->ReadRange("layers.0.attn.o_proj.weight", 21, 58, part.data());
    EXPECT_EQ(std::vector<float>(whole.begin() + 21, whole.begin() + 58), part);
  }
}

TEST_F(LoraRun, AnyNumberOfRanksGivesEqualBits) {
  Train({.folder = "base"});
  Train({.folder = "one", .set = kLora, .from = "base"});
  for (const auto& [ranks, zero] : std::vector<std::pair<int, int>>{{2, 0}, {4, 1}, {4, 2}}) {
    SCOPED_TRACE(Concat(ranks, " ranks, stage ", zero));
    const std::string folder = Concat("r", ranks, "z", zero);
    Train({.folder = folder,
           .ranks = ranks,
           .set = With(kLora, {Concat("parallel.zero_stage=", zero)}),
           .from = "base"});
    EXPECT_EQ(Digest(folder), Digest("one"));
    EXPECT_EQ(ValidationLoss(folder), ValidationLoss("one"));
  }
  Train({.folder = "block", .set = With(kLora, {"train.recompute=block"}), .from = "base"});
  EXPECT_EQ(Digest("block"), Digest("one"));
  // Rows over two ranks sum in another order.
  Train({.folder = "sp", .ranks = 2, .set = With(kLora, {"parallel.sp=2"}), .from = "base"});
  EXPECT_NEAR(ValidationLoss("sp"), ValidationLoss("one"), 1e-4);
}

TEST_F(LoraRun, ResumesExactly) {
  Train({.folder = "base"});
  const std::vector<std::string> saves = With(kLora, {"ckpt.every=2", "ckpt.keep_last=9"});
  Train({.folder = "whole", .set = saves, .from = "base"});
  const std::string whole = Digest("whole");
  Train({.folder = "whole", .set = saves, .resume = "step=2"});
  EXPECT_EQ(Digest("whole"), whole);
  // Another run continues this one, with a copy of the base.
  Train({.folder = "other",
         .set = saves,
         .resume = Concat("path=", (dir_ / "whole/ckpt/step_000000000004").string())});
  EXPECT_EQ(Digest("other"), whole);
  EXPECT_EQ(ValidationLoss("other"), ValidationLoss("whole"));
  EXPECT_HL_ERROR(Train({.folder = "whole", .set = With(saves, {"lora.alpha=9"})}),
                  ExitCode::kUsage, "lora.alpha");
}

TEST_F(LoraRun, Bf16) {
  Train({.folder = "base"});
  Train({.folder = "lora", .set = With(kLora, {"train.precision=bf16"}), .from = "base"});
  EXPECT_LT(ValidationLoss("lora"), ValidationLoss("base") - 0.01);
}

TEST_F(LoraRun, Refuses) {
  EXPECT_HL_ERROR(Train({.folder = "lora", .set = kLora}), ExitCode::kUsage,
                  "lora.rank 4 adapts the weights of another model, and none is named. Use "
                  "--init-from RUN, or --set lora.rank=0 to train all weights.");
  EXPECT_HL_ERROR(Validate(Config("gla", {"lora.rank=-1", "lora.alpha=0"}), 1), ExitCode::kUsage,
                  "lora.rank: -1. Use 0 (off) to 4096", "lora.alpha: 0. Use a number > 0");
  EXPECT_HL_ERROR(Validate(Config("gla", {"lora.targets=x"}), 1), ExitCode::kUsage,
                  "lora.targets: x. Use '' without lora.rank, or a rank such as 8");
  Train({.folder = "base"});
  Train({.folder = "lora", .set = kLora, .from = "base"});
  const fs::path step = ckpt::FindStep(dir_ / "lora"), copy = dir_ / step.filename();
  fs::copy(step, copy);
  EXPECT_HL_ERROR(ckpt::WeightsOfStep(ckpt::StepReader::Open(copy)), ExitCode::kNoUsableCheckpoint,
                  "has only the LoRA weights of a run. The base weights are in the run's folder "
                  "base/, which is missing. Use the step within the run's folder.");
  // The working directory has a base, but the step outside of a run is not of that base.
  const fs::path working = fs::current_path();
  fs::current_path(dir_ / "lora");
  EXPECT_HL_ERROR(
      Train({.folder = "resumed", .set = kLora, .resume = Concat("path=", copy.string())}),
      ExitCode::kNoUsableCheckpoint, "has only the LoRA weights of a run", "is not in a run. Use");
  fs::current_path(working);
  fs::remove_all(dir_ / "lora/base");
  Train({.folder = "another", .set = kLora, .from = "base"});
  fs::copy(dir_ / "another/base", dir_ / "lora/base");
  EXPECT_HL_ERROR(ckpt::WeightsOfStep(Step("lora")), ExitCode::kNoUsableCheckpoint,
                  "has the base weights of another run than");
  // A run with steps keeps them if the step that it should continue has no usable base.
  EXPECT_HL_ERROR(
      Train({.folder = "another", .set = kLora, .resume = Concat("path=", step.string())}),
      ExitCode::kNoUsableCheckpoint, "lora/base has the base weights of another run. Restore");
  EXPECT_NO_THROW(Step("another"));
}

// Frozen weights have no gradients and no optimizer states.
TEST(LoraMemory, CountsFrozenWeightsOnce) {
  const RunConfig config = ParseRunConfig(R"(
data { path: "d" seq_len: 32 }
model { vocab_size: 259 model_dim: 32 num_layers: 2 mixer { gla { num_heads: 2 } } }
train { device: "cpu" global_batch: 8 micro_batch: 8 }
ckpt { background: false }
lora { rank: 4 targets: ".*[qkv]_proj.weight" }
)",
                                          "test", {});
  model::LanguageModel model(config.model);
  Lora lora(config.lora, model);
  int64_t trained = 0, targets = 0, largest = 0;
  for (const dist::ParamSpec& spec : lora.parameters().specs()) trained += spec.count();
  for (const int param : LoraTargets(config.lora, model)) {
    targets += model.parameters().specs()[param].count();
    largest = std::max(largest, model.parameters().specs()[param].count());
  }
  const auto plan = PlanMemory(config, model, 1);
  EXPECT_EQ(plan.main_and_optimizer, 12.0 * static_cast<double>(trained));
  EXPECT_EQ(plan.gradients, 4.0 * static_cast<double>(trained));
  EXPECT_EQ(plan.frozen,
            4.0 * static_cast<double>(model.CountParameters().total() + targets + largest));
}

}  // namespace
}  // namespace halflife::train
