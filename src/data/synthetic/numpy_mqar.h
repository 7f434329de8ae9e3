// The draws of multi-query associative recall as the generators of Zoology and ReBased make them
// with NumPy's legacy RandomState, to the bit: the data that published accuracies were measured on.
//
// One Mersenne Twister (Matsumoto and Nishimura, 1998) draws the keys of all examples, then all
// values, then all slots. So an example depends on their number, and they come in order alone.
//
//   NumpyMqarDraws draws(config, /*num_examples=*/100000);
//   const LabelledRows rows = LayOutMqar(config, draws.Next(1000), 0);
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "data/synthetic/mqar.h"

namespace halflife::data {

class NumpyMqarDraws {
 public:
  // Error kUsage as CheckMqar, and for a seed of more than 32 bits. Passes over the keys and values
  // of all examples to find where values and slots begin, which takes about 40 us an example and
  // no memory.
  NumpyMqarDraws(const MqarConfig& config, int64_t num_examples);

  // Those of the next `count` examples.
  MqarDraws Next(int64_t count);

 private:
  // NumPy's permutation of `identity`, of which the first num_pairs are appended, plus `base`.
  void AppendPermuted(std::mt19937& words, const std::vector<int32_t>& identity, int32_t base,
                      std::vector<int32_t>& out);
  void AppendSlots(std::vector<int32_t>& out);

  const MqarConfig config_;
  const std::vector<double> weights_;                 // of slots
  std::vector<int32_t> key_numbers_, value_numbers_;  // 0, 1, ...
  std::mt19937 key_words_, value_words_, slot_words_;
  std::vector<int32_t> permuted_;
  std::vector<double> left_, cumulative_;
};

}  // namespace halflife::data
