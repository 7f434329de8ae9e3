// Launches of a backward for heads of at most kD channels and slices of V of kV channels.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/pair_attention/bias_gradient.cuh"
#include "kernels/common/cuda/pair_attention/key_gradient.cuh"
#include "kernels/common/cuda/pair_attention/query_gradient.cuh"

namespace halflife::kernels::pairs {

template <int kD, int kV, bool kSliced>
void LaunchQueryGradient(const BackwardParams& params, cudaStream_t stream) {
  const PairAttentionArgs& args = params.grads.forward;
  const int num_tiles = NumQueryTiles(args);
  const int64_t blocks = int64_t{1} * args.num_heads * args.batch * num_tiles;
  Launch({dim3(GridBlocks(blocks, "dq of pairs of tiles")), dim3(kThreads),
          QueryGradientBytes(kD, kV, kSliced) + DropoutBytes(args.dropout.drops()),
          "dq of pairs of tiles"},
         stream, QueryGradientKernel<kD, kV, kSliced>, params, NumSlices(args), num_tiles);
}
template <int kD, int kV, typename Pass>
void LaunchKeyGradient(const BackwardParams& params, cudaStream_t stream) {
  const PairAttentionArgs& args = params.grads.forward;
  const int grid_slices = Pass::kValues ? NumSlices(args) : 1;
  const int step_slices = Pass::kSliced ? NumSlices(args) : 1;
  const int64_t blocks =
      int64_t{1} * grid_slices * args.num_kv_heads * args.batch * NumKeyTiles(args);
  Launch({dim3(GridBlocks(blocks, "dk and dv of pairs of tiles")), dim3(kThreads),
          KeyGradientBytes(kD, kV, Pass::kSliced) + DropoutBytes(args.dropout.drops()),
          "dk and dv of pairs of tiles"},
         stream, KeyGradientKernel<kD, kV, Pass>, params, grid_slices, step_slices,
         NumQueryTiles(args));
}

template <int kD, int kV>
void LaunchBackward(const BackwardParams& params, cudaStream_t stream) {
  const PairAttentionArgs& args = params.grads.forward;
  if (NumSlices(args) == 1) {
    LaunchQueryGradient<kD, kV, false>(params, stream);
    LaunchKeyGradient<kD, kV, KeysAndValues>(params, stream);
  } else if constexpr (kV == kMaxBlock) {
    LaunchQueryGradient<kD, kV, true>(params, stream);
    LaunchKeyGradient<kD, kV, KeysOfSlices>(params, stream);
    LaunchKeyGradient<kD, kV, ValuesOfSlice>(params, stream);
  }
  if (params.bands == nullptr) return;
  const int64_t blocks = int64_t{1} * args.batch * args.num_heads * NumBands(args);
  Launch(
      {dim3(GridBlocks(blocks, "dbias of pairs of tiles")), dim3(kThreads),
       BiasGradientBytes(kD, kV) + DropoutBytes(args.dropout.drops()), "dbias of pairs of tiles"},
      stream, BiasGradientKernel<kD, kV>, params, NumSlices(args), NumQueryTiles(args),
      NumBands(args));
}

}  // namespace halflife::kernels::pairs
