// The cost of a part, for planning: FLOPs (`--dry-run`, MFU) and the memory that a rank needs.
#pragma once

#include <cstdint>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::model {

// A micro-batch of one rank on a GPU. The temporary memory of kernels depends on it.
struct GpuBatch {
  int64_t batch = 0, seq_len = 0;  // seq_len counts the tokens of the rank's slices of the rows.
  bool bf16 = true;
  kernels::DeviceLimits gpu = {};
};

// The operations per token at a given sequence length. A multiply-add counts as 2.
struct FlopCount {
  double matmul = 0;  // Products with parameters: 2 x the number of weights.
  // Work between tokens: updating and reading a state, or scores and the sum of values. The extra
  // operations of chunked algorithms are not included.
  double mixing = 0;

  FlopCount& operator+=(const FlopCount& other) {
    matmul += other.matmul, mixing += other.mixing;
    return *this;
  }
};

}  // namespace halflife::model
