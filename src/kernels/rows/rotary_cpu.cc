#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/rotary_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE void RotateLoop(const RotaryTokens<T>& tokens, int64_t begin, int64_t end) {
  const int64_t half = tokens.half, head_dim = tokens.head_dim;
  for (int64_t token = begin; token < end; ++token) {
    const float* cos = tokens.cos + tokens.rows[token] * half;
    const float* sin = tokens.sin + tokens.rows[token] * half;
    for (const RotaryHeads<T>& heads : tokens.heads) {
      const T* x = heads.x + token * heads.x_stride;
      T* out = heads.out + token * heads.out_stride;
      for (int64_t head = 0; head < heads.num_heads; ++head, x += head_dim, out += head_dim) {
#pragma omp simd
        for (int64_t j = 0; j < half; ++j) {
          const float a = Widen(x[j]), b = Widen(x[j + half]), s = tokens.direction * sin[j];
          out[j] = Narrow<T>(a * cos[j] - b * s);
          out[j + half] = Narrow<T>(b * cos[j] + a * s);
        }
        for (int64_t j = 2 * half; j < head_dim; ++j) out[j] = x[j];
      }
    }
  }
}
}  // namespace

template <typename T>
void Rotate(const RotaryTokens<T>& tokens, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { RotateLoop(tokens, begin, end); });
}

template void Rotate(const RotaryTokens<float>&, int64_t, int64_t);
template void Rotate(const RotaryTokens<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
