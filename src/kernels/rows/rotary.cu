#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/rotary_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 256;

// A thread rotates a pack of channels of one head with the pack `half` channels later, or copies a
// pack that does not rotate. A head has `packs` packs to rotate and, if kPartial, `rest` packs to
// copy. Heads that rotate as a whole have a kernel of their own, which takes fewer registers.
template <typename T, bool kPartial>
__global__ void __launch_bounds__(kThreads)
    RotateKernel(RotaryTokens<T> args, int64_t packs, int64_t rest, bool aligned) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t packs_of_head = kPartial ? packs + rest : packs;
  const int64_t head_dim = kPartial ? args.head_dim : 2 * args.half;
  const int64_t place = item / packs_of_head;  // index of a head, counted over all tokens
  const int64_t num_heads = args.heads[0].num_heads + args.heads[1].num_heads;
  const int64_t token = place / num_heads;
  if (token >= args.num_tokens) return;
  int64_t head = place - token * num_heads;
  const bool second = head >= args.heads[0].num_heads;
  const RotaryHeads<T> heads = second ? args.heads[1] : args.heads[0];
  if (second) head -= args.heads[0].num_heads;
  const int64_t pack = item - place * packs_of_head;
  const bool copies = kPartial && pack >= packs;  // a pack of the channels from 2 half on
  const int64_t j = (copies ? 2 * args.half - packs * kPack<T> : 0) + pack * kPack<T>;
  const T* const x = heads.x + token * heads.x_stride + head * head_dim + j;
  T* const out = heads.out + token * heads.out_stride + head * head_dim + j;
  if (copies) {
    const int rest_count = static_cast<int>(min(head_dim - j, int64_t{kPack<T>}));
    float values[kPack<T>];
    Load(x, rest_count, aligned, values);
    Store(out, rest_count, aligned, values);
    return;
  }
  const int count = static_cast<int>(min(args.half - j, int64_t{kPack<T>}));
  const int64_t table = args.rows[token] * args.half + j;
  float a[kPack<T>], b[kPack<T>], cos[kPack<T>], sin[kPack<T>];
  Load(x, count, aligned, a);
  Load(x + args.half, count, aligned, b);
  LoadFloats(args.cos + table, count, aligned, cos);
  LoadFloats(args.sin + table, count, aligned, sin);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float first = a[i], s = args.direction * sin[i];
    a[i] = first * cos[i] - b[i] * s;
    b[i] = b[i] * cos[i] + first * s;
  }
  Store(out, count, aligned, a);
  Store(out + args.half, count, aligned, b);
}

}  // namespace

namespace cuda {

template <typename T>
void Rotate(const RotaryTokens<T>& args, cudaStream_t stream) {
  const auto packs_of = [](int64_t channels) { return (channels + kPack<T> - 1) / kPack<T>; };
  const int64_t packs = packs_of(args.half), rest = packs_of(args.head_dim - 2 * args.half);
  const auto& [q, k] = args.heads;
  const int64_t items = args.num_tokens * (q.num_heads + k.num_heads) * (packs + rest);
  if (items == 0) return;
  const bool aligned = Aligned16<T>(args.half, q.x, q.out, k.x, k.out, args.cos, args.sin) &&
                       args.head_dim % kPack<T> == 0 && q.x_stride % kPack<T> == 0 &&
                       k.x_stride % kPack<T> == 0 && q.out_stride % kPack<T> == 0 &&
                       k.out_stride % kPack<T> == 0;
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  Launch({dim3(blocks), dim3(kThreads), 0, "rotary encoding"}, stream,
         rest > 0 ? RotateKernel<T, true> : RotateKernel<T, false>, args, packs, rest, aligned);
}

template void Rotate(const RotaryTokens<float>&, cudaStream_t);
template void Rotate(const RotaryTokens<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
