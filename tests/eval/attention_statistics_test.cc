// The statistics of attention equal their definitions on whole matrices of scores.
#include "eval/attention_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "dist/local_communicator.h"
#include "model/mixers/built_mixer.h"
#include "model/positions/positions.h"
#include "ops/random_tensors.h"
#include "ops/rows/rotary.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "support/expect_error.h"

namespace halflife::eval {
namespace {

using ops::SoftmaxAttentionConfig;
using ops::SoftmaxAttentionInputs;
using test::Normal;

TEST(AttentionResolution, HasTheGoldenValues) {
  const auto of = [](const std::vector<double>& scores) { return AttentionResolution(scores); };
  EXPECT_NEAR(of({0, 1, 2}), -0.116838918, 1e-9);
  EXPECT_NEAR(of({0, -1, -2}), 0.317601107, 1e-9);
  EXPECT_NEAR(of({2, 0}), 0.670809907, 1e-9);
  EXPECT_NEAR(of({702, 700}), 0.670809907, 1e-9);  // Adding a constant changes nothing.
  EXPECT_NEAR(of({0, std::log(3.0)}), -0.125, 1e-12);
  EXPECT_EQ(of(std::vector<double>(50, 0.7)), 0);
  EXPECT_EQ(of({}), 0);
}

// sum of (Delta p)^2 = R(s) + R(reversed s).
TEST(AttentionResolution, AndItsMirrorMakeUpTheSquaredSteps) {
  std::vector<double> scores;
  for (int i = 0; i < 40; ++i) scores.push_back(2 * std::sin(1.3 * i) - 0.05 * i);
  double sum = 0, squares = 0;
  for (const double score : scores) sum += std::exp(score);
  for (size_t i = 0; i + 1 < scores.size(); ++i)
    squares += std::pow((std::exp(scores[i]) - std::exp(scores[i + 1])) / sum, 2);
  const std::vector<double> mirrored(scores.rbegin(), scores.rend());
  EXPECT_NEAR(AttentionResolution(scores) + AttentionResolution(mirrored), squares, 1e-14);
}

// R = (p_0^2 - p_(N-1)^2 + sum of (Delta p)^2) / 2, so R is within [-1/8, 1).
TEST(AttentionResolution, IsItsIdentityAndWithinItsBounds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int64_t num_scores = 2 + static_cast<int64_t>(seed % 30);
    const at::Tensor scores = Normal({num_scores}, seed) * (0.1 * static_cast<double>(seed));
    const at::Tensor p = scores.softmax(0);
    const double first = p[0].item<double>(), last = p[num_scores - 1].item<double>(),
                 steps = p.diff().square().sum().item<double>();
    const double got =
        AttentionResolution({scores.const_data_ptr<double>(), static_cast<size_t>(num_scores)});
    EXPECT_NEAR(got, (first * first - last * last + steps) / 2, 1e-14) << seed;
    EXPECT_GE(got, -0.125) << seed;
    EXPECT_LT(got, 1) << seed;
  }
}

// Scores of equal channels by distance, sum_i cos(n theta_i) e^(rate_i n): the effect of only
// rotation and xPos, for heads of width 64.
TEST(AttentionResolution, RotationAndXposHaveTheGoldenValues) {
  const std::vector<double> theta = ops::RotaryFrequencies(64, 10000);
  model::ParameterSet parameters;
  const model::PartContext context = {.sizes = {.model_dim = 64, .num_layers = 1},
                                      .parameters = &parameters};
  const std::vector<double> rates =
      MakePositions(model::PositionsConfig("xpos"), context)
          ->OfLayer({.part = context, .num_heads = 1, .head_dim = 64, .rope_theta = 10000})
          ->decay_rates();
  const auto curve = [&](bool xpos, int64_t length) {
    std::vector<double> scores(static_cast<size_t>(length));
    for (size_t n = 0; n < scores.size(); ++n)
      for (size_t i = 0; i < theta.size(); ++i)
        scores[n] += std::cos(static_cast<double>(n) * theta[i]) *
                     (xpos ? std::exp(rates[i] * static_cast<double>(n)) : 1);
    return scores;
  };
  const std::vector<double> rope = curve(false, 1024), xpos = curve(true, 1024);
  EXPECT_NEAR(rope[0], 32, 1e-12);
  EXPECT_NEAR(rope[1], 30.916832, 5e-7);
  EXPECT_NEAR(rope[512], 5.931801, 5e-7);
  EXPECT_NEAR(rope[1023], 7.537977, 5e-7);
  EXPECT_NEAR(xpos[1], 30.886895, 5e-7);
  EXPECT_NEAR(xpos[512], 6.292264, 5e-7);
  EXPECT_NEAR(xpos[1023], 5.726067, 5e-7);
  const auto of_eighths = [&](bool is_xpos, int64_t length) {
    std::vector<double> scores = curve(is_xpos, length);
    for (double& score : scores) score /= 8;
    return AttentionResolution(scores);
  };
  EXPECT_NEAR(AttentionResolution(rope), 0.41163983, 5e-9);
  EXPECT_NEAR(AttentionResolution(xpos), 0.42069212, 5e-9);
  // For twice the distances R is the same, except for the weights of the farthest keys.
  EXPECT_NEAR(AttentionResolution(curve(false, 2048)), 0.41163983, 5e-8);
  EXPECT_NEAR(AttentionResolution(curve(true, 2048)), 0.42069212, 5e-8);
  EXPECT_NEAR(of_eighths(false, 1024), 1.28438e-4, 5e-10);
  EXPECT_NEAR(of_eighths(true, 1024), 1.48370e-4, 5e-10);
  EXPECT_NEAR(of_eighths(false, 2048), 5.85514e-5, 5e-11);
  EXPECT_NEAR(of_eighths(true, 2048), 6.76687e-5, 5e-11);
}

AttentionSummary Of(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config) {
  AttentionSummary summary;
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    AttentionStatistics statistics(/*num_layers=*/2);
    statistics.Observer()(1, inputs, config);
    summary = statistics.Summarise(control);
  });
  return summary;
}

