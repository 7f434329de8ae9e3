// What a part costs, for planning: `--dry-run`, MFU, the memory a rank needs.
#pragma once

#include <cstdint>

#include "kernels/decay_attention/args.h"

namespace halflife::model {

// A micro-batch of a rank on a GPU, as what kernels borrow of its memory depends on it.
struct GpuBatch {
  int64_t batch = 0, seq_len = 0;  // seq_len: of the rank's slices of the rows
  bool bf16 = true;
  kernels::DeviceLimits gpu = {};
};

// The operations of one token at a given sequence length, multiply-adds counted as 2.
struct FlopCount {
  double matmul = 0;  // products with parameters: 2 x weights
  // Token-to-token work: update and read of a state, or scores and their sum of values. What chunks
  // add to it is left out.
  double mixing = 0;

  FlopCount& operator+=(const FlopCount& other) {
    matmul += other.matmul, mixing += other.mixing;
    return *this;
  }
};

}  // namespace halflife::model
