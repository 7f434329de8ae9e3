// Dropout as a pure function. The mask of element (row, token, channel) is Philox of (key; sample
// of the row, position in the row, channel / 4). It is recomputed in the backward pass instead of
// being stored, and it is the same on any mesh.
//
//   x = x + Dropout(branch, {.rate = 0.1,
//                            .key = MakeRandomKey(seed, RandomPurpose::kDropout, site),
//                            .samples = SampleNumbers(samples, x.device()),
//                            .first_position = slice.begin});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/philox.h"

namespace halflife::ops {

struct DropoutConfig {
  // [0, 1): probability that an element is set to zero; the others are scaled by 1 / (1 - rate)
  double rate = 0;
  RandomKey key = {};
  at::Tensor samples;          // [B] int64 on x's device, from SampleNumbers()
  int64_t first_position = 0;  // position within the row of token 0
};

// Uploads the global sample numbers of a batch's rows. Call it once per batch; all dropout layers
// share the result.
at::Tensor SampleNumbers(std::span<const uint64_t> samples, at::Device device);

// Throws an error if the rate is above 0 and the sample numbers do not match x's rows.
void CheckSamples(const at::Tensor& x, const DropoutConfig& config);

// x [B, T, D] -> the same shape. With rate 0, returns x itself.
at::Tensor Dropout(const at::Tensor& x, const DropoutConfig& config);

}  // namespace halflife::ops
