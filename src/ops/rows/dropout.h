// Dropout as a pure function: the mask of element (row, token, channel) is Philox of (key; sample
// of the row, position in the row, channel / 4), so it is drawn again in the backward pass instead
// of being kept, and is the same on any mesh.
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
  double rate = 0;  // [0, 1): probability of zero; the rest is scaled by 1 / (1 - rate)
  RandomKey key = {};
  at::Tensor samples;          // [B] int64 on x's device, as SampleNumbers gives them
  int64_t first_position = 0;  // position within the row of token 0
};

// Global sample numbers of rows as dropout reads them: once a batch, whatever drops.
at::Tensor SampleNumbers(std::span<const uint64_t> samples, at::Device device);

// Error where the sample numbers of a rate above 0 are not those of x's rows.
void CheckSamples(const at::Tensor& x, const DropoutConfig& config);

// x [B, T, D]. Rate 0 returns x itself.
at::Tensor Dropout(const at::Tensor& x, const DropoutConfig& config);

}  // namespace halflife::ops
