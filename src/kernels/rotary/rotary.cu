#include "kernels/cuda/rows.cuh"
#include "kernels/rotary/args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 256;

// A thread turns a pack of channels of one head with the pack half a head further on. `packs` are
// those of half a head.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RotateKernel(RotaryTokens<T> args, int64_t packs, bool aligned) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t head = item / packs;  // counted over all tokens
  const int64_t token = head / args.num_heads;
  if (token >= args.num_tokens) return;
  const int64_t j = (item - head * packs) * kPack<T>;
  const int count = static_cast<int>(min(args.half - j, int64_t{kPack<T>}));
  const int64_t table = args.rows[token] * args.half + j, at = head * 2 * args.half + j;
  float a[kPack<T>], b[kPack<T>], cos[kPack<T>], sin[kPack<T>];
  Load(args.x + at, count, aligned, a);
  Load(args.x + at + args.half, count, aligned, b);
  LoadFloats(args.cos + table, count, aligned, cos);
  LoadFloats(args.sin + table, count, aligned, sin);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float first = a[i], s = args.direction * sin[i];
    a[i] = first * cos[i] - b[i] * s;
    b[i] = b[i] * cos[i] + first * s;
  }
  Store(args.out + at, count, aligned, a);
  Store(args.out + at + args.half, count, aligned, b);
}

template <typename T>
void Run(const RotaryTokens<T>& args, cudaStream_t stream) {
  const int64_t packs = (args.half + kPack<T> - 1) / kPack<T>;
  const int64_t items = args.num_tokens * args.num_heads * packs;
  if (items == 0) return;
  const bool aligned = Aligned16<T>(args.half, args.x, args.out, args.cos, args.sin);
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  Launch({dim3(blocks), dim3(kThreads), 0, "rotary encoding"}, stream, RotateKernel<T>, args, packs,
         aligned);
}

}  // namespace

namespace cuda {

void Rotate(const RotaryTokens<float>& tokens, cudaStream_t stream) { Run(tokens, stream); }
void Rotate(const RotaryTokens<Bf16>& tokens, cudaStream_t stream) { Run(tokens, stream); }

}  // namespace cuda
}  // namespace halflife::kernels
