// What a part costs, for planning: `--dry-run`, MFU, the memory a rank needs.
#pragma once

#include <cstdint>

namespace halflife::model {

// Of one token at a given sequence length, multiply-adds counted as 2.
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