// Without content, ALiBi's scores are -m n, and R = (1 - r)^2 / (1 + r), r = e^-m, up to r^N.
TEST(AttentionStatistics, AlibiWithoutContentHasTheClosedForm) {
  const int64_t heads = 2, seq_len = 600;
  const at::Tensor zeros = at::zeros({1, seq_len, heads, 4}, at::kDouble);
  const std::vector<double> slopes = {0.25, 0.0625};
  at::Tensor bias = at::zeros({heads, seq_len}, at::kDouble);
  double want = 0;
  for (int64_t head = 0; head < heads; ++head) {
    bias[head] = -slopes[head] * at::arange(seq_len, at::kDouble);
    const double r = std::exp(-slopes[head]);
    want += (1 - r) * (1 - r) / (1 + r) / heads;
  }
  const AttentionSummary summary = Of({.q = zeros,
                                       .k = zeros,
                                       .v = zeros,
                                       .bias = bias,
                                       .positions = at::arange(seq_len).unsqueeze(0)},
                                      {});
  EXPECT_NEAR(summary.resolution, want, 1e-12);
  EXPECT_TRUE(std::isnan(summary.resolution_by_layer[0])) << "no attention there";
  EXPECT_NEAR(summary.resolution_by_layer[1], want, 1e-12);
}

// Returns the summary of a layer with `heads` heads without content, and with ALiBi's slopes.
AttentionSummary OfAlibi(int64_t heads, int64_t seq_len) {
  test::BuiltMixer mixer(model::MixerConfig("softmax", {{"num_heads", heads}, {"rope_theta", 0.0}}),
                         heads, at::kDouble, 0.3, {.positions = model::PositionsConfig("alibi")});
  mixer.Set("q_proj.weight", at::zeros({heads, heads}));
  AttentionSummary summary;
  const auto slice = model::SequenceSlice::Contiguous(1, seq_len, 0, at::kCPU);
  mixer->Forward(
      {.x = Normal({1, seq_len, heads}, 1),
       .slice = slice,
       .observe = [&](const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config) {
         summary = Of(inputs, config);
       }});
  return summary;
}

