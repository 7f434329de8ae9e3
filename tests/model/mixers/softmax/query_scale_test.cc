// InfoScale and log-n: published values, and attention whose scores are cosines.
#include "model/mixers/softmax/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "model/mixers/built_mixer.h"
#include "model/positions/attention_positions.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "support/expect_error.h"

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
QueryScale Log(int64_t length) { return {.form = "log", .mode = "train", .length = length}; }

TEST(QueryScale, InfoScaleTable) {
  const std::vector<std::pair<int64_t, double>> of_128 = {
      {1, 0},          {2, 0.413777},   {8, 0.712827},    {64, 1},          {128, 1.077237},
      {256, 1.148543}, {512, 1.214970}, {1024, 1.277288}, {2048, 1.336077}, {4096, 1.391792}};
  for (const auto& [n, factor] : of_128) EXPECT_NEAR(Factor(n, Info(64, 128)), factor, 1e-6) << n;
  // The dividend itself.
  const std::vector<std::pair<int64_t, double>> dividends = {
      {2, 0.103788},   {8, 0.178799},    {64, 0.250831},   {128, 0.270204}, {256, 0.288090},
      {512, 0.304752}, {1024, 0.320383}, {2048, 0.335129}, {4096, 0.349104}};
  const double of_length = std::sqrt(1 - std::pow(64, -2.0 / 128));
  for (const auto& [n, dividend] : dividends)
    EXPECT_NEAR(Factor(n, Info(64, 128)) * of_length, dividend, 1e-6) << n;
}

TEST(QueryScale, InfoScaleOfOtherWidthsAndLengths) {
  struct Row {
    int64_t length, dim;
    std::vector<std::pair<int64_t, double>> factors;
  };
  const std::vector<Row> rows = {
      {64, 64, {{4096, 1.370447}}},
      {64, 512, {{4096, 1.408505}}},
      {64, 768, {{4096, 1.410400}}},
      {512,
       64,
       {{1024, 1.048594}, {2048, 1.094060}, {4096, 1.136792}, {8192, 1.177108}, {32768, 1.251481}}},
      {512,
       128,
       {{1024, 1.051291}, {2048, 1.099679}, {4096, 1.145535}, {8192, 1.189160}, {32768, 1.270638}}},
      {2048, 64, {{4096, 1.039059}, {8192, 1.075908}, {32768, 1.143887}, {131072, 1.205395}}},
      {2048, 128, {{4096, 1.041700}, {8192, 1.081370}, {32768, 1.155463}, {131072, 1.223632}}}};
  for (const Row& row : rows)
    for (const auto& [n, factor] : row.factors)
      EXPECT_NEAR(Factor(n, Info(row.length, row.dim)), factor, 1e-6)
          << n << " keys, trained on " << row.length << ", of " << row.dim << " channels";
}

TEST(QueryScale, LogTable) {
  const std::vector<std::pair<int64_t, double>> factors = {
      {1, 0},          {2, 0.166667}, {8, 0.5},         {64, 1},          {128, 1.166667},
      {256, 1.333333}, {512, 1.5},    {1024, 1.666667}, {2048, 1.833333}, {4096, 2}};
  for (const auto& [n, factor] : factors) EXPECT_NEAR(Factor(n, Log(64)), factor, 1e-6) << n;
}

