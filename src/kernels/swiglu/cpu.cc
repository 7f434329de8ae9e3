#include "kernels/cpu/vectorised.h"
#include "kernels/swiglu/args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE void ForwardLoop(const SwiGluArgs<T>& args, int64_t begin, int64_t end) {
  const T* __restrict gate = args.gate;
  const T* __restrict up = args.up;
  T* __restrict out = args.out;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = Widen(gate[i]);
    out[i] = Narrow<T>(g * Sigmoid(g) * Widen(up[i]));
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const SwiGluGradArgs<T>& args, int64_t begin, int64_t end) {
  const T* __restrict gate = args.gate;
  const T* __restrict up = args.up;
  const T* __restrict dout = args.dout;
  T* __restrict dgate = args.dgate;
  T* __restrict dup = args.dup;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = Widen(gate[i]), dy = Widen(dout[i]), sigmoid = Sigmoid(g);
    dgate[i] = Narrow<T>(dy * Widen(up[i]) * (sigmoid * (1.0f + g * (1.0f - sigmoid))));
    dup[i] = Narrow<T>(dy * (g * sigmoid));
  }
}

}  // namespace

void SwiGluForward(const SwiGluArgs<float>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, begin, end); });
}
void SwiGluForward(const SwiGluArgs<Bf16>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, begin, end); });
}
void SwiGluBackward(const SwiGluGradArgs<float>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, begin, end); });
}
void SwiGluBackward(const SwiGluGradArgs<Bf16>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, begin, end); });
}

}  // namespace halflife::kernels::cpu
