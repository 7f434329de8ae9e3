#include "kernels/common/cuda/rows.cuh"
#include "kernels/cross_entropy/cross_entropy_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kWidth = kPack<float>;

HL_DEVICE float Infinity() { return __uint_as_float(0x7f800000u); }
HL_DEVICE float Nan() { return __uint_as_float(0x7fc00000u); }

// Returns the number of columns of the pack that starts at column c.
HL_DEVICE int PackCount(const LogitRows& args, int64_t c) {
  return static_cast<int>(min(args.vocab - c, int64_t{kWidth}));
}

// The sum of e^(x - max) over the elements so far. {-inf, 0} if there were none, or only -inf.
struct Softmax {
  float max, sum;
};
// Returns the value to subtract from exponents. It is never -inf, because -inf - -inf is NaN.
HL_DEVICE float ShiftOf(float max) { return max == -Infinity() ? 0.0f : max; }
HL_DEVICE Softmax Merge(Softmax a, Softmax b) {
  const float max = fmaxf(a.max, b.max), shift = ShiftOf(max);
  return {max, a.sum * expf(a.max - shift) + b.sum * expf(b.max - shift)};
}

// Adds a pack. fmaxf drops a NaN, but the exponential carries it into the sum.
HL_DEVICE void Add(const float (&x)[kWidth], int count, Softmax& softmax) {
  float max = softmax.max;
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < count) max = fmaxf(max, x[i]);
  const float shift = ShiftOf(max);
  softmax.sum *= expf(softmax.max - shift);
  softmax.max = max;
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < count) softmax.sum += expf(x[i] - shift);
}

// Merges the values of the block's threads, with the same bits in every thread.
HL_DEVICE Softmax BlockMerge(Softmax softmax, Softmax (&partial)[kMaxRowWarps]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    softmax = Merge(softmax, {__shfl_xor_sync(kFullWarp, softmax.max, offset),
                              __shfl_xor_sync(kFullWarp, softmax.sum, offset)});
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = softmax;
  __syncthreads();
  softmax = partial[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / 32; ++warp)
    softmax = Merge(softmax, partial[warp]);
  return softmax;
}

// Returns the gradient of one row of logits, in the type in which it is stored.
template <typename T>
HL_DEVICE T* GradientRow(const LogitRows& args, int64_t row) {
  return reinterpret_cast<T*>(args.logits + row * args.vocab);
}
HL_DEVICE void StorePack(float* to, int count, bool aligned, const float (&x)[kWidth]) {
  Store(to, count, aligned, x);
}
HL_DEVICE void StorePack(Bf16* to, int count, bool aligned, const float (&x)[kWidth]) {
  if (aligned) {
    *reinterpret_cast<uint2*>(to) = make_uint2(PackBf16(x[0], x[1]), PackBf16(x[2], x[3]));
  } else {
    Store(to, count, false, x);
  }
}

template <typename T>
HL_DEVICE void StoreNoTarget(const LogitRows& args, int64_t row, bool aligned) {
  const float zeros[kWidth] = {};
  const bool wanted = args.gradient != LogitGradient::kNone;
  for (int64_t c = kWidth * threadIdx.x; wanted && c < args.vocab; c += kWidth * blockDim.x)
    StorePack(GradientRow<T>(args, row) + c, PackCount(args, c), aligned, zeros);
  if (threadIdx.x == 0) args.loss[row] = args.log_partition[row] = 0;
}

HL_DEVICE float PickedLogit(const LogitRows& args, int64_t row, int64_t target) {
  return target < args.vocab ? args.logits[row * args.vocab + target] : Nan();
}

// The values from which the gradient of a row follows: d logit = e^(logit - max) factor - onehot.
struct RowGradient {
  float max, factor;
  int64_t target;
  // Replaces the logits of columns c, c + 1, ... by their gradients.
  HL_DEVICE void Differentiate(int64_t c, float (&x)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      x[i] = expf(x[i] - max) * factor - (c + i == target ? 1.0f : 0.0f);
  }
};

// Stores the row's loss and ln Z.
HL_DEVICE RowGradient FinishRow(const LogitRows& args, int64_t row, int64_t target, float picked,
                                Softmax softmax) {
  const float log_partition = softmax.max + logf(softmax.sum);
  if (threadIdx.x == 0) {
    args.loss[row] = log_partition - picked;
    args.log_partition[row] = log_partition;
  }
  const float factor = (1.0f + 2.0f * args.z_loss_weight * log_partition) / softmax.sum;
  return {softmax.max, target < args.vocab ? factor : Nan(), target};
}