TEST(QueryScale, EvalOnlyNeverFlattens) {
  EXPECT_EQ(Factor(3, Info(64, 128, "eval_only")), 1);
  EXPECT_EQ(Factor(64, Info(64, 128)), 1);  // Exactly.
  EXPECT_GT(Factor(65, Info(64, 128, "eval_only")), 1);
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

// Also if the model is trained with the factor: the last query of the row sees exactly that many
// keys.
TEST(QueryScale, TheQueryOfTheTrainingLengthHasAFactorOfOne) {
  const at::Tensor x = Normal({2, 40, 16}, 1);
  const Options scaled = {
      {"query_scale", "info"}, {"query_scale_mode", "train"}, {"query_scale_length", int64_t{40}}};
  EXPECT_TRUE(
      test::BitEqual(Attention(scaled).Run(x).select(1, 39), Attention({}).Run(x).select(1, 39)));
}

// Documents and decoding are covered by mixer_conformance_test.cc.
TEST(QueryScale, LaterTokensDoNotMatterUnlessTheRowsLengthIsAsked) {
  const at::Tensor x = Normal({1, 40, 16}, 2);
  for (const char* mode : {"train", "eval_only", "fixed_len"}) {
    const BuiltMixer mixer = Attention(
        {{"query_scale", "info"}, {"query_scale_mode", mode}, {"query_scale_length", int64_t{8}}});
    const bool same = Close(mixer.Run(x.narrow(1, 0, 20)), mixer.Run(x).narrow(1, 0, 20), 1e-12);
    EXPECT_EQ(same, std::string(mode) != "fixed_len") << mode;
    EXPECT_EQ(mixer->traits().splits_rows, same) << mode;  // A rank knows only its own slice.
    EXPECT_EQ(mixer->traits().asks_row_length, !same) << mode;
  }
}

// Layers of a batch share tensors that depend on positions, so factors must be shared only by
// layers with the same scale and pattern.
TEST(QueryScale, LayersDoNotTakeEachOthersFactors) {
  const at::Tensor x = Normal({2, 60, 16}, 5);
  const auto shared = SequenceSlice::Contiguous(2, 60, 0, at::kCPU);
  for (const char* form : {"info", "log"}) {
    for (const char* mode : {"train", "eval_only", "fixed_len"}) {
      for (const int64_t length : {8, 40}) {
        for (const int64_t window : {0, 12}) {
          const BuiltMixer mixer = Attention({{"query_scale", form},
                                              {"query_scale_mode", mode},
                                              {"query_scale_length", length},
                                              {"window", window}});
          EXPECT_TRUE(test::BitEqual(mixer->Forward({.x = x, .slice = shared}).y, mixer.Run(x)))
              << form << " " << mode << " " << length << " " << window;
        }
      }
    }
  }
}

// A window that is not wider than the training length shows no more keys than training did.
TEST(QueryScale, AWindowOfTheTrainingLengthNeedsNone) {
  const at::Tensor x = Normal({2, 60, 16}, 3);
  const Options window = {{"window", int64_t{12}}};
  Options scaled = window;
  scaled.push_back({"query_scale", "info"});
  scaled.push_back({"query_scale_length", int64_t{12}});
  EXPECT_TRUE(test::BitEqual(Attention(scaled).Run(x), Attention(window).Run(x)));
}

// Compares the factor of a query with dense scores that are scaled as a whole. They are equal if
// nothing is added to the scores. With ALiBi, they are equal only with query_scale_bias. fp32.
TEST(QueryScale, IsOfTheWholeScoreWhereBiasesAreScaled) {
  constexpr int64_t kSeqLen = 50;
  const at::Tensor x = Normal({1, kSeqLen, 16}, 21, at::kFloat);
  const auto run = [&](const char* positions, bool scales_bias, at::Tensor& whole) {
    MixerConfig config("softmax", {{"num_heads", int64_t{2}},
                                   {"rope_theta", 0.0},
                                   {"query_scale", "info"},
                                   {"query_scale_mode", "train"},
                                   {"query_scale_length", int64_t{8}}});
    config.Set("query_scale_bias", scales_bias);
    const BuiltMixer mixer(config, 16, at::kFloat, 0.3, {.positions = PositionsConfig(positions)});
    const auto heads = [&](const char* name) {  // [H, T, d]
      return x[0].matmul(mixer[name].t()).view({kSeqLen, 2, 8}).transpose(0, 1);
    };
    const at::Tensor place = at::arange(kSeqLen), distance = place.unsqueeze(1) - place;
    at::Tensor scores =
        heads("q_proj.weight").matmul(heads("k_proj.weight").transpose(1, 2)) / std::sqrt(8.0);
    if (std::string(positions) == "alibi")
      scores = scores - at::tensor(AlibiSlopes(2), at::kFloat).view({2, 1, 1}) * distance;
    const at::Tensor factors = QueryScales(place + 1, Info(8, 8)).to(at::kFloat).unsqueeze(1);
    const at::Tensor p =
        (scores * factors).masked_fill(distance < 0, -std::numeric_limits<double>::infinity());
    whole = p.softmax(-1)
                .matmul(heads("v_proj.weight"))
                .transpose(0, 1)
                .flatten(1)
                .matmul(mixer["o_proj.weight"].t());
    return mixer.Run(x)[0];
  };
  at::Tensor whole;
  const at::Tensor without = run("none", false, whole);
  EXPECT_TRUE(Close(without, whole, 2e-6));
  const at::Tensor scaled = run("alibi", true, whole);
  EXPECT_TRUE(Close(scaled, whole, 2e-6));
  const at::Tensor folded = run("alibi", false, whole);
  EXPECT_FALSE(Close(folded, whole, 1e-2));
}

// Expects that no score exceeds cos_scale times the factor. If q = k, a query's own key has exactly
// this score.
void ExpectBounded(at::ScalarType dtype) {
  BuiltMixer mixer(MixerConfig("softmax", {{"num_heads", int64_t{2}},
                                           {"cos_scale", 7.0},
                                           {"query_scale", "info"},
                                           {"query_scale_mode", "train"},
                                           {"query_scale_length", int64_t{8}}}),
                   16, dtype);
  mixer.Set("k_proj.weight", mixer["q_proj.weight"]);
  const at::Tensor x = Normal({1, 40, 16}, 7, dtype);
  const auto slice = SequenceSlice::Contiguous(1, 40, 0, at::kCPU);
  int64_t calls = 0;
  const auto observe = [&](const ops::SoftmaxAttentionInputs& in,
                           const ops::SoftmaxAttentionConfig& config) {
    const at::Tensor scores =
        config.scale * in.q[0].transpose(0, 1).matmul(in.k[0].permute({1, 2, 0}));
    for (int64_t t = 0; t < 40; ++t) {
      const double most = 7 * Factor(t + 1, Info(8, 8));
      EXPECT_LE(scores.select(1, t).abs().max().item<double>(), most * (1 + 1e-6));
      EXPECT_NEAR(scores[0][t][t].item<double>(), most, 1e-6 * most);
    }
    ++calls;
  };
  mixer->Forward({.x = x, .slice = slice, .observe = observe});
  EXPECT_EQ(calls, 1);
}
TEST(CosScale, BoundsScores) {
  ExpectBounded(at::kDouble);
  ExpectBounded(at::kFloat);
}

// Only the direction of a query matters, so its gradient is orthogonal to it.
TEST(CosScale, TurnsGradients) {
  BuiltMixer learning = Attention({{"cos_scale", 7.0}, {"rope_theta", 0.0}});
  const at::Tensor weight = learning["q_proj.weight"].clone().requires_grad_();
  learning.Set("q_proj.weight", weight);
  const at::Tensor one = Normal({1, 1, 16}, 8), seen = at::cat({Normal({1, 5, 16}, 9), one}, 1);
  const at::Tensor y = learning.Run(seen).select(1, 5).sum();
  // dW = dq x^T: (W x) dW x = (q dq) |x|^2, in each head.
  const at::Tensor grad = torch::autograd::grad({y}, {weight})[0];
  const at::Tensor q = weight.detach().matmul(one[0][0]).view({2, 8}),
                   dq = grad.matmul(one[0][0]).view({2, 8});
  EXPECT_GT(dq.abs().max().item<double>(), 1e-3);
  EXPECT_LT((q * dq).sum(1).abs().max().item<double>(), 1e-9);
}

// The features are proportional to q, and so is the sum that divides them, so a factor on the query
// cancels in the output.
TEST(QueryScale, AMixerOfReluFeaturesNeedsNone) {
  BuiltMixer mixer(
      MixerConfig("linear_attention", {{"num_heads", int64_t{2}}, {"feature_map", "relu"}}), 16);
  const at::Tensor x = Normal({1, 40, 16}, 11).abs(), before = mixer.Run(x);
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 1.39);
  // The sum has 1e-10 added, and some rows are zero.
  EXPECT_TRUE(Close(mixer.Run(x), before, 1e-6));
}

