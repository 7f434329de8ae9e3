// Factors on the scores of a query by how many keys it sees, so that attention over long texts is
// no flatter than in training. Folded into the query, they serve any kernel of attention, but leave
// biases of positions alone.
//
//   const QueryScale scale = {.form = "info", .mode = "eval_only", .length = 512, .dim = 64};
//   q = q * QueryScales(num_keys, scale).unsqueeze(-1).unsqueeze(-1);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace halflife::model {

struct QueryScale {
  // none; info: sqrt(1 - n^(-2/d)) over its value at the training length (InfoScale, "Information
  // entropy invariance", 2025); log: ln n over that of the training length (Su, 2021; Chiang and
  // Cholak, 2022).
  std::string form = "none";
  // eval_only: at least 1, for models that were trained without; train: as it is, from the first
  // step on; fixed_len: one factor of all queries, by the number of keys given. The last makes a
  // query depend on how long its row is: decode and a whole row then differ.
  std::string mode = "eval_only";
  int64_t length = 0;  // of training, at least 2
  int64_t dim = 0;     // d
  // The factor is of the whole score, what positions add to it included, as InfoScale's code has
  // it; else it is folded into the query and leaves biases alone.
  bool bias = false;
};

// num_keys int64 -> fp64 of the same shape; exactly 1 at the training length.
at::Tensor QueryScales(const at::Tensor& num_keys, const QueryScale& scale);

}  // namespace halflife::model
