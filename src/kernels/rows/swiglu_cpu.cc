#include <algorithm>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/swiglu_args.h"

namespace halflife::kernels::cpu {
namespace {

// Calls body(i, count) for elements [i, i + count) that are all in one row.
template <typename Args, typename Body>
HL_INLINE void EachRow(const Args& args, int64_t begin, int64_t end, const Body& body) {
  const int64_t width = args.width == 0 ? args.count : args.width;
  for (int64_t i = begin; i < end;) {
    const int64_t count = std::min(end - i, width - i % width);
    body(i, count);
    i += count;
  }
}

// map(gate) and its derivative.
template <GateMap kMap>
struct Gate {
  HL_INLINE explicit Gate(float gate) {
    const float sigmoid = Sigmoid(gate);
    value = kMap == GateMap::kSilu ? gate * sigmoid : sigmoid;
    slope = kMap == GateMap::kSilu ? sigmoid * (1.0f + gate * (1.0f - sigmoid))
                                   : sigmoid * (1.0f - sigmoid);
  }
  float value, slope;
};

template <GateMap kMap, typename T>
HL_INLINE void ForwardLoop(const SwiGluArgs<T>& args, int64_t begin, int64_t end) {
  EachRow(args, begin, end, [&](int64_t first, int64_t count) HL_LAMBDA_INLINE {
    const T* __restrict gate = args.gate + SwiGluPlace(first, args.width, args.gate_stride);
    const T* __restrict up = args.up + SwiGluPlace(first, args.width, args.up_stride);
    T* __restrict out = args.out + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      out[i] = Narrow<T>(Gate<kMap>(Widen(gate[i])).value * Widen(up[i]));
  });
}

template <GateMap kMap, typename T>
HL_INLINE void BackwardLoop(const SwiGluGradArgs<T>& args, int64_t begin, int64_t end) {
  EachRow(args, begin, end, [&](int64_t first, int64_t count) HL_LAMBDA_INLINE {
    const T* __restrict gate = args.gate + SwiGluPlace(first, args.width, args.gate_stride);
    const T* __restrict up = args.up + SwiGluPlace(first, args.width, args.up_stride);
    const T* __restrict dout = args.dout + first;
    T* __restrict dgate = args.dgate + SwiGluPlace(first, args.width, args.dgate_stride);
    T* __restrict dup = args.dup + SwiGluPlace(first, args.width, args.dup_stride);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const Gate<kMap> mapped(Widen(gate[i]));
      const float dy = Widen(dout[i]);
      dgate[i] = Narrow<T>(dy * Widen(up[i]) * mapped.slope);
      dup[i] = Narrow<T>(dy * mapped.value);
    }
  });
}

}  // namespace

template <typename T>
void SwiGluForward(const SwiGluArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    args.map == GateMap::kSilu ? ForwardLoop<GateMap::kSilu>(args, begin, end)
                               : ForwardLoop<GateMap::kSigmoid>(args, begin, end);
  });
}
template <typename T>
void SwiGluBackward(const SwiGluGradArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    args.map == GateMap::kSilu ? BackwardLoop<GateMap::kSilu>(args, begin, end)
                               : BackwardLoop<GateMap::kSigmoid>(args, begin, end);
  });
}

template void SwiGluForward(const SwiGluArgs<float>&, int64_t, int64_t);
template void SwiGluForward(const SwiGluArgs<Bf16>&, int64_t, int64_t);
template void SwiGluBackward(const SwiGluGradArgs<float>&, int64_t, int64_t);
template void SwiGluBackward(const SwiGluGradArgs<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
