#include "eval/attention_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log.h>
#include <ATen/ops/where.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/softmax_attention/composed.h"

namespace halflife::eval {
namespace {

// Returns attention weights [B, H, T, S] over the visible keys, 0 elsewhere. Rows without a visible
// key are 0.
at::Tensor Probabilities(const at::Tensor& scores, const at::Tensor& visible) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const at::Tensor none = visible.any(3, true).logical_not();
  return scores.masked_fill(visible.logical_not(), kNever)
      .masked_fill(none, 0.0)
      .softmax(-1)
      .masked_fill(none, 0.0);
}

// Adds the statistics of all queries to `buckets` [kNumBuckets, kNumSums], grouped by the number of
// keys that a query sees.
void AddQueries(const at::Tensor& probabilities, const at::Tensor& num_keys, double* buckets) {
  const at::Tensor entropy = -at::xlogy(probabilities, probabilities).sum(-1);  // [B, H, T]
  const at::Tensor most = at::log(num_keys.to(at::kDouble)).unsqueeze(1);       // [B, 1, T]
  const at::Tensor relative = at::where(most > 0, entropy / most, at::zeros_like(entropy));
  const at::Tensor largest = std::get<0>(probabilities.max(-1));
  const auto per_query = [](const at::Tensor& x) { return x.sum(1).flatten().cpu().contiguous(); };
  const at::Tensor sums[] = {per_query(entropy), per_query(relative), per_query(largest)};
  const at::Tensor keys = num_keys.flatten().cpu().contiguous();
  const auto num_heads = static_cast<double>(probabilities.size(1));
  for (int64_t i = 0; i < keys.numel(); ++i) {
    const auto n = static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i]);
    if (n == 0) continue;
    double* const sum = buckets + 4 * (std::bit_width(n) - 1);
    sum[0] += num_heads;
    for (int kind = 0; kind < 3; ++kind) sum[1 + kind] += sums[kind].const_data_ptr<double>()[i];
  }
}

std::vector<double> Reduced(std::vector<double> values, dist::ReduceOp op,
                            dist::Communicator& control) {
  if (values.empty()) return values;
  control
      .AllReduce(Ref(values.data(), static_cast<int64_t>(values.size())), op,
                 {"attention_statistics", 0}, nullptr)
      .WaitHost();
  return values;
}

// Returns the mean score of each distance from 0 up to the first distance without pairs.
std::vector<double> MeanScores(std::span<const double> sums, std::span<const double> counts) {
  std::vector<double> means;
  for (size_t n = 0; n < counts.size() && counts[n] > 0; ++n) means.push_back(sums[n] / counts[n]);
  return means;
}

double Mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

double AttentionResolution(std::span<const double> scores) {
  if (scores.empty()) return 0;
  const double most = *std::ranges::max_element(scores);
  double sum = 0, resolution = 0;
  for (const double score : scores) sum += std::exp(score - most);
  for (size_t i = 0; i + 1 < scores.size(); ++i) {
    const double p = std::exp(scores[i] - most) / sum, next = std::exp(scores[i + 1] - most) / sum;
    resolution += p * (p - next);
  }
  return resolution;
}

AttentionStatistics::AttentionStatistics(int64_t num_layers)
    : layers_(static_cast<size_t>(num_layers)), buckets_(kNumBuckets * kNumSums) {}

decltype(model::ForwardContext::observe) AttentionStatistics::Observer() {
  return [this](int64_t layer, const ops::SoftmaxAttentionInputs& inputs,
                const ops::SoftmaxAttentionConfig& config) {
    if (!config.squared_relu) Add(layers_[static_cast<size_t>(layer)], inputs, config);
  };
}

void AttentionStatistics::Add(Layer& layer, const ops::SoftmaxAttentionInputs& inputs,
                              const ops::SoftmaxAttentionConfig& config) {
  const c10::AutoGradMode no_grad(false);
  const int64_t num_heads = inputs.q.size(2), num_distances = inputs.k.size(1);
  HL_CHECK(layer.num_heads == 0 ||
               (layer.num_heads == num_heads && layer.num_distances == num_distances),
           "attention statistics: a row has ", num_distances, " keys, but earlier rows had ",
           layer.num_distances);
  const at::TensorOptions wide = at::TensorOptions(inputs.q.device()).dtype(at::kDouble);
  at::Tensor sums = at::zeros({num_heads, num_distances}, wide),
             counts = at::zeros({1, num_distances}, wide);
  ops::ForScoreBlocks(inputs, config, [&](const ops::ScoreBlock& block) {
    const at::Tensor scores = block.scores.to(at::kDouble);
    AddQueries(Probabilities(scores, block.visible), block.visible.sum(3).squeeze(1),
               buckets_.data());
    // Keys after their query count at no distance.
    const at::Tensor counted = block.visible.logical_and(block.distances >= 0);
    const at::Tensor places = block.distances.clamp_min(0).flatten();
    const auto by_distance = [&](at::Tensor& to, const at::Tensor& x) {
      to.index_add_(1, places, x.sum(0).flatten(1));
    };
    by_distance(sums, scores.masked_fill(counted.logical_not(), 0.0));
    by_distance(counts, counted.to(at::kDouble));
  });
  layer.num_heads = num_heads, layer.num_distances = num_distances;
  layer.score_sums.resize(static_cast<size_t>(sums.numel()));
  layer.counts.resize(static_cast<size_t>(num_distances));
  const auto add = [](const at::Tensor& x, std::vector<double>& to) {
    const at::Tensor values = x.cpu().contiguous();
    for (size_t i = 0; i < to.size(); ++i) to[i] += values.const_data_ptr<double>()[i];
  };
  add(sums, layer.score_sums);
  add(counts, layer.counts);
}

