// A dataset of multi-query associative recall: labelled rows for training, validation and test.
//
//   const MqarSummary summary = PrepareMqar({.train = {{128, 16, 100000}},
//                                            .validation = {{128, 16, 3000}},
//                                            .test = {{128, 16, 3000}},
//                                            .output = {.out = "mqar.data"}});
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "data/prepare_output.h"

namespace halflife::data {

enum class MqarGenerator : uint8_t { kNative, kNumpyCompat };  // mqar.h, numpy_mqar.h

// Rows of one difficulty.
struct MqarSegment {
  int64_t seq_len = 64, num_pairs = 4, num_examples = 0;
};

struct PrepareMqarConfig {
  // Rows are as long as the longest segment's; shorter ones end in zeros without labels, which no
  // causal mixer sees before it has answered.
  std::vector<MqarSegment> train, validation, test;
  int vocab_size = 8192;
  double power = 0.01;
  bool random_non_queries = false;
  MqarGenerator generator = MqarGenerator::kNative;
  // The training split's. The test split has seed + 10, as the test sets of the ReBased runs, the
  // validation split seed + 20; a split's second segment 100 more than its first, and so on.
  uint64_t seed = 42;
  PrepareOutput output;  // whose progress counts bytes of rows
};

struct MqarSummary {
  SplitInfo train, validation, test;
  int64_t row_len = 0;
  double seconds = 0;
  Hash128 hash;  // of the manifest
};

// A function of the config but for `out` and `threads`. Error kUsage for what cannot be.
MqarSummary PrepareMqar(const PrepareMqarConfig& config);

}  // namespace halflife::data
