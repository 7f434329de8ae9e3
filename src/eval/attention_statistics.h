// Statistics of softmax attention layers: how sharp the weights are, by the number of keys that a
// query sees, and how well the layers resolve distances.
//
//   AttentionStatistics statistics(model.config().num_layers);
//   model.TokenLosses(tokens, targets, {.slice = &slice, .observe = statistics.Observer()});
//   const AttentionSummary summary = statistics.Summarise(control);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "model/language_model.h"
#include "model/mixers/focus/explanation.h"

namespace halflife::eval {

// Statistics of the queries that see [first_keys, 2 first_keys) keys: means over these queries and
// over all heads and layers.
struct AttentionBucket {
  int64_t first_keys = 0, num_queries = 0;
  double entropy = 0;  // In nats.
  // entropy / ln n, where ln n is the maximum for n keys. 0 for one key.
  double relative_entropy = 0;
  double largest = 0;  // Weight of the most likely key.
};
struct AttentionSummary {
  // The attention resolution of each head's mean scores by distance: the mean over heads and layers
  // (`resolution`), and the mean over the heads of each layer (`resolution_by_layer`). Layers
  // without softmax attention do not count; their entry is NaN.
  double resolution = 0;
  std::vector<double> resolution_by_layer;
  // The resolution of the scores averaged over the heads of a layer; the mean over layers.
  double resolution_of_means = 0;
  std::vector<AttentionBucket> buckets;
};

// Returns the attention resolution (Sun et al., 2022, eq. 3): sum_i p_i (p_i - p_{i+1}), where p is
// the softmax of the expected scores at distances 0, 1, ...
double AttentionResolution(std::span<const double> scores);

// Not thread-safe.
class AttentionStatistics {
 public:
  explicit AttentionStatistics(int64_t num_layers);

  // Returns a callback that borrows `this`. It skips attention with squared ReLUs, whose weights
  // are not probabilities.
  decltype(model::ForwardContext::observe) Observer();
  // Returns the statistics over all ranks. Collective. Throws kUsage if no layer was observed.
  AttentionSummary Summarise(dist::Communicator& control) const;

 private:
  // The sums of one layer.
  struct Layer {
    int64_t num_heads = 0, num_distances = 0;
    std::vector<double> score_sums;  // [H, N]: sums over visible pairs by distance.
    std::vector<double> counts;      // [N]: number of these pairs in one head.
  };
  // Number of queries, entropy, relative entropy, largest weight.
  static constexpr int kNumBuckets = 40, kNumSums = 4;

  void Add(Layer& layer, const ops::SoftmaxAttentionInputs& inputs,
           const ops::SoftmaxAttentionConfig& config);

  std::vector<Layer> layers_;
  std::vector<double> buckets_;  // [kNumBuckets, kNumSums]
};

// How a layer with window pools (leap, fastformer) weights the tokens of a text: the weights of all
// tokens in its pools, and the tokens with the largest weights.
//
//   for (const LayerExplanation& of_layer : ExplainLayers(model, tokens, slice))
//     for (const model::Explanation& pool : of_layer.pools)
//       Print(of_layer.layer, LargestTokens(pool.Importance().mean(-1)[0], 5));
struct LayerExplanation {
  int64_t layer = 0;
  std::vector<model::Explanation> pools;  // In the order of the layer's forward pass.
};
// Runs one forward pass over tokens [B, T] int64 (whole rows) and returns the explanation of every
// layer that supports it. Other layers are skipped. Throws kUsage if no layer supports it.
std::vector<LayerExplanation> ExplainLayers(const model::LanguageModel& model,
                                            const at::Tensor& tokens,
                                            const model::SequenceSlice& slice);

struct TokenShare {
  int64_t token = 0;  // Index in the row.
  double share = 0;
};
// Returns the `count` largest nonzero values of `shares` [T] in descending order. Equal values keep
// their order.
std::vector<TokenShare> LargestTokens(const at::Tensor& shares, int64_t count);

}  // namespace halflife::eval
