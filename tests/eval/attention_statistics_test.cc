// What is told of attention, against its definition over whole matrices of scores.
#include "eval/attention_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dist/local_communicator.h"
#include "kernels/random_tensors.h"
#include "kernels/softmax_attention/softmax_attention.h"
#include "support/expect_error.h"

namespace halflife::eval {
namespace {

using kernels::SoftmaxAttentionConfig;
using kernels::SoftmaxAttentionInputs;
using test::Normal;

TEST(AttentionResolution, HasTheGoldenValues) {
  const auto of = [](const std::vector<double>& scores) { return AttentionResolution(scores); };
  EXPECT_NEAR(of({0, 1, 2}), -0.116838918, 1e-9);
  EXPECT_NEAR(of({0, -1, -2}), 0.317601107, 1e-9);
  EXPECT_NEAR(of({2, 0}), 0.670809907, 1e-9);
  EXPECT_NEAR(of({702, 700}), 0.670809907, 1e-9);  // a constant more changes nothing
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

AttentionSummary Of(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config) {
  AttentionSummary summary;
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    AttentionStatistics statistics(/*num_layers=*/2);
    statistics.Observer()(1, inputs, config);
    summary = statistics.Summarise(control);
  });
  return summary;
}

// Without content ALiBi's scores are -m n, and R = (1 - r)^2 / (1 + r), r = e^-m, up to r^N.
TEST(AttentionStatistics, OfAlibiWithoutContentIsTheClosedForm) {
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

// Equal scores: entropy ln n, each key 1 / n, and no distance is told from another.
TEST(AttentionStatistics, OfEqualScoresIsTheMost) {
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

// Random scores in a window, rows of two documents, longer than a block of queries, against loops.
TEST(AttentionStatistics, AreTheDefinition) {
  const int64_t batch = 2, seq_len = 700, heads = 2, dim = 4, window = 30, second = 300;
  SoftmaxAttentionInputs in = {.q = Normal({batch, seq_len, heads, dim}, 1),
                               .k = Normal({batch, seq_len, heads, dim}, 2),
                               .v = Normal({batch, seq_len, heads, dim}, 3),
                               .positions = at::arange(seq_len).repeat({batch, 1})};
  in.positions.narrow(1, second, seq_len - second) -= second;
  const SoftmaxAttentionConfig config = {.scale = 0.7, .pattern = {.window = window}};
  const AttentionSummary summary = Of(in, config);
  const auto q = in.q.accessor<double, 4>(), k = in.k.accessor<double, 4>();
  std::vector<double> sums(heads * window), counts(window);
  double entropy = 0, largest = 0, queries = 0;  // of queries that see 16 to 31 keys
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < seq_len; ++t) {
        const int64_t position = in.positions[b][t].item<int64_t>();
        const int64_t num_keys = std::min(position + 1, window);
        std::vector<double> weights;
        double sum = 0;
        for (int64_t n = 0; n < num_keys; ++n) {
          double score = 0;
          for (int64_t c = 0; c < dim; ++c) score += 0.7 * q[b][t][h][c] * k[b][t - n][h][c];
          sums[h * window + n] += score;
          counts[n] += h == 0;
          weights.push_back(std::exp(score));
          sum += weights.back();
        }
        if (num_keys < 16) continue;
        for (const double weight : weights) entropy -= weight / sum * std::log(weight / sum);
        largest += *std::ranges::max_element(weights) / sum;
        queries += 1;
      }
  double resolution = 0;
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<double> scores;
    for (int64_t n = 0; n < window; ++n) scores.push_back(sums[h * window + n] / counts[n]);
    resolution += AttentionResolution(scores) / heads;
  }
  EXPECT_NEAR(summary.resolution, resolution, 1e-12);
  ASSERT_EQ(summary.buckets.size(), 5u);
  EXPECT_EQ(summary.buckets[4].num_queries, static_cast<int64_t>(queries));
  EXPECT_NEAR(summary.buckets[4].entropy, entropy / queries, 1e-11);
  EXPECT_NEAR(summary.buckets[4].largest, largest / queries, 1e-11);
}

// Ranks add up their windows, one that had none included.
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

TEST(AttentionStatistics, OfNoAttentionAreRefused) {
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    EXPECT_HL_ERROR(AttentionStatistics(2).Summarise(control), ExitCode::kUsage,
                    "no layer of softmax attention");
  });
}

}  // namespace
}  // namespace halflife::eval
