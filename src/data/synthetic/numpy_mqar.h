// The draws of multi-query associative recall in exactly the form in which the generators of
// Zoology and ReBased make them with NumPy's legacy RandomState. Published accuracies were measured
// on this data.
//
// One Mersenne Twister (Matsumoto and Nishimura, 1998) draws the keys of all examples, then all
// values, then all slots. An example therefore depends on the number of examples, and examples can
// only be drawn in order.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "data/synthetic/mqar.h"

namespace halflife::data {

class NumpyMqarDraws {
 public:
  // Throws Error kUsage as CheckMqar does, and also for a seed of more than 32 bits. Skips over the
  // keys and values of all examples to find where values and slots begin. This takes about 40 us
  // per example and no memory.
  NumpyMqarDraws(const MqarConfig& config, int64_t num_examples);

  // Returns the draws of the next `count` examples.
  MqarDraws Next(int64_t count);

 private:
  // Permutes `identity` as NumPy does and appends the first num_pairs numbers, each increased by
  // `base`.
  void AppendPermuted(std::mt19937& words, const std::vector<int32_t>& identity, int32_t base,
                      std::vector<int32_t>& out);
  void AppendSlots(std::vector<int32_t>& out);

  const MqarConfig config_;
  const std::vector<double> weights_;                 // weights of the slots
  std::vector<int32_t> key_numbers_, value_numbers_;  // 0, 1, ...
  std::mt19937 key_words_, value_words_, slot_words_;
  std::vector<int32_t> permuted_;
  std::vector<double> left_, cumulative_;
};

}  // namespace halflife::data
