#include "model/mixers/softmax/query_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sqrt.h>

#include <cmath>

namespace halflife::model {

at::Tensor QueryScales(const at::Tensor& num_keys, const QueryScale& scale) {
  const at::Tensor logs = at::log(num_keys.to(at::kDouble));
  const double of_length = std::log(static_cast<double>(scale.length));
  at::Tensor factors;
  if (scale.form == "info") {
    // expm1 avoids the cancellation of 1 - n^rate.
    const double rate = -2.0 / static_cast<double>(scale.dim);
    factors = at::sqrt(-at::expm1(rate * logs)) / std::sqrt(-std::expm1(rate * of_length));
  } else {
    factors = logs / of_length;
  }
  if (scale.mode == "eval_only") factors = factors.clamp_min(1);
  return factors.masked_fill(num_keys == scale.length, 1);
}

}  // namespace halflife::model
