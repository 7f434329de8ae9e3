// Scales the scores of a query by a function of the number of keys that it sees, so that attention
// over long texts is not flatter than in training. The factors are multiplied into the query, which
// works with every attention kernel, but does not scale the biases of positions.
//
//   const QueryScale scale = {.form = "info", .mode = "eval_only", .length = 512, .dim = 64};
//   q = q * QueryScales(num_keys, scale).unsqueeze(-1).unsqueeze(-1);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace halflife::model {

struct QueryScale {
  // none: no scale.
  // info: sqrt(1 - n^(-2/d)) divided by its value at the training length (InfoScale, "Information
  //       entropy invariance", 2025).
  // log:  ln n divided by its value at the training length (Su, 2021; Chiang and Cholak, 2022).
  std::string form = "none";
  // eval_only: the factor is at least 1, for models that were trained without a scale.
  // train:     the factor as computed, also in training.
  // fixed_len: all queries of a row have the factor for the number of keys in the row. Decoding and
  //            a forward over the whole row then differ.
  std::string mode = "eval_only";
  int64_t length = 0;  // the training length in tokens, at least 2
  int64_t dim = 0;     // d
  // True: the factor also scales the biases that positions add to scores, as in InfoScale's code.
  bool bias = false;
};

// Maps num_keys int64 to factors fp64 of the same shape. They are exactly 1 at the training length.
at::Tensor QueryScales(const at::Tensor& num_keys, const QueryScale& scale);

}  // namespace halflife::model
