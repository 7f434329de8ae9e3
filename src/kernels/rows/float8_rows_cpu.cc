#include <bit>

#include "core/float8.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/float8_rows_args.h"

namespace halflife::kernels::cpu {
namespace {

HL_INLINE uint32_t LargestMagnitude(const Bf16* __restrict x, int64_t width) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < width; ++i) {
    const uint32_t magnitude = x[i].bits & 0x7fffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest << 16;
}

HL_INLINE uint8_t CodeOf(Bf16 x, float scale) {
  return EncodeE4m3(std::bit_cast<uint32_t>(Widen(x) * scale));
}

}  // namespace

void ConvertToFloat8(const Float8Rows& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int64_t row = begin; row < end; ++row) {
      const Bf16* __restrict const x = rows.x + row * rows.x_stride;
      const uint32_t scale_bits = Float8ScaleBits(LargestMagnitude(x, rows.width));
      const float scale = std::bit_cast<float>(scale_bits),
                  factor = std::bit_cast<float>(Float8FactorBits(scale_bits));
      if (rows.values != nullptr) {
        Bf16* __restrict const values = rows.values + row * rows.width;
#pragma omp simd
        for (int64_t i = 0; i < rows.width; ++i)
          values[i] = RoundToBf16(DecodeE4m3(CodeOf(x[i], scale)) * factor);
        continue;
      }
      uint8_t* __restrict const codes = rows.codes + row * rows.width;
#pragma omp simd
      for (int64_t i = 0; i < rows.width; ++i) codes[i] = CodeOf(x[i], scale);
      rows.factors[row] = factor;
    }
  });
}

}  // namespace halflife::kernels::cpu
