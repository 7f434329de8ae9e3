// T5's buckets of distances (Raffel et al., 2020).
//
//   const std::vector<int64_t> buckets = T5Buckets(200, 32, 128);
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// The bucket of each distance 0 to num_distances - 1: the first half of the buckets hold one
// distance each, the others grow with its logarithm up to max_distance, beyond which all are in the
// last. num_buckets even.
std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance);

}  // namespace halflife::model