AttentionSummary AttentionStatistics::Summarise(dist::Communicator& control) const {
  // A rank that has scored no window does not know the sizes, so take the maximum over ranks.
  std::vector<double> sizes;
  for (const Layer& layer : layers_) {
    sizes.push_back(static_cast<double>(layer.num_heads));
    sizes.push_back(static_cast<double>(layer.num_distances));
  }
  sizes = Reduced(std::move(sizes), dist::ReduceOp::kMax, control);
  HL_CHECK_AS(ExitCode::kUsage, std::ranges::any_of(sizes, [](double size) { return size > 0; }),
              "attention statistics need a layer of softmax attention, and this model has none. "
              "Use a model "
              "with softmax attention.");
  AttentionSummary summary;
  std::vector<double> resolutions, of_means;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto num_heads = static_cast<size_t>(sizes[2 * i]),
               num_distances = static_cast<size_t>(sizes[2 * i + 1]);
    summary.resolution_by_layer.push_back(std::numeric_limits<double>::quiet_NaN());
    if (num_heads == 0) continue;
    std::vector<double> sums = layers_[i].score_sums, counts = layers_[i].counts;
    sums.resize(num_heads * num_distances), counts.resize(num_distances);
    sums = Reduced(std::move(sums), dist::ReduceOp::kSum, control);
    counts = Reduced(std::move(counts), dist::ReduceOp::kSum, control);
    std::vector<double> of_heads, mean(num_distances);
    for (size_t head = 0; head < num_heads; ++head) {
      const std::span<const double> own =
          std::span<const double>(sums).subspan(head * num_distances, num_distances);
      of_heads.push_back(AttentionResolution(MeanScores(own, counts)));
      for (size_t n = 0; n < num_distances; ++n) mean[n] += own[n] / static_cast<double>(num_heads);
    }
    summary.resolution_by_layer.back() = Mean(of_heads);
    resolutions.push_back(Mean(of_heads));
    of_means.push_back(AttentionResolution(MeanScores(mean, counts)));
  }
  summary.resolution = Mean(resolutions);
  summary.resolution_of_means = Mean(of_means);
  const std::vector<double> buckets = Reduced(buckets_, dist::ReduceOp::kSum, control);
  for (int i = 0; i < kNumBuckets; ++i) {
    const double* const sum = &buckets[static_cast<size_t>(i * kNumSums)];
    if (sum[0] == 0) continue;
    summary.buckets.push_back({.first_keys = int64_t{1} << i,
                               .num_queries = static_cast<int64_t>(sum[0]),
                               .entropy = sum[1] / sum[0],
                               .relative_entropy = sum[2] / sum[0],
                               .largest = sum[3] / sum[0]});
  }
  return summary;
}

std::vector<LayerExplanation> ExplainLayers(const model::LanguageModel& model,
                                            const at::Tensor& tokens,
                                            const model::SequenceSlice& slice) {
  const at::NoGradGuard no_grad;
  std::vector<LayerExplanation> explanations;
  const auto explain = [&](int64_t layer, const model::Mixer& mixer, const model::MixerCall& call) {
    if (const auto* explained = dynamic_cast<const model::Explained*>(&mixer))
      explanations.push_back({.layer = layer, .pools = explained->Explain(call)});
  };
  model.Hidden(tokens, {.slice = &slice, .before_mixer = explain});
  HL_CHECK_AS(ExitCode::kUsage, !explanations.empty(), "no layer of ",
              model::MixerSummary(model.config()),
              " can explain which tokens it used. Use a model with layers of leap or fastformer.");
  return explanations;
}

std::vector<TokenShare> LargestTokens(const at::Tensor& shares, int64_t count) {
  const at::Tensor values = shares.to(at::kCPU, at::kDouble).contiguous();
  std::vector<TokenShare> tokens;
  for (int64_t i = 0; i < values.numel(); ++i)
    if (const double share = values.const_data_ptr<double>()[i]; share != 0)
      tokens.push_back({.token = i, .share = share});
  std::ranges::stable_sort(tokens, std::greater<>(), &TokenShare::share);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace halflife::eval
