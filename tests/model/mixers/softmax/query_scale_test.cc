// InfoScale and log-n against worked values, the entropies that they keep, and attention whose
// scores are cosines.
#include "model/mixers/softmax/query_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kernels/rotary/rotary.h"
#include "kernels/softmax_attention/softmax_attention.h"
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

// Increasing, concave in ln n, below 1 / I(n_tr); the square root of the logarithm for wide
// heads.
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

// Mean entropies of softmax over s times the cosines of random directions of 128 channels.
double EntropyOfCosines(int64_t n, double s) {
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, -1, true); };
  const at::Tensor q = unit(Normal({512, 128}, 7)), k = unit(Normal({n, 128}, 8));
  const at::Tensor p = (q.matmul(k.t()) * s * Factor(n, Info(64, 128))).softmax(-1);
  return -(p * (p + 1e-300).log()).sum(-1).mean().item<double>();
}
// At s = 128 they were worked out as 0.396 and 0.484; queries share their keys here, whose draw
// moves the mean by some 0.05 at 64 keys.
TEST(QueryScale, InfoScaleHoldsTheEntropyOfSharpCosines) {
  const double few = EntropyOfCosines(64, 128), many = EntropyOfCosines(4096, 128);
  EXPECT_NEAR(few, 0.396, 0.06);
  EXPECT_NEAR(many, 0.484, 0.06);
  EXPECT_LT(std::abs(many - few), 0.15);
}

// The larger the factor, the smaller the entropy of the same scores.
TEST(QueryScale, EntropiesAreOrderedByTheFactors) {
  const QueryScale log = {.form = "log", .mode = "train", .length = 64, .dim = 128};
  for (const int64_t n : {128, 1024, 4096}) {
    EXPECT_LT(Entropy(n, Factor(n, log)), Entropy(n, Factor(n, Info(64, 128)))) << n;
    EXPECT_LT(Entropy(n, Factor(n, Info(64, 128))), Entropy(n, 1)) << n;
  }
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

// What documents and decode get is the mixers' conformance.
TEST(QueryScale, LaterTokensDoNotMatterUnlessTheRowsLengthIsAsked) {
  const at::Tensor x = Normal({1, 40, 16}, 2);
  for (const char* mode : {"train", "eval_only", "fixed_len"}) {
    const BuiltMixer mixer = Attention(
        {{"query_scale", "info"}, {"query_scale_mode", mode}, {"query_scale_length", int64_t{8}}});
    const bool same = Close(mixer.Run(x.narrow(1, 0, 20)), mixer.Run(x).narrow(1, 0, 20), 1e-12);
    EXPECT_EQ(same, std::string(mode) != "fixed_len") << mode;
    EXPECT_EQ(mixer->traits().splits_rows, same) << mode;  // a rank knows its slice alone
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

// No score is beyond cos_scale times the factor, a query's own key has just that where q = k;
// and as only the direction of a query counts, its gradient is at right angles to it.
TEST(CosScale, BoundsScoresAndTurnsGradients) {
  BuiltMixer mixer = Attention({{"cos_scale", 7.0},
                                {"query_scale", "info"},
                                {"query_scale_mode", "train"},
                                {"query_scale_length", int64_t{8}}});
  mixer.Set("k_proj.weight", mixer["q_proj.weight"]);
  const at::Tensor x = Normal({1, 40, 16}, 7);
  const auto slice = SequenceSlice::Contiguous(1, 40, 0, at::kCPU);
  int64_t calls = 0;
  const auto observe = [&](const kernels::SoftmaxAttentionInputs& in,
                           const kernels::SoftmaxAttentionConfig& config) {
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

  BuiltMixer learning = Attention({{"cos_scale", 7.0}, {"rope_theta", 0.0}});
  const at::Tensor weight = learning["q_proj.weight"].clone().requires_grad_();
  learning.Set("q_proj.weight", weight);
  const at::Tensor one = Normal({1, 1, 16}, 8), seen = at::cat({Normal({1, 5, 16}, 9), one}, 1);
  const at::Tensor y = learning.Run(seen).select(1, 5).sum();
  // dW = dq x^T: (W x) dW x = (q dq) |x|^2, in each head
  const at::Tensor grad = torch::autograd::grad({y}, {weight})[0];
  const at::Tensor q = weight.detach().matmul(one[0][0]).view({2, 8}),
                   dq = grad.matmul(one[0][0]).view({2, 8});
  EXPECT_GT(dq.abs().max().item<double>(), 1e-3);
  EXPECT_LT((q * dq).sum(1).abs().max().item<double>(), 1e-9);
}

// A rotation keeps lengths, so that a vector may be normed before or after.
TEST(CosScale, NormsAndRotationsCommute) {
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, -1, true); };
  const at::Tensor x = Normal({1, 30, 2, 8}, 10);
  const auto table = kernels::MakeRotaryTable(at::arange(30).unsqueeze(0), 8, 10000);
  EXPECT_TRUE(Close(kernels::ApplyRotary(unit(x), table), unit(kernels::ApplyRotary(x, table)),
                    1e-6));  // tables of fp32
}

// Of one content in all tokens, with the same energy in each of 64 pairs, the weight within 64
// tokens of 8,191 seen both ways grows with s.
TEST(CosScale, ALargerScaleIsANarrowerWindow) {
  const at::Tensor distance = at::arange(-4095, 4096, at::kDouble);
  const auto theta = kernels::RotaryFrequencies(128, 10000);
  const at::Tensor cosines =
      at::cos(distance.unsqueeze(1) * at::tensor(theta, at::kDouble)).mean(1);
  const std::vector<std::pair<int64_t, double>> worked = {
      {0, 1}, {1, .970}, {2, .897}, {4, .759}, {8, .714}, {64, .477}, {1024, .204}};
  for (const auto& [n, cosine] : worked)
    EXPECT_NEAR(cosines[4095 + n].item<double>(), cosine, 1e-3) << n;
  const auto near = [&](double s) {
    return (s * cosines).softmax(0).narrow(0, 4095 - 64, 129).sum().item<double>();
  };
  EXPECT_NEAR(near(8), 0.419, 1e-3);
  EXPECT_NEAR(near(16), 0.984, 1e-3);
  for (const double s : {1, 2, 4, 8, 16, 32}) EXPECT_GT(near(2 * s), near(s)) << s;
}

// With features that grow in proportion to q, and a sum of the same that divides, a factor of
// the query is none of the output.
TEST(QueryScale, AMixerOfReluFeaturesNeedsNone) {
  BuiltMixer mixer(
      MixerConfig("linear_attention", {{"num_heads", int64_t{2}}, {"feature_map", "relu"}}), 16);
  const at::Tensor x = Normal({1, 40, 16}, 11).abs(), before = mixer.Run(x);
  mixer.Set("q_proj.weight", mixer["q_proj.weight"] * 1.39);
  EXPECT_TRUE(Close(mixer.Run(x), before, 1e-6));  // the sum has 1e-10 added, or a row is nothing
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