// The mean over heads of content-free ALiBi in rows of 1,024.
TEST(AttentionStatistics, AlibisOwnSlopesHaveTheGoldenValues) {
  EXPECT_NEAR(OfAlibi(8, 1024).resolution, 0.01671775, 5e-9);
  EXPECT_NEAR(OfAlibi(12, 1024).resolution, 0.03133185, 5e-9);
  EXPECT_NEAR(OfAlibi(16, 1024).resolution, 0.02357843, 5e-9);
}

// The bias slope j instead of -slope (i - j) gives each row the same weights, but halves the
// decrease of the mean score with the distance: resolution depends on the scores as they are
// defined.
TEST(AttentionStatistics, AConstantOfEachRowIsNotOfThem) {
  constexpr int64_t kSeqLen = 200;
  constexpr double kSlope = 0.25;
  const auto of_slope = [](double slope) {
    std::vector<double> scores;
    for (int64_t n = 0; n < kSeqLen; ++n) scores.push_back(-slope * static_cast<double>(n));
    return AttentionResolution(scores);
  };
  const at::Tensor place = at::arange(kSeqLen, at::kDouble).view({1, kSeqLen, 1, 1});
  const at::Tensor ones = at::ones_like(place), positions = at::arange(kSeqLen).unsqueeze(0);
  const at::Tensor bias = -kSlope * at::arange(kSeqLen, at::kDouble).unsqueeze(0);
  const AttentionSummary defined =
      Of({.q = ones * 0, .k = ones, .v = ones, .bias = bias, .positions = positions}, {});
  const AttentionSummary shifted =
      Of({.q = ones, .k = kSlope * place, .v = ones, .positions = positions}, {});
  EXPECT_NEAR(shifted.buckets.back().entropy, defined.buckets.back().entropy, 1e-11);
  EXPECT_NEAR(defined.resolution, of_slope(kSlope), 1e-12);
  EXPECT_NEAR(shifted.resolution, of_slope(kSlope / 2), 1e-12);
  EXPECT_GT(defined.resolution, 1.5 * shifted.resolution);
}

// Equal scores: the entropy is ln n, each key has weight 1 / n, and distances cannot be
// distinguished.
TEST(AttentionStatistics, EqualScoresHaveTheLargestEntropy) {
  const at::Tensor zeros = at::zeros({1, 9, 1, 4}, at::kDouble);
  const AttentionSummary summary =
      Of({.q = zeros, .k = zeros, .v = zeros, .positions = at::arange(9).unsqueeze(0)}, {});
  EXPECT_EQ(summary.resolution, 0);
  ASSERT_EQ(summary.buckets.size(), 4u);  // 1; 2, 3; 4 to 7; 8, 9
  const AttentionBucket& last = summary.buckets[3];
  EXPECT_EQ(last.first_keys, 8);
  EXPECT_EQ(last.num_queries, 2);
  EXPECT_NEAR(last.entropy, (std::log(8.0) + std::log(9.0)) / 2, 1e-12);
  EXPECT_NEAR(last.relative_entropy, 1, 1e-12);
  EXPECT_NEAR(last.largest, (1.0 / 8 + 1.0 / 9) / 2, 1e-12);
  EXPECT_EQ(summary.buckets[0].relative_entropy, 0);
}

