// What the reverse scans share: states S between two checkpoints wait as A fragments in a scratch
// that stays in the L2 cache; R = dL/d(state), which warps hold in accumulators, has a copy in
// shared memory.
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

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
