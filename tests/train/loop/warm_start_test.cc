// Checks how the weights of another model are matched, renamed and loaded as initial weights.
#include "train/loop/warm_start.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "core/error.h"
#include "model/language_model.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

using testing::ElementsAre;
using testing::Pair;

// A source of weights with known values: element i of the n-th tensor is 1000 n + i.
class CountingSource : public ckpt::WeightSource {
 public:
  explicit CountingSource(std::vector<ckpt::WeightInfo> weights) : weights_(std::move(weights)) {}
  std::string where() const override { return "elsewhere"; }
  const std::vector<ckpt::WeightInfo>& weights() const override { return weights_; }
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    for (size_t n = 0; n < weights_.size(); ++n)
      if (weights_[n].name == name)
        std::iota(out, out + (end - begin),
                  static_cast<float>(1000 * n) + static_cast<float>(begin));
  }

 private:
  std::vector<ckpt::WeightInfo> weights_;
};

class WarmStartTest : public testing::Test {
 protected:
  WarmStartTest()
      : model_({.vocab_size = 10,
                .model_dim = 8,
                .num_layers = 1,
                .mixer = model::MixerConfig("retention", {{"num_heads", 2}}),
                .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 8}})}),
        arena_(model_.parameters(), {}) {
    arena_.Initialise(1);
  }
  std::vector<ckpt::WeightInfo> Own() const {
    std::vector<ckpt::WeightInfo> weights;
    for (const dist::ParamSpec& spec : model_.parameters().specs())
      weights.push_back({spec.name, spec.shape});
    return weights;
  }
  at::Tensor Get(const std::string& name) {
    for (int i = 0; i < model_.parameters().size(); ++i)
      if (model_.parameters().specs()[i].name == name) return arena_.View(arena_.main(), i);
    throw std::logic_error(name);
  }

  model::LanguageModel model_;
  ParameterArena arena_;
};

TEST_F(WarmStartTest, TakesEveryTensorInPlace) {
  const auto report = WarmStart(CountingSource(Own()), {}, arena_);
  EXPECT_EQ(report.num_loaded, model_.parameters().size());
  EXPECT_EQ(report.num_elements, arena_.layout().num_parameters());
  EXPECT_EQ(report.num_kept + report.num_unused, 0);
  EXPECT_EQ(Get("embeddings.weight")[3][2].item<float>(), 26);
  EXPECT_EQ(Get("norm.weight")[7].item<float>(),
            1000 * (static_cast<float>(model_.parameters().size()) - 2) + 7);
}

TEST_F(WarmStartTest, ListsEveryDifferenceAtOnce) {
  auto weights = Own();
  weights[0].shape = {12, 8};
  weights[1].name = "layers.0.ln.weight";
  EXPECT_HL_ERROR(WarmStart(CountingSource(weights), {}, arena_), ExitCode::kUsage, "elsewhere",
                  "embeddings.weight: file [12, 8], model [10, 8]",
                  "missing: layers.0.attn_norm.weight [8]", "unexpected: layers.0.ln.weight [8]",
                  "--init-map");
}

TEST_F(WarmStartTest, RenamesByTheFirstRuleThatMatches) {
  auto weights = Own();
  for (auto& weight : weights) {
    if (weight.name.starts_with("layers.0.")) weight.name = "blocks.0." + weight.name.substr(9);
  }
  const auto report = WarmStart(
      CountingSource(weights),
      {.renames = {{R"(blocks\.(\d+)\.(.*))", "layers.$1.$2"}, {"blocks.*", "never"}}}, arena_);
  EXPECT_EQ(report.num_loaded, model_.parameters().size());
  EXPECT_EQ(Get("layers.0.attn_norm.weight")[5].item<float>(), 1005);
}

TEST_F(WarmStartTest, TwoNamesMustNotBecomeOne) {
  EXPECT_HL_ERROR(
      WarmStart(CountingSource(Own()), {.renames = {{"layers.*", "norm.weight"}}}, arena_),
      ExitCode::kUsage, "makes both", "to norm.weight");
}

TEST_F(WarmStartTest, GlobsAllowWhatIsMissingAndWhatIsLeftOver) {
  auto weights = Own();
  const at::Tensor initial = Get("lm_head.weight").clone();
  weights.back().name = "score.weight";
  const auto report =
      WarmStart(CountingSource(weights),
                {.allow_missing = {"lm_head.*"}, .allow_unexpected = {"score.*"}}, arena_);
  EXPECT_EQ(report.num_kept, 1);
  EXPECT_EQ(report.num_unused, 1);
  EXPECT_TRUE(at::equal(Get("lm_head.weight"), initial));
}

TEST_F(WarmStartTest, NewRowsOfTheVocabulary) {
  auto weights = Own();
  weights.front().shape = weights.back().shape = {4, 8};
  EXPECT_HL_ERROR(WarmStart(CountingSource(weights), {}, arena_), ExitCode::kUsage,
                  "lm_head.weight: file [4, 8], model [10, 8]");
  const at::Tensor initial = Get("embeddings.weight").clone();
  WarmStart(CountingSource(weights), {.new_rows = RowGrowth::kInit}, arena_);
  EXPECT_TRUE(at::equal(Get("embeddings.weight").narrow(0, 4, 6), initial.narrow(0, 4, 6)));
  EXPECT_EQ(Get("embeddings.weight")[3][0].item<float>(), 24);
  WarmStart(CountingSource(weights), {.new_rows = RowGrowth::kMean}, arena_);
  EXPECT_EQ(Get("embeddings.weight")[9][1].item<float>(), (1 + 9 + 17 + 25) / 4.0f);
}

TEST(ReadRenamesTest, ReadsRulesAndNamesTheBadLine) {
  const test::TempDir dir;
  const auto file = dir.path() / "rules.txt";
  std::ofstream(file) << "# fla to ours\nmodel\\.(.*) -> $1\n\n  a -> b  # why\n";
  EXPECT_THAT(ReadRenames(file), ElementsAre(Pair("model\\.(.*)", "$1"), Pair("a", "b")));
  std::ofstream(file) << "a = b\n";
  EXPECT_HL_ERROR(ReadRenames(file), ExitCode::kUsage, "rules.txt:1", "'a = b'");
  std::ofstream(file) << "( -> b\n";
  EXPECT_HL_ERROR(ReadRenames(file), ExitCode::kUsage, "'(' is not a regular expression");
}

}  // namespace
}  // namespace halflife::train