// Grid: rows. T is the type of the gradient. Makes two passes over a row; the second reads it from
// the L2 cache.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) CrossEntropyKernel(LogitRows args, bool aligned) {
  HL_SHARED(partial, Softmax[kMaxRowWarps]);
  const int64_t row = blockIdx.x, target = args.targets[row];
  if (target < 0) {
    StoreNoTarget<T>(args, row, aligned);
    return;
  }
  const float* const logits = args.logits + row * args.vocab;
  // Read before the barrier in BlockMerge, after which the gradient overwrites the logits.
  const float picked = PickedLogit(args, row, target);
  const int64_t first = kWidth * threadIdx.x, stride = kWidth * blockDim.x;
  Softmax softmax = {-Infinity(), 0.0f};
  float x[kWidth];
  for (int64_t c = first; c < args.vocab; c += stride) {
    Load(logits + c, PackCount(args, c), aligned, x);
    Add(x, PackCount(args, c), softmax);
  }
  softmax = BlockMerge(softmax, partial);
  const RowGradient gradient = FinishRow(args, row, target, picked, softmax);
  if (args.gradient == LogitGradient::kNone) return;
  for (int64_t begin = 0; begin < args.vocab; begin += stride) {
    const int64_t c = begin + first;
    if (c < args.vocab) Load(logits + c, PackCount(args, c), aligned, x);
    // A bf16 gradient of columns [c, d) lies over the logits of columns [c / 2, d / 2). After this
    // barrier all threads have read those.
    if (sizeof(T) < sizeof(float)) __syncthreads();
    if (c >= args.vocab) continue;
    gradient.Differentiate(c, x);
    StorePack(GradientRow<T>(args, row) + c, PackCount(args, c), aligned, x);
  }
}

// Packs that a thread of a row in registers holds.
constexpr int kHeldPacks = 16;

// The same with the row in registers, and thus one pass over memory. The order of the sums and the
// results are those of CrossEntropyKernel.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    HeldCrossEntropyKernel(LogitRows args, bool aligned) {
  HL_SHARED(partial, Softmax[kMaxRowWarps]);
  const int64_t row = blockIdx.x, target = args.targets[row];
  if (target < 0) {
    StoreNoTarget<T>(args, row, aligned);
    return;
  }
  const float* const logits = args.logits + row * args.vocab;
  // Read before the barrier in BlockMerge, after which the gradient overwrites the logits.
  const float picked = PickedLogit(args, row, target);
  const int64_t first = kWidth * threadIdx.x, stride = kWidth * blockDim.x;
  float x[kHeldPacks][kWidth];
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p)
    if (first + p * stride < args.vocab)
      Load(logits + first + p * stride, PackCount(args, first + p * stride), aligned, x[p]);
  Softmax softmax = {-Infinity(), 0.0f};
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p)
    if (first + p * stride < args.vocab) Add(x[p], PackCount(args, first + p * stride), softmax);
  softmax = BlockMerge(softmax, partial);
  const RowGradient gradient = FinishRow(args, row, target, picked, softmax);
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p) {
    const int64_t c = first + p * stride;
    if (c >= args.vocab) continue;
    gradient.Differentiate(c, x[p]);
    StorePack(GradientRow<T>(args, row) + c, PackCount(args, c), aligned, x[p]);
  }
}

}  // namespace

namespace cuda {

void ReduceRows(const LogitRows& args, cudaStream_t stream) {
  if (args.num_rows == 0) return;
  const int64_t warps =
      std::clamp<int64_t>((args.vocab + 32 * kWidth - 1) / (32 * kWidth), 1, kMaxRowWarps);
  const bool aligned = Aligned16<float>(args.vocab, args.logits);
  const bool held = args.gradient != LogitGradient::kNone &&
                    args.vocab <= int64_t{kHeldPacks} * kWidth * kRowThreads;
  const auto kernel = args.gradient == LogitGradient::kBf16
                          ? (held ? HeldCrossEntropyKernel<Bf16> : CrossEntropyKernel<Bf16>)
                          : (held ? HeldCrossEntropyKernel<float> : CrossEntropyKernel<float>);
  Launch({dim3(static_cast<unsigned>(args.num_rows)), dim3(static_cast<unsigned>(32 * warps)), 0,
          "cross entropy"},
         stream, kernel, args, aligned);
}

}  // namespace cuda
}  // namespace halflife::kernels
