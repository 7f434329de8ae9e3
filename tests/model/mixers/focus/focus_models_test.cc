// Whole models of LEAP and Fastformer: their loss, what they can learn, and what they cannot.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/mixers/focus/support.h"

namespace halflife::model {
namespace {

using halflife::test::Uniform;
using test::Close;

struct Preset {
  const char* mixer;
  const char* name;
};
constexpr Preset kPresets[] = {{"leap", "leap_v011"},
                               {"leap", "leap_v012"},
                               {"leap", "leap_v101"},
                               {"leap", "leap_latest"},
                               {"fastformer", "additive_readme"},
                               {"fastformer", "fastformer_seed"},
                               {"fastformer", "fastformer_v011"},
                               {"fastformer", "fastformer_latest"}};

constexpr int64_t kVocab = 24;

ModelConfig Decoder(const Preset& preset, const std::vector<Assignment>& options, int64_t dim) {
  std::vector<Assignment> all = {{"preset", preset.name}, {"num_heads", 2}};
  all.insert(all.end(), options.begin(), options.end());
  ModelConfig config = {.vocab_size = kVocab, .model_dim = dim, .num_layers = 2};
  config.initializer_range = 0.1;
  config.norm = NormConfig("layer_norm", {{"eps", 1e-5}});
  config.positions = PositionsConfig("learned", {{"max_positions", 256}});
  config.mixer = MixerConfig(preset.mixer, all);
  config.channel_mixer = ChannelMixerConfig("mlp", {{"width", 4 * dim}, {"bias", true}});
  config.head.tied = true;
  if (std::string_view(preset.name) == "fastformer_seed")
    config.block = BlockConfig("pre_norm", {{"mixer_residual_post_norm", true}});
  return config;
}

at::Tensor Ids(int64_t rows, int64_t columns, int64_t below, uint64_t seed) {
  return (Uniform({rows, columns}, seed) * static_cast<double>(below)).to(at::kLong);
}

LossSums LossOf(const LanguageModel& model, const at::Tensor& tokens, const at::Tensor& targets) {
  const auto slice = SequenceSlice::Contiguous(tokens.size(0), tokens.size(1), 0, at::kCPU);
  return model.Loss(tokens, targets, {.slice = &slice});
}

// Adam on all parameters of a model.
class Adam {
 public:
  Adam(LanguageModel& model, double lr) : model_(model), lr_(lr) {
    for (int i = 0; i < model.parameters().size(); ++i)
      moments_.push_back({at::zeros_like(model.parameters().tensor(i).detach()),
                          at::zeros_like(model.parameters().tensor(i).detach())});
  }
  // Returns the loss per target before the update.
  double Step(const at::Tensor& tokens, const at::Tensor& targets) {
    const auto count = static_cast<double>((targets >= 0).sum().item<int64_t>());
    const at::Tensor loss = LossOf(model_, tokens, targets).objective / count;
    loss.backward();
    ++updates_;
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < moments_.size(); ++i) {
      at::Tensor weight = model_.parameters().tensor(static_cast<int>(i));
      auto& [m, v] = moments_[i];
      m.lerp_(weight.grad(), 0.1);
      v.lerp_(weight.grad().square(), 0.01);
      const double of_m = 1 - std::pow(0.9, updates_), of_v = 1 - std::pow(0.99, updates_);
      weight.sub_(lr_ / of_m * m / ((v / of_v).sqrt() + 1e-8));
      weight.mutable_grad().reset();
    }
    return loss.item<double>();
  }

