#include "kernels/common/cuda/rows.cuh"
#include "kernels/cross_entropy/cross_entropy_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kWidth = kPack<float>;

HL_DEVICE float Infinity() { return __uint_as_float(0x7f800000u); }
HL_DEVICE float Nan() { return __uint_as_float(0x7fc00000u); }

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

HL_DEVICE void StoreNoTarget(const LogitRows& args, int64_t row, bool aligned) {
  const float zeros[kWidth] = {};
  for (int64_t c = kWidth * threadIdx.x; args.gradient && c < args.vocab; c += kWidth * blockDim.x)
    Store(args.logits + row * args.vocab + c,
          static_cast<int>(min(args.vocab - c, int64_t{kWidth})), aligned, zeros);
  if (threadIdx.x == 0) args.loss[row] = args.log_partition[row] = 0;
}

// Grid: rows. Makes two passes over a row; the second reads it from the L2 cache.
__global__ void __launch_bounds__(kRowThreads) CrossEntropyKernel(LogitRows args, bool aligned) {
  HL_SHARED(partial, Softmax[kMaxRowWarps]);
  const int64_t row = blockIdx.x, target = args.targets[row];
  if (target < 0) {
    StoreNoTarget(args, row, aligned);
    return;
  }
  float* const logits = args.logits + row * args.vocab;
  // Read before the barrier in BlockMerge, after which the gradient overwrites the logits.
  const float picked = target < args.vocab ? logits[target] : Nan();
  const int64_t first = kWidth * threadIdx.x, stride = kWidth * blockDim.x;
  Softmax softmax = {-Infinity(), 0.0f};
  float x[kWidth];
  for (int64_t c = first; c < args.vocab; c += stride) {
    const int count = static_cast<int>(min(args.vocab - c, int64_t{kWidth}));
    Load(logits + c, count, aligned, x);
    Add(x, count, softmax);
  }
  softmax = BlockMerge(softmax, partial);
  const float log_partition = softmax.max + logf(softmax.sum);
  if (threadIdx.x == 0) {
    args.loss[row] = log_partition - picked;
    args.log_partition[row] = log_partition;
  }
  if (!args.gradient) return;
  float factor = (1.0f + 2.0f * args.z_loss_weight * log_partition) / softmax.sum;
  if (target >= args.vocab) factor = Nan();
  for (int64_t c = first; c < args.vocab; c += stride) {
    const int count = static_cast<int>(min(args.vocab - c, int64_t{kWidth}));
    Load(logits + c, count, aligned, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      x[i] = expf(x[i] - softmax.max) * factor - (c + i == target ? 1.0f : 0.0f);
    Store(logits + c, count, aligned, x);
  }
}

}  // namespace

namespace cuda {

void ReduceRows(const LogitRows& args, cudaStream_t stream) {
  if (args.num_rows == 0) return;
  const int64_t warps =
      std::clamp<int64_t>((args.vocab + 32 * kWidth - 1) / (32 * kWidth), 1, kMaxRowWarps);
  const bool aligned = Aligned16<float>(args.vocab, args.logits);
  Launch({dim3(static_cast<unsigned>(args.num_rows)), dim3(static_cast<unsigned>(32 * warps)), 0,
          "cross entropy"},
         stream, CrossEntropyKernel, args, aligned);
}

}  // namespace cuda
}  // namespace halflife::kernels