TEST(CosScale, SizesOfQueriesAndKeysDoNotMatter) {
  BuiltMixer mixer = Attention({{"cos_scale", 7.0}});
  const at::Tensor x = Normal({2, 40, 16}, 4), before = mixer.Run(x);
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 3);
  mixer.Set("k_proj.weight", mixer["k_proj.weight"] * 0.2);
  EXPECT_TRUE(Close(mixer.Run(x), before, 1e-9));  // Lengths of 1e-6 still count.
}

// Keys with any directions: at a large scale a query returns the value of the nearest key, at a
// small scale the mean of all visible values.
TEST(CosScale, IsTheNearestKeysValueOrTheMeanOfAll) {
  const at::Tensor x = Normal({1, 12, 16}, 15);
  const auto of_scale = [&](double scale) {
    return Attention({{"cos_scale", scale}, {"rope_theta", 0.0}}).Run(x)[0];
  };
  const BuiltMixer mixer = Attention({{"rope_theta", 0.0}});
  const auto heads = [&](const char* name) {  // [H, T, d]
    return x[0].matmul(mixer[name].t()).view({12, 2, 8}).transpose(0, 1);
  };
  const auto unit = [](const at::Tensor& y) { return y / y.norm(2, -1, true); };
  const at::Tensor cosines =
      unit(heads("q_proj.weight")).matmul(unit(heads("k_proj.weight")).transpose(1, 2));
  const at::Tensor v = heads("v_proj.weight"), seen = at::ones({12, 12}, at::kDouble).tril();
  const auto out = [&](const at::Tensor& weights) {
    return weights.matmul(v).transpose(0, 1).flatten(1).matmul(mixer["o_proj.weight"].t());
  };
  const at::Tensor best = cosines.masked_fill(seen == 0, -2).argmax(-1, /*keepdim=*/true);
  const at::Tensor nearest = at::zeros_like(cosines).scatter_(2, best, 1.0);
  EXPECT_TRUE(Close(of_scale(1e7), out(nearest), 1e-9));
  EXPECT_TRUE(Close(of_scale(1e-12), out(seen / seen.sum(1, true)), 1e-11));
}

