// InfoScale and log-n against worked values, the entropies that they keep, and attention whose
// scores are cosines.
#include "model/mixers/softmax/query_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "model/mixers/built_mixer.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

double Factor(int64_t num_keys, const QueryScale& scale) {
  return QueryScales(at::full({1}, num_keys, at::kLong), scale).item<double>();
}
QueryScale Info(int64_t length, int64_t dim, const char* mode = "train") {
  return {.form = "info", .mode = mode, .length = length, .dim = dim};
}

TEST(QueryScale, InfoScaleTable) {
  const std::vector<std::pair<int64_t, double>> of_128 = {
      {1, 0},          {2, 0.413777},   {8, 0.712827},    {64, 1},          {128, 1.077237},
      {256, 1.148543}, {512, 1.214970}, {1024, 1.277288}, {2048, 1.336077}, {4096, 1.391792}};
  for (const auto& [n, factor] : of_128) EXPECT_NEAR(Factor(n, Info(64, 128)), factor, 1e-6) << n;
  EXPECT_NEAR(Factor(4096, Info(64, 64)), 1.370447, 1e-6);
  EXPECT_NEAR(Factor(4096, Info(64, 768)), 1.410400, 1e-6);
  EXPECT_NEAR(Factor(32768, Info(512, 64)), 1.251481, 1e-6);
  EXPECT_NEAR(Factor(131072, Info(2048, 128)), 1.223632, 1e-6);
}

TEST(QueryScale, LogTable) {
  const QueryScale log = {.form = "log", .mode = "train", .length = 64, .dim = 128};
  EXPECT_NEAR(Factor(128, log), 1.166667, 1e-6);
  EXPECT_NEAR(Factor(4096, log), 2, 1e-12);
}

// Increasing, concave in ln n, below 1 / I(n_tr); the square root of the logarithm for wide heads.
TEST(QueryScale, InfoScaleGrowsAsTheRootOfTheLogarithm) {
  double before = 0, slope = 1e9;
  for (int64_t n = 2; n < 1'000'000; n *= 2) {
    const double factor = Factor(n, Info(64, 128));
    EXPECT_GT(factor, before);
    EXPECT_LT(factor, 3.98676);
    if (n > 2) {
      EXPECT_LT(factor - before, slope) << n;
      slope = factor - before;
    }
    before = factor;
    const double root = std::sqrt(std::log(static_cast<double>(n)) / std::log(64.0));
    EXPECT_NEAR(Factor(n, Info(64, 1'000'000)) / root, 1, 1e-5) << n;
  }
}

TEST(QueryScale, EvaluationAloneNeverFlattens) {
  EXPECT_EQ(Factor(3, Info(64, 128, "eval_only")), 1);
  EXPECT_EQ(Factor(64, Info(64, 128)), 1);  // to the bit
  EXPECT_GT(Factor(65, Info(64, 128, "eval_only")), 1);
}

// Mean entropies of softmax over n standard normal scores, in nats. 64 rows: a standard error of
// some 0.02 at n = 64, less beyond.
double Entropy(int64_t n, double factor) {
  const at::Tensor scores = Normal({64, n}, static_cast<uint64_t>(n)) * factor;
  const at::Tensor p = scores.softmax(-1);
  return -(p * p.log()).sum(-1).mean().item<double>();
}
TEST(QueryScale, InfoScaleKeepsTheShareOfTheEntropy) {
  const auto share = [](int64_t n, double factor) {
    return Entropy(n, factor) / std::log(static_cast<double>(n));
  };
  const double at_length = share(64, 1);
  EXPECT_NEAR(at_length, 0.885, 0.01);
  EXPECT_NEAR(share(4096, Factor(4096, Info(64, 128))), at_length, 0.01);
  EXPECT_GT(share(4096, 1), at_length + 0.04);
  EXPECT_NEAR(Entropy(4096, Factor(4096, Info(64, 128))), 7.35, 0.05);
  EXPECT_NEAR(Entropy(4096, 2), 6.35, 0.05);  // log-n
}

using Options = std::vector<Assignment>;

BuiltMixer Attention(Options options) {
  options.push_back({"num_heads", int64_t{2}});
  return {MixerConfig("softmax", options), 16};
}