// Expects the statistics by their definition. A query sees the keys whose distances satisfy `sees`.
void ExpectDefinition(const ops::KeyPattern& pattern, int64_t seq_len,
                      const std::function<bool(int64_t position, int64_t distance)>& sees) {
  const int64_t batch = 2, heads = 2, dim = 4, second = 300;
  SoftmaxAttentionInputs in = {.q = Normal({batch, seq_len, heads, dim}, 1),
                               .k = Normal({batch, seq_len, heads, dim}, 2),
                               .v = Normal({batch, seq_len, heads, dim}, 3),
                               .positions = at::arange(seq_len).repeat({batch, 1})};
  in.positions.narrow(1, second, seq_len - second) -= second;
  const SoftmaxAttentionConfig config = {.scale = 0.7, .pattern = pattern};
  const AttentionSummary summary = Of(in, config);
  const auto q = in.q.accessor<double, 4>(), k = in.k.accessor<double, 4>();
  std::vector<double> sums(heads * seq_len), counts(seq_len);
  double entropy = 0, largest = 0, queries = 0;  // For queries that see 16 to 31 keys.
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < seq_len; ++t) {
        const int64_t position = in.positions[b][t].item<int64_t>();
        std::vector<double> weights;
        double sum = 0;
        for (int64_t n = 0; n <= position; ++n) {
          if (!sees(position, n)) continue;
          double score = 0;
          for (int64_t c = 0; c < dim; ++c) score += 0.7 * q[b][t][h][c] * k[b][t - n][h][c];
          sums[h * seq_len + n] += score;
          counts[n] += h == 0;
          weights.push_back(std::exp(score));
          sum += weights.back();
        }
        if (weights.size() < 16 || weights.size() > 31) continue;
        for (const double weight : weights) entropy -= weight / sum * std::log(weight / sum);
        largest += *std::ranges::max_element(weights) / sum;
        queries += 1;
      }
  double resolution = 0;
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<double> scores;
    for (int64_t n = 0; n < seq_len && counts[n] > 0; ++n)
      scores.push_back(sums[h * seq_len + n] / counts[n]);
    resolution += AttentionResolution(scores) / heads;
  }
  EXPECT_NEAR(summary.resolution, resolution, 1e-12);
  ASSERT_GE(summary.buckets.size(), 5u);
  EXPECT_EQ(summary.buckets[4].first_keys, 16);
  EXPECT_EQ(summary.buckets[4].num_queries, static_cast<int64_t>(queries));
  EXPECT_NEAR(summary.buckets[4].entropy, entropy / queries, 1e-11);
  EXPECT_NEAR(summary.buckets[4].largest, largest / queries, 1e-11);
  // Adding a constant to every score changes nothing.
  in.bias = at::full({heads, seq_len}, 3.7, at::kDouble);
  const AttentionSummary more = Of(in, config);
  EXPECT_NEAR(more.resolution, resolution, 1e-12);
  EXPECT_NEAR(more.buckets[4].entropy, entropy / queries, 1e-11);
}

// Rows of two documents, longer than a block of queries, with even and odd numbers of tokens,
// compared with loops.
TEST(AttentionStatistics, AreTheDefinition) {
  for (const int64_t seq_len : {700, 577}) {
    SCOPED_TRACE(seq_len);
    ExpectDefinition({}, seq_len, [](int64_t, int64_t) { return true; });
    ExpectDefinition({.window = 30}, seq_len, [](int64_t, int64_t n) { return n < 30; });
    ExpectDefinition({.block = 21}, seq_len, [](int64_t position, int64_t n) {
      return position / 21 - (position - n) / 21 <= 1;
    });
  }
}

// The sums over ranks, including a rank without windows.
TEST(AttentionStatistics, RanksAddUp) {
  const auto part = [](uint64_t seed) {
    return SoftmaxAttentionInputs{.q = Normal({1, 20, 2, 4}, seed),
                                  .k = Normal({1, 20, 2, 4}, seed + 1),
                                  .v = Normal({1, 20, 2, 4}, seed + 2),
                                  .positions = at::arange(20).unsqueeze(0)};
  };
  const auto summarise = [&](int world) {
    AttentionSummary summary;
    dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
      AttentionStatistics statistics(1);
      for (const uint64_t window : {0, 1})
        if (static_cast<int>(window) % world == control.rank())
          statistics.Observer()(0, part(10 * window), {.scale = 2});
      const AttentionSummary own = statistics.Summarise(control);
      if (control.rank() == 0) summary = own;
    });
    return summary;
  };
  const AttentionSummary one = summarise(1), three = summarise(3);
  EXPECT_NEAR(three.resolution, one.resolution, 1e-14);
  EXPECT_NEAR(three.buckets.back().entropy, one.buckets.back().entropy, 1e-13);
  EXPECT_EQ(three.buckets.back().num_queries, one.buckets.back().num_queries);
}

TEST(AttentionStatistics, ModelsWithoutAttentionAreRefused) {
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    EXPECT_HL_ERROR(AttentionStatistics(2).Summarise(control), ExitCode::kUsage,
                    "need a layer of softmax attention, and this model has none");
  });
}

}  // namespace
}  // namespace halflife::eval
