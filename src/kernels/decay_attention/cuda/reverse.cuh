// What the reverse scans share: states S between two checkpoints wait as A fragments in a scratch
// that stays in the L2 cache; R = dL/d(state), which warps hold in accumulators, has a copy in
// shared memory.
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

// The slice of K and V, counted as one index.
HL_DEVICE int PartOf(const ReverseScanParams& params, const Place& place) {
  return place.key_slice * params.shape.num_slices + place.slice;
}
// Its place in [slices, num_sequences, H, num_segments].
HL_DEVICE int64_t PieceOf(const ReverseScanParams& params, int slice, const Place& place) {
  return int64_t{1} * slice * params.grads.forward.num_sequences * params.grads.forward.num_heads *
             params.shape.num_segments +
         place.piece;
}
// The block's own of a gradient of one number a token and head.
HL_DEVICE float* TokenValue(const TensorView& gradient, const ReverseScanParams& params,
                            const ChunkEntry& chunk, const Place& place, int token) {
  const TensorView view = SliceOf(gradient, params.grads.forward, PartOf(params, place), 1);
  return static_cast<float*>(view.data) + chunk.row * view.stride_b +
         (chunk.token + token) * view.stride_t + place.head * view.stride_h;
}

// The state as A fragments, which the same thread reads again.
template <typename Config>
HL_DEVICE void KeepState(uint4* slot, const float (&state)[Config::kV / 8][4]) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int j = 0; j < Config::kV / 16; ++j) {
    uint32_t a[4];
    PackFragment(a, state[2 * j], state[2 * j + 1]);
    slot[32 * j + lane] = make_uint4(a[0], a[1], a[2], a[3]);
  }
}

// R in bf16, where every warp can read all of it.
template <typename Config>
HL_DEVICE void CopyAdjoint(bf16* copy, const float (&adjoint)[Config::kV / 8][4]) {
  const int lane = FreshLaneId();
  const int row = WarpId() * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < Config::kV / 8; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(copy + TileOffset<Config::kV>(row, column)) =
        PackBf16(adjoint[n][0], adjoint[n][1]);
    *reinterpret_cast<uint32_t*>(copy + TileOffset<Config::kV>(row + 8, column)) =
        PackBf16(adjoint[n][2], adjoint[n][3]);
  }
}

}  // namespace halflife::kernels::decay
