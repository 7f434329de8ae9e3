// Inner header of ShortConv: its fused loops on the CPU, one for each storage type.
#pragma once

#include <cstdint>

#include "kernels/cpu_math.h"

namespace halflife::kernels::internal {

constexpr int64_t kConvMaxTaps = 8;
// Tokens per partial sum of the weight's gradient: fixed, so that the sum does not depend on the number of threads. Not less
// than kConvMaxTaps - 1: the first block of a row then holds every token that reads the tail.
constexpr int64_t kConvTokensPerBlock = 64;

// T: float or Bf16. Blocks count the rows' blocks of kConvTokensPerBlock tokens, the last of a row may be shorter.
template <typename T>
struct ConvShape {
  const T* x;           // [B, T, D]
  const T* tail;        // [B, W-1, D]; null: nothing before the slice
  const float* weight;  // [W, D], tap j reads the token W-1-j back
  const uint8_t*
      reach;  // [B, T], how many tokens back a token may read: at most W-1, none across a document's start
  int64_t seq_len, dim, taps;

  int64_t blocks_per_row() const {
    return (seq_len + kConvTokensPerBlock - 1) / kConvTokensPerBlock;
  }
};

void ConvForward(const ConvShape<float>& shape, int64_t block, float* out);
void ConvForward(const ConvShape<Bf16>& shape, int64_t block, Bf16* out);

template <typename T>
struct ConvGrads {
  const T* dout;   // [B, T, D]
  T* dx;           // [B, T, D]
  T* dtail;        // [B, W-1, D], or null
  float* dweight;  // [blocks, W, D], zero at first
};
// `scratch` holds (kConvTokensPerBlock + kConvMaxTaps) D floats.
void ConvBackward(const ConvShape<float>& shape, const ConvGrads<float>& grads, int64_t block,
                  float* scratch);
void ConvBackward(const ConvShape<Bf16>& shape, const ConvGrads<Bf16>& grads, int64_t block,
                  float* scratch);

}  // namespace halflife::kernels::internal
