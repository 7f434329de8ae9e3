// Multi-query associative recall (Arora et al., 2023, "Zoology"). A row shows K pairs of a key and
// its value, and then each key a second time. The label at the second occurrence of a key is its
// value.
//
//   input   k_0 v_0 k_1 v_1 ... | 0 k_j 0 ... k_i 0       L tokens; 0 is an empty position
//   label   none                | value of each key there, kNoTarget elsewhere
//
// The pairs are followed by G = (L - 2K) / 2 slots of two tokens. The query of pair j is in the
// j-th of K distinct slots. The slots are drawn one after the other from those that are left, with
// weights p_g ~ (g + 1)^(a - 1), so that early pairs tend to be queried early.
//
//   const MqarConfig config = {.seq_len = 128, .num_pairs = 16, .seed = 42};
//   const LabelledRows rows = LayOutMqar(config, DrawMqar(config, /*first=*/0, /*count=*/1000), 0);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/prepare/prepare_options.h"

namespace halflife::data {

// Increased when the rows of a given config change.
constexpr uint32_t kMqarVersion = 1;

struct MqarConfig {
  int vocab_size = 8192;  // V: keys are in [1, V/2), values in [V/2, V)
  int64_t seq_len = 64;   // L
  int64_t num_pairs = 4;  // K
  double power = 0.01;    // a
  // Replaces the zeros by random tokens in [0, V). They may repeat keys and values of the row.
  bool random_non_queries = false;
  uint64_t seed = 42;
};

// Throws Error kUsage, with a fix, for an odd L, V <= L, 4 K > L or a <= 0.
void CheckMqar(const MqarConfig& config);

// The random choices of rows. They determine the content of the rows.
struct MqarDraws {
  std::vector<int32_t> keys;    // [n, K], distinct within a row
  std::vector<int32_t> values;  // [n, K], distinct within a row
  // [n, K], distinct within a row, in [0, G); the query of pair j is in slots[j].
  std::vector<int32_t> slots;
};

// Draws the examples [first, first + count). Each depends only on (seed, example), so any thread
// can draw any of them.
MqarDraws DrawMqar(const MqarConfig& config, int64_t first, int64_t count);

struct LabelledRows {
  std::vector<int32_t> inputs;  // [n, L]
  std::vector<int32_t> labels;  // [n, L]; kNoTarget marks a token without a label
};
// Returns the rows of the examples [first, first + n).
LabelledRows LayOutMqar(const MqarConfig& config, const MqarDraws& draws, int64_t first);

// Returns p_g of each slot, [G], which add up to 1.
std::vector<double> MqarSlotWeights(const MqarConfig& config);

// Prepares a dataset of multi-query associative recall: labelled rows for training, validation and
// test.
//
//   const MqarSummary summary = PrepareMqar({.train = {{128, 16, 100000}},
//                                            .validation = {{128, 16, 3000}},
//                                            .test = {{128, 16, 3000}},
//                                            .output = {.out = "mqar.data"}});

enum class MqarGenerator : uint8_t { kNative, kNumpyCompat };  // DrawMqar; numpy_mqar.h

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
