#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/dropout_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 256;
constexpr int kChannelsOfADraw = 4;

// A thread has a pack of channels of one token and draws their masks in registers. `packs` is the
// number of packs per token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(DropoutArgs<T> args, int64_t packs, bool aligned) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t token = item / packs;
  if (token >= args.num_tokens) return;
  const int64_t channel = (item - token * packs) * kPack<T>;
  const int count = static_cast<int>(min(args.dim - channel, int64_t{kPack<T>}));
  const int64_t row = token / args.seq_len, at = token * args.dim + channel;
  const auto position = static_cast<uint32_t>(args.first_position + token - row * args.seq_len);
  float x[kPack<T>];
  Load(args.x + at, count, aligned, x);
#pragma unroll
  for (int draw = 0; draw < kPack<T> / kChannelsOfADraw; ++draw) {
    const RandomCounter words = Draw(args.key, args.samples[row], position,
                                     static_cast<uint32_t>(channel / kChannelsOfADraw + draw));
#pragma unroll
    for (int i = 0; i < kChannelsOfADraw; ++i) {
      float& value = x[kChannelsOfADraw * draw + i];
      value = (words.x[i] >> 8) < args.threshold ? 0.0f : value * args.scale;
    }
  }
  Store(args.out + at, count, aligned, x);
}

}  // namespace

namespace cuda {

template <typename T>
void Dropout(const DropoutArgs<T>& args, cudaStream_t stream) {
  const int64_t packs = (args.dim + kPack<T> - 1) / kPack<T>;
  const int64_t items = args.num_tokens * packs;
  if (items == 0) return;
  const bool aligned = Aligned16<T>(args.dim, args.x, args.out);
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  Launch({dim3(blocks), dim3(kThreads), 0, "dropout"}, stream, DropoutKernel<T>, args, packs,
         aligned);
}

template void Dropout(const DropoutArgs<float>&, cudaStream_t);
template void Dropout(const DropoutArgs<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
