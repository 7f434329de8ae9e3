#include <algorithm>

#include "kernels/common/cuda/device.h"
#include "kernels/rows/decay_growth_args.h"

namespace halflife::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// Tokens of a block; every block computes the growth of all heads.
constexpr int64_t kTokens = 256;

// Returns the larger number, or NaN. fmaxf would drop a NaN, which must reach the results.
HL_DEVICE float Larger(float x, float y) {
  if (x != x || y != y) return x + y;
  return fmaxf(x, y);
}
HL_DEVICE float WarpLargest(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = Larger(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

// Computes growth[h] = mu of head h, one warp per head.
HL_DEVICE void FindGrowth(const DecayGrowthArgs& args, float* growth) {
  for (int64_t head = WarpId(); head < args.heads; head += kWarps) {
    const float* const x = args.log_decay + head * args.decay_heads / args.heads * args.width;
    float largest = 0;
    for (int64_t i = LaneId(); i < args.width; i += 32) largest = Larger(largest, x[i]);
    largest = WarpLargest(largest);
    if (LaneId() == 0) growth[head] = largest;
  }
}

// Stores the results that do not depend on tokens. Called by the first block.
HL_DEVICE void StoreConstants(const DecayGrowthArgs& args, const float* growth) {
  for (int64_t i = threadIdx.x; i < args.decay_heads * args.width; i += kThreads) {
    // One of the heads that read it.
    const int64_t reader = i / args.width * args.heads / args.decay_heads;
    args.lowered[i] = args.log_decay[i] - growth[reader];
  }
  for (int64_t i = threadIdx.x; i < args.sequences * args.heads; i += kThreads) {
    const int64_t last = args.last[i / args.heads];
    const bool any = last < args.num_tokens();
    const int64_t steps = any ? last % args.seq_len - args.begin[last] : 0;
    args.final_log_scale[i] =
        any ? static_cast<double>(steps) * static_cast<double>(growth[i % args.heads]) : 0.0;
  }
}

// Grid: blocks of tokens, at least one.
__global__ void __launch_bounds__(kThreads) DecayGrowthKernel(DecayGrowthArgs args) {
  HL_SHARED(growth, float[kGrowthMaxHeads]);
  FindGrowth(args, growth);
  __syncthreads();
  if (blockIdx.x == 0) StoreConstants(args, growth);
  const int64_t first = kTokens * blockIdx.x * args.heads;
  const int64_t end = min(args.num_tokens() * args.heads, first + kTokens * args.heads);
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const int64_t token = i / args.heads;
    const auto steps = static_cast<double>(token % args.seq_len - args.begin[token]);
    const auto mu = static_cast<double>(growth[i % args.heads]);
    args.key_factor[i] = mu == 0 ? 1.0f : static_cast<float>(exp(-steps * mu));
  }
}

}  // namespace

namespace cuda {

void DecayGrowth(const DecayGrowthArgs& args, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>(std::max<int64_t>(1, (args.num_tokens() + kTokens - 1) / kTokens));
  Launch({dim3(blocks), dim3(kThreads), 0, "growth of decays"}, stream, DecayGrowthKernel, args);
}

}  // namespace cuda
}  // namespace halflife::kernels
