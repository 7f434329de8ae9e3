#include <algorithm>

#include "kernels/cpu/vectorised.h"
#include "kernels/swiglu/args.h"

namespace halflife::kernels::cpu {
namespace {

// body(i, place, count): elements [i, i + count), all of one row, which gate and up have at place.
template <typename Args, typename Body>
HL_INLINE void EachRow(const Args& args, int64_t begin, int64_t end, const Body& body) {
  const int64_t width = args.width == args.stride ? args.count : args.width;
  for (int64_t i = begin; i < end;) {
    const int64_t count = std::min(end - i, width - i % width);
    body(i, SwiGluPlace(i, args.width, args.stride), count);
    i += count;
  }
}

template <typename T>
HL_INLINE void ForwardLoop(const SwiGluArgs<T>& args, int64_t begin, int64_t end) {
  EachRow(args, begin, end, [&](int64_t first, int64_t place, int64_t count) HL_LAMBDA_INLINE {
    const T* __restrict gate = args.gate + place;
    const T* __restrict up = args.up + place;
    T* __restrict out = args.out + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float g = Widen(gate[i]);
      out[i] = Narrow<T>(g * Sigmoid(g) * Widen(up[i]));
    }
  });
}

template <typename T>
HL_INLINE void BackwardLoop(const SwiGluGradArgs<T>& args, int64_t begin, int64_t end) {
  EachRow(args, begin, end, [&](int64_t first, int64_t place, int64_t count) HL_LAMBDA_INLINE {
    const T* __restrict gate = args.gate + place;
    const T* __restrict up = args.up + place;
    const T* __restrict dout = args.dout + first;
    T* __restrict dgate = args.dgate + place;
    T* __restrict dup = args.dup + place;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float g = Widen(gate[i]), dy = Widen(dout[i]), sigmoid = Sigmoid(g);
      dgate[i] = Narrow<T>(dy * Widen(up[i]) * (sigmoid * (1.0f + g * (1.0f - sigmoid))));
      dup[i] = Narrow<T>(dy * (g * sigmoid));
    }
  });
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
