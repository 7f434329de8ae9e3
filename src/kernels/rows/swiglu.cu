#include <algorithm>
#include <initializer_list>

#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/swiglu_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 256;

// Returns the index of the first element of the thread's pack. Past the end, the number of elements
// that exist may be zero or negative.
template <typename T>
HL_DEVICE int64_t PackBegin() {
  return (int64_t{kThreads} * blockIdx.x + threadIdx.x) * kPack<T>;
}
template <typename T>
HL_DEVICE int PackCount(int64_t count, int64_t at) {
  return static_cast<int>(min(count - at, int64_t{kPack<T>}));
}

// map(gate) and its derivative.
struct Gate {
  HL_DEVICE Gate(GateMap map, float gate) {
    const float sigmoid = Sigmoid(gate);
    const bool silu = map == GateMap::kSilu;
    value = silu ? gate * sigmoid : sigmoid;
    slope = silu ? sigmoid * (1.0f + gate * (1.0f - sigmoid)) : sigmoid * (1.0f - sigmoid);
  }
  float value, slope;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) SwiGluForwardKernel(SwiGluArgs<T> args, bool aligned) {
  const int64_t at = PackBegin<T>();
  if (at >= args.count) return;
  const int count = PackCount<T>(args.count, at);
  float gate[kPack<T>], up[kPack<T>];
  Load(args.gate + SwiGluPlace(at, args.width, args.gate_stride), count, aligned, gate);
  Load(args.up + SwiGluPlace(at, args.width, args.up_stride), count, aligned, up);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) up[i] *= Gate(args.map, gate[i]).value;
  Store(args.out + at, count, aligned, up);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(SwiGluGradArgs<T> args, bool aligned) {
  const int64_t at = PackBegin<T>();
  if (at >= args.count) return;
  const int count = PackCount<T>(args.count, at);
  float gate[kPack<T>], up[kPack<T>], dout[kPack<T>];
  Load(args.gate + SwiGluPlace(at, args.width, args.gate_stride), count, aligned, gate);
  Load(args.up + SwiGluPlace(at, args.width, args.up_stride), count, aligned, up);
  Load(args.dout + at, count, aligned, dout);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const Gate mapped(args.map, gate[i]);
    gate[i] = dout[i] * up[i] * mapped.slope;
    up[i] = dout[i] * mapped.value;
  }
  Store(args.dgate + SwiGluPlace(at, args.width, args.dgate_stride), count, aligned, gate);
  Store(args.dup + SwiGluPlace(at, args.width, args.dup_stride), count, aligned, up);
}

template <typename T, typename Args>
void Run(const Args& args, bool aligned, void (*kernel)(Args, bool), const char* name,
         cudaStream_t stream) {
  if (args.count == 0) return;
  constexpr int64_t kElements = kThreads * kPack<T>;
  const auto blocks = static_cast<unsigned>((args.count + kElements - 1) / kElements);
  Launch({dim3(blocks), dim3(kThreads), 0, name}, stream, kernel, args, aligned);
}

// Returns true if rows at these strides allow 16-byte accesses.
template <typename T>
bool HasAlignedRows(std::initializer_list<int64_t> strides) {
  return std::all_of(strides.begin(), strides.end(),
                     [](int64_t stride) { return stride % kPack<T> == 0; });
}

}  // namespace

namespace cuda {

// The last pack may be incomplete; it always uses the scalar path.
template <typename T>
void SwiGluForward(const SwiGluArgs<T>& args, cudaStream_t stream) {
  const bool aligned = HasAlignedRows<T>({args.gate_stride, args.up_stride}) &&
                       Aligned16<T>(args.width, args.gate, args.up, args.out);
  Run<T>(args, aligned, SwiGluForwardKernel<T>, "SwiGLU", stream);
}
template <typename T>
void SwiGluBackward(const SwiGluGradArgs<T>& args, cudaStream_t stream) {
  const bool aligned =
      HasAlignedRows<T>({args.gate_stride, args.up_stride, args.dgate_stride, args.dup_stride}) &&
      Aligned16<T>(args.width, args.gate, args.up, args.dout, args.dgate, args.dup);
  Run<T>(args, aligned, SwiGluBackwardKernel<T>, "SwiGLU's gradient", stream);
}

template void SwiGluForward(const SwiGluArgs<float>&, cudaStream_t);
template void SwiGluForward(const SwiGluArgs<Bf16>&, cudaStream_t);
template void SwiGluBackward(const SwiGluGradArgs<float>&, cudaStream_t);
template void SwiGluBackward(const SwiGluGradArgs<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