TEST(CosScale, IsAMeanWithoutAQueryAndAnArgmaxAtLarge) {
  const at::Tensor x = Normal({1, 12, 16}, 5);
  BuiltMixer mixer = Attention({{"cos_scale", 1e4}});
  // Returns each token's own value.
  const BuiltMixer identity = Attention({{"window", int64_t{1}}});
  // q = k, so the best cosine is that of the query's own key.
  mixer.Set("k_proj.weight", mixer["q_proj.weight"]);
  EXPECT_TRUE(Close(mixer.Run(x), identity.Run(x), 1e-6));
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 0);
  const at::Tensor counts = at::arange(1, 13, at::kDouble).view({1, 12, 1});
  EXPECT_TRUE(Close(mixer.Run(x), identity.Run(x).cumsum(1) / counts, 1e-12));
  // The gradient of a zero vector is finite, too.
  const at::Tensor weight = mixer["q_proj.weight"].clone().requires_grad_();
  mixer.Set("q_proj.weight", weight);
  const at::Tensor grad = torch::autograd::grad({mixer.Run(x).sum()}, {weight})[0];
  EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST(CosScale, ALearnedScaleStartsAsTheFixedOne) {
  const at::Tensor x = Normal({2, 40, 16}, 6);
  const BuiltMixer learned = Attention({{"cos_scale", 7.0}, {"cos_scale_learned", true}});
  // Its logarithm is an fp32 parameter.
  EXPECT_TRUE(Close(learned.Run(x), Attention({{"cos_scale", 7.0}}).Run(x), 1e-6));
}

TEST(QueryScale, SaysWhatDoesNotFit) {
  const auto problem = [](const Options& options) {
    const auto lines = MixerConfig("softmax", options).Resolve({.model_dim = 16, .num_layers = 1});
    return lines.empty() ? "" : lines[0];
  };
  EXPECT_NE(
      problem({{"query_scale", "info"}}).find("query_scale_length 0. Use the training length"),
      std::string::npos);
  EXPECT_NE(problem({{"query_scale_length", int64_t{5}}}).find("Use 0."), std::string::npos);
  EXPECT_NE(problem({{"cos_scale_learned", true}}).find("cos_scale"), std::string::npos);
  EXPECT_NE(problem({{"query_scale_bias", true}}).find("query_scale_bias without query_scale"),
            std::string::npos);
  EXPECT_HL_ERROR(Attention({{"query_scale", "info"},
                             {"query_scale_length", int64_t{5}},
                             {"query_scale_bias", true}}),
                  ExitCode::kUsage, "positions that add no bias to scores", "alibi");
  EXPECT_NE(problem({{"window", int64_t{5}}, {"block", int64_t{5}}}).find("one of them"),
            std::string::npos);
  EXPECT_NE(problem({{"sinks", int64_t{5}}}).find("without a window"), std::string::npos);
}

}  // namespace
}  // namespace halflife::model
