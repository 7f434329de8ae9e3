// Position methods that add a bias to the scores of attention: ALiBi's slopes and T5's buckets of
// distances.
//
//   const std::vector<double> slopes = AlibiSlopes(8);  // 1/2, 1/4, ... 1/256
//   const std::vector<int64_t> buckets = T5Buckets(200, 32, 128);
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// ALiBi (Press et al., 2022). Returns 2^(-8 (h + 1) / H) for each head h if H is a power of 2.
// Otherwise, returns the slopes of the next lower power of 2, followed by every other slope of the
// next higher power, as the authors' code does.
std::vector<double> AlibiSlopes(int64_t num_heads);

// T5 (Raffel et al., 2020). Returns the bucket of each distance 0 to num_distances - 1. The first
// half of the buckets hold one distance each. The others grow logarithmically with the distance up
// to max_distance; larger distances are in the last bucket. num_buckets must be even.
std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance);

}  // namespace halflife::model
