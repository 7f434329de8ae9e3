// What layers of softmax attention look at: how sharp they are by the number of keys that a query
// sees, and how well they tell distances apart.
//
//   AttentionStatistics statistics(model.config().num_layers);
//   model.TokenLosses(tokens, targets, {.slice = &slice, .observe = statistics.Observer()});
//   const AttentionSummary summary = statistics.Summarise(control);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "model/language_model.h"

namespace halflife::eval {

// Queries that see [first_keys, 2 first_keys) keys; means over them, all heads and layers.
struct AttentionBucket {
  int64_t first_keys = 0, num_queries = 0;
  double entropy = 0;           // nats
  double relative_entropy = 0;  // of the largest there is, ln n; 0 for one key
  double largest = 0;           // weight of the likeliest key
};
struct AttentionSummary {
  // The resolution of each head's mean score by distance; the mean over heads and layers, and over
  // the heads of each layer. A layer without attention has none: it is left out, and NaN in its
  // place.
  double resolution = 0;
  std::vector<double> resolution_by_layer;
  // The resolution of the scores' mean over the heads of a layer; the mean over layers.
  double resolution_of_means = 0;
  std::vector<AttentionBucket> buckets;
};

// Attention resolution (Sun et al., 2022, eq. 3): sum_i p_i (p_i - p_{i+1}), p the softmax of the
// expected scores at distances 0, 1, ...
double AttentionResolution(std::span<const double> scores);

// Not thread-safe.
class AttentionStatistics {
 public:
  explicit AttentionStatistics(int64_t num_layers);

  // Borrows this; leaves squared ReLUs, whose weights are no probabilities, out.
  decltype(model::ForwardContext::observe) Observer();
  // Over all ranks, collective. Error kUsage where no layer was observed.
  AttentionSummary Summarise(dist::Communicator& control) const;

 private:
  // The sums of one layer.
  struct Layer {
    int64_t num_heads = 0, num_distances = 0;
    std::vector<double> score_sums;  // [H, N] of visible pairs at a distance
    std::vector<double> counts;      // [N] of these pairs, of one head
  };
  static constexpr int kNumBuckets = 40, kNumSums = 4;  // queries, entropy, relative, largest

  void Add(Layer& layer, const kernels::SoftmaxAttentionInputs& inputs,
           const kernels::SoftmaxAttentionConfig& config);

  std::vector<Layer> layers_;
  std::vector<double> buckets_;  // [kNumBuckets, kNumSums]
};

}  // namespace halflife::eval