TEST(QueryScale, AtTheTrainingLengthNothingChanges) {
  const at::Tensor x = Normal({2, 40, 16}, 1);
  const Options scaled = {{"query_scale", "info"}, {"query_scale_length", int64_t{40}}};
  EXPECT_TRUE(test::BitEqual(Attention(scaled).Run(x), Attention({}).Run(x)));
}

TEST(QueryScale, LaterTokensDoNotMatterUnlessTheRowsLengthIsAsked) {
  const at::Tensor x = Normal({1, 40, 16}, 2);
  for (const char* mode : {"train", "eval_only", "fixed_len"}) {
    const BuiltMixer mixer = Attention(
        {{"query_scale", "info"}, {"query_scale_mode", mode}, {"query_scale_length", int64_t{8}}});
    const bool same = Close(mixer.Run(x.narrow(1, 0, 20)), mixer.Run(x).narrow(1, 0, 20), 1e-12);
    EXPECT_EQ(same, std::string(mode) != "fixed_len") << mode;
  }
}

// A window no wider than the training length sees no more keys than training did.
TEST(QueryScale, AWindowOfTheTrainingLengthNeedsNone) {
  const at::Tensor x = Normal({2, 60, 16}, 3);
  const Options window = {{"window", int64_t{12}}};
  Options scaled = window;
  scaled.push_back({"query_scale", "info"});
  scaled.push_back({"query_scale_length", int64_t{12}});
  EXPECT_TRUE(test::BitEqual(Attention(scaled).Run(x), Attention(window).Run(x)));
}

TEST(CosScale, SizesOfQueriesAndKeysDoNotMatter) {
  BuiltMixer mixer = Attention({{"cos_scale", 7.0}});
  const at::Tensor x = Normal({2, 40, 16}, 4), before = mixer.Run(x);
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 3);
  mixer.Set("k_proj.weight", mixer["k_proj.weight"] * 0.2);
  EXPECT_TRUE(Close(mixer.Run(x), before, 1e-9));  // lengths of 1e-6 are told from none
}

TEST(CosScale, IsAMeanWithoutAQueryAndAnArgmaxAtLarge) {
  const at::Tensor x = Normal({1, 12, 16}, 5);
  BuiltMixer mixer = Attention({{"cos_scale", 1e4}});
  const BuiltMixer identity = Attention({{"window", int64_t{1}}});  // gives each token's own value
  // q = k: the best cosine is the query's own key
  mixer.Set("k_proj.weight", mixer["q_proj.weight"]);
  EXPECT_TRUE(Close(mixer.Run(x), identity.Run(x), 1e-6));
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 0);
  const at::Tensor counts = at::arange(1, 13, at::kDouble).view({1, 12, 1});
  EXPECT_TRUE(Close(mixer.Run(x), identity.Run(x).cumsum(1) / counts, 1e-12));
}

TEST(CosScale, ALearnedScaleStartsAsTheFixedOne) {
  const at::Tensor x = Normal({2, 40, 16}, 6);
  const BuiltMixer learned = Attention({{"cos_scale", 7.0}, {"cos_scale_learned", true}});
  // its logarithm is a parameter in fp32
  EXPECT_TRUE(Close(learned.Run(x), Attention({{"cos_scale", 7.0}}).Run(x), 1e-6));
}

TEST(QueryScale, SaysWhatDoesNotFit) {
  const auto problem = [](const Options& options) {
    const auto lines = MixerConfig("softmax", options).Resolve({.model_dim = 16, .num_layers = 1});
    return lines.empty() ? "" : lines[0];
  };
  EXPECT_NE(problem({{"query_scale", "info"}}).find("query_scale_length 0; the training length"),
            std::string::npos);
  EXPECT_NE(problem({{"query_scale_length", int64_t{5}}}).find("0 would work"), std::string::npos);
  EXPECT_NE(problem({{"cos_scale_learned", true}}).find("cos_scale"), std::string::npos);
  EXPECT_NE(problem({{"window", int64_t{5}}, {"block", int64_t{5}}}).find("one of them"),
            std::string::npos);
  EXPECT_NE(problem({{"sinks", int64_t{5}}}).find("without a window"), std::string::npos);
}

}  // namespace
}  // namespace halflife::model
