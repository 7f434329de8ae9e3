// Prepares a dataset of multi-query associative recall: labelled rows for training, validation and
// test.
//
//   const MqarSummary summary = PrepareMqar({.train = {{128, 16, 100000}},
//                                            .validation = {{128, 16, 3000}},
//                                            .test = {{128, 16, 3000}},
//                                            .output = {.out = "mqar.data"}});
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "data/prepare/prepare_options.h"

namespace halflife::data {

enum class MqarGenerator : uint8_t { kNative, kNumpyCompat };  // see mqar.h and numpy_mqar.h

// A set of rows of one difficulty.
struct MqarSegment {
  int64_t seq_len = 64, num_pairs = 4, num_examples = 0;
};

struct PrepareMqarConfig {
  // All rows have the length of the longest segment's rows. Shorter rows end in zeros without
  // labels, which no causal mixer sees before it has answered.
  std::vector<MqarSegment> train, validation, test;
  int vocab_size = 8192;
  double power = 0.01;
  bool random_non_queries = false;
  MqarGenerator generator = MqarGenerator::kNative;
  // Seed of the training split. The test split uses seed + 10, like the test sets of the ReBased
  // runs, and the validation split seed + 20. Each further segment of a split adds 100.
  uint64_t seed = 42;
  PrepareOutput output;  // its progress counts bytes of rows
};

struct MqarSummary {
  SplitInfo train, validation, test;
  int64_t row_len = 0;
  double seconds = 0;
  Hash128 hash;  // hash of the manifest
};

// The result depends only on the config, except `out` and `threads`. Throws Error kUsage for
// invalid values.
MqarSummary PrepareMqar(const PrepareMqarConfig& config);

}  // namespace halflife::data
