// Multi-query associative recall (Arora et al., 2023, "Zoology"): a row shows K pairs of a key and
// its value, then each key once more; the label of a key's second place is its value.
//
//   input   k_0 v_0 k_1 v_1 ... | 0 k_j 0 ... k_i 0       of L tokens, 0 where nothing stands
//   label   none                | value of each key there, kNoTarget elsewhere
//
// Behind the pairs lie G = (L - 2K) / 2 slots of two tokens. Pair j asks in the j-th of K distinct
// slots, drawn one after the other with weights p_g ~ (g + 1)^(a - 1) of those that are left: early
// pairs ask early.
//
//   const MqarConfig config = {.seq_len = 128, .num_pairs = 16, .seed = 42};
//   const LabelledRows rows = LayOutMqar(config, DrawMqar(config, /*first=*/0, /*count=*/1000), 0);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halflife::data {

// Raised when the rows of a given config change.
constexpr uint32_t kMqarVersion = 1;

struct MqarConfig {
  int vocab_size = 8192;  // V: keys are in [1, V/2), values in [V/2, V)
  int64_t seq_len = 64;   // L
  int64_t num_pairs = 4;  // K
  double power = 0.01;    // a
  // Random tokens of [0, V) stand in place of the zeros. They may repeat a row's keys and values.
  bool random_non_queries = false;
  uint64_t seed = 42;
};

// Error kUsage: for an odd L, V <= L, 4 K > L or a <= 0, with what would work.
void CheckMqar(const MqarConfig& config);

// The random choices of rows: what a row shows is a function of them.
struct MqarDraws {
  std::vector<int32_t> keys;    // [n, K] distinct in a row
  std::vector<int32_t> values;  // [n, K] distinct in a row
  std::vector<int32_t> slots;   // [n, K] distinct in a row, of [0, G); pair j asks in slots[j]
};

// Those of the examples [first, first + count), each a function of (seed, example): any thread may
// draw any of them.
MqarDraws DrawMqar(const MqarConfig& config, int64_t first, int64_t count);

struct LabelledRows {
  std::vector<int32_t> inputs;  // [n, L]
  std::vector<int32_t> labels;  // [n, L] kNoTarget where nothing is asked
};
// The rows of the examples [first, first + n).
LabelledRows LayOutMqar(const MqarConfig& config, const MqarDraws& draws, int64_t first);

// p_g of each slot: [G], adds up to 1.
std::vector<double> MqarSlotWeights(const MqarConfig& config);

}  // namespace halflife::data
