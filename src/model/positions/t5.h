// T5's buckets of distances (Raffel et al., 2020).
//
//   const std::vector<int64_t> buckets = T5Buckets(200, 32, 128);
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// Returns the bucket of each distance 0 to num_distances - 1. The first half of the buckets hold
// one distance each. The others grow logarithmically with the distance up to max_distance; larger
// distances are in the last bucket. num_buckets must be even.
std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance);

}  // namespace halflife::model