 private:
  LanguageModel& model_;
  double lr_;
  int updates_ = 0;
  struct Moments {
    at::Tensor m, v;
  };
  std::vector<Moments> moments_;
};

// Number 16: the mean cross entropy of logits[:, :-1] and labels[:, 1:], without labels of -100.
// The caller's labels do not change.
TEST(FocusModels, LossIsShiftedByOneToken) {
  const at::Tensor row = Ids(3, 41, kVocab, 1);
  for (const Preset& preset : kPresets) {
    SCOPED_TRACE(preset.name);
    LanguageModel model(Decoder(preset, {}, 16));
    model.BindOwnMemory(1, false);
    const at::Tensor labels = row.clone();
    labels.narrow(1, 10, 7).fill_(-100);
    const at::Tensor targets = labels.narrow(1, 1, 40), before = labels.clone();
    const double count = 3 * (40 - 7);
    const double got = LossOf(model, row.narrow(1, 0, 40), targets).loss.item<double>() / count;
    const at::Tensor logits = test::AllLogits(model, row).narrow(1, 0, 40).to(at::kDouble);
    const at::Tensor want = at::cross_entropy_loss(
        logits.reshape({-1, kVocab}), labels.narrow(1, 1, 40).reshape({-1}), {}, 1, -100);
    EXPECT_NEAR(got, want.item<double>(), 1e-5);
    EXPECT_TRUE(labels.equal(before));
  }
}

// Number 16: equal logits have a loss of ln V.
TEST(FocusModels, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  const at::Tensor row = Ids(2, 31, kVocab, 2);
  for (const Preset& preset : kPresets) {
    LanguageModel model(Decoder(preset, {}, 16));
    model.BindOwnMemory(1, false);
    model.parameters().tensor(0).zero_();  // The embedding, which is also the head.
    ASSERT_EQ(model.parameters().specs()[0].name, "embeddings.weight");
    const double loss =
        LossOf(model, row.narrow(1, 0, 30), row.narrow(1, 1, 30)).loss.item<double>() / 60;
    EXPECT_NEAR(loss, std::log(double{kVocab}), 1e-6) << preset.name;
  }
}

// The published decoder of fastformer_seed: width 128, 6 layers, 4 heads, T5's vocabulary.
TEST(FocusModels, FastformerSeedHasThePublishedNumberOfParameters) {
  ModelConfig config = Decoder({"fastformer", "fastformer_seed"}, {{"num_heads", 4}}, 128);
  config.vocab_size = 32100;
  config.num_layers = 6;
  config.positions = PositionsConfig("learned", {{"max_positions", 2048}});
  config.channel_mixer = ChannelMixerConfig("mlp", {{"width", 512}, {"bias", false}});
  config.embedding.norm = true;
  config.final_norm = NormConfig("none");
  config.head.bias = true;
  config.head.logit_scale = 0;
  EXPECT_EQ(LanguageModel(config).parameters().num_elements(), 5'589'092);
}

// Number 16: one matrix for both uses. Its gradient is the sum of the gradients of the two uses.
TEST(FocusModels, TiedMatricesShareMemoryAndGradients) {
  const at::Tensor row = Ids(2, 31, kVocab, 3);
  for (const Preset& preset : kPresets) {
    SCOPED_TRACE(preset.name);
    ModelConfig config = Decoder(preset, {}, 16);
    LanguageModel tied(config);
    config.head.tied = false;
    LanguageModel apart(config);
    tied.BindOwnMemory(4, true);
    apart.BindOwnMemory(4, true);
    const int head = apart.parameters().size() - 1;
    ASSERT_EQ(tied.parameters().size(), head);
    apart.parameters().Bind(head,
                            apart.parameters().tensor(0).detach().clone().requires_grad_(true));
    for (LanguageModel* model : {&tied, &apart})
      LossOf(*model, row.narrow(1, 0, 30), row.narrow(1, 1, 30)).objective.backward();
    const at::Tensor of_head = apart.parameters().tensor(head).grad(),
                     of_lookup = apart.parameters().tensor(0).grad();
    EXPECT_TRUE(Close(tied.parameters().tensor(0).grad(), of_head + of_lookup, 1e-5));
    EXPECT_GT(of_lookup.abs().max().item<double>(), 1e-3);
    EXPECT_GT(of_head.abs().max().item<double>(), 1e-3);
  }
}

// Number 19: the models memorise 4 rows of 256 random tokens.
TEST(FocusModels, MemoriseABatch) {
  const at::Tensor row = Ids(4, 257, kVocab, 5);
  for (const Preset& preset : kPresets) {
    LanguageModel model(Decoder(preset, {}, 64));
    model.BindOwnMemory(1, true);
    Adam adam(model, 5e-3);
    double loss = 0;
    int updates = 0;
    for (; updates < 400; ++updates) {
      loss = adam.Step(row.narrow(1, 0, 256), row.narrow(1, 1, 256));
      if (loss < 0.1) break;
    }
    EXPECT_LT(loss, 0.1) << preset.name << " after " << updates << " updates";
  }
}

// A row starts with one of 8 keys and asks for it at its last token, with noise between them.
struct Recall {
  at::Tensor tokens, targets;
  static constexpr int64_t kKeys = 8, kLength = 32;
  explicit Recall(uint64_t seed) {
    const at::Tensor keys = Ids(32, 1, kKeys, 2 * seed);
    tokens = Ids(32, kLength, kVocab - kKeys - 1, 2 * seed + 1) + kKeys;
    tokens.narrow(1, 0, 1).copy_(keys);
    tokens.select(1, kLength - 1).fill_(kVocab - 1);
    targets = at::full_like(tokens, -100);
    targets.narrow(1, kLength - 1, 1).copy_(keys);
  }
};
// Trains on new rows in every update and returns the mean loss of the last updates. Stops when it
// is below 0.1; the number of updates depends on the CPU's rounding and on the number of threads.
double LossOfRecall(const Preset& preset, const std::vector<Assignment>& windows,
                    uint64_t max_updates) {
  LanguageModel model(Decoder(preset, windows, 32));
  model.BindOwnMemory(1, true);
  Adam adam(model, 6e-3);
  double recent = std::log(double{Recall::kKeys});
  for (uint64_t update = 0; update < max_updates && recent > 0.1; ++update) {
    const Recall rows(100 + update);
    recent += 0.05 * (adam.Step(rows.tokens, rows.targets) - recent);
  }
  return recent;
}

// Number 19: two layers with windows of 8 reach 15 tokens (29 in Fastformer), so over 31 tokens
// they are no better than chance. With one layer over all tokens they solve the task.
TEST(FocusModels, RecallNeedsALayerOverAllTokens) {
  for (const Preset& preset : {kPresets[2], kPresets[7]}) {
    EXPECT_GT(LossOfRecall(preset, {{"windows", "same"}, {"window", 8}}, 200),
              0.95 * std::log(double{Recall::kKeys}))
        << preset.name;
    EXPECT_LT(LossOfRecall(preset, {{"windows", "cycle"}}, 6000), 0.2) << preset.name;
  }
}

}  // namespace
}  // namespace halflife::model
