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
// Of a gradient of one number a token and head, the place of a block that has `part` of K and V.
HL_DEVICE float* TokenValue(const TensorView& gradient, const DecayAttentionArgs& args, int part,
                            const ChunkEntry& chunk, int head, int token) {
  const TensorView view = SliceOf(gradient, args, part, 1);
  return static_cast<float*>(view.data) + chunk.row * view.stride_b +
         (chunk.token + token) * view.stride_t + head * view.stride_h;
}

HL_DEVICE void StoreValue(const Rows& rows, int row, int column, float value) {
  const int64_t at = row * rows.stride_t + column;
  if (rows.is_wide) {
    reinterpret_cast<float*>(rows.data)[at] = value;
  } else {
    reinterpret_cast<bf16*>(rows.data)[at] = ToBf16(value);
  }
}

// S - z mean^T of a warp's rows.
template <typename Config>
HL_DEVICE void Centred(float (&state)[Config::kV / 8][4], const DecayAttentionArgs& args,
                       const Centre& centre, int64_t slot, int64_t rest, const ChunkEntry& chunk,
                       const Place& place, const StateRows& rows) {
  const int lane = FreshLaneId();
  const int v_head = SharedHead(place.head, args.num_v_heads, args.num_heads);
  const bf16* const sums = static_cast<const bf16*>(centre.key_sums) +
                           (slot * args.num_heads + place.head) * args.head_dim_k;
  const float* const mean =
      centre.mean + (int64_t{1} * chunk.row * args.num_v_heads + v_head) * args.head_dim_v;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row + lane / 4 + 8 * half;
    const float sum = row < rows.rows ? ToFloat(sums[row]) + ToFloat(sums[rest + row]) : 0.0f;
#pragma unroll
    for (int n = 0; n < Config::kV / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = rows.column + 8 * n + lane % 4 * 2 + i;
        if (column < rows.columns)
          state[n][2 * half + i] = fmaf(-sum, mean[column], state[n][2 * half + i]);
      }
    }
  }
}

// A warp's rows of the state before the group that starts at chunk `index`.
template <typename Config>
HL_DEVICE void LoadCheckpoint(float (&state)[Config::kV / 8][4], const ReverseScanParams& params,
                              const Place& place, int index, const StateRows& rows) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int every = params.checkpoint_every;
  const int64_t slot = CheckpointSlot(place.sequence, place.first, index, every);
  const bf16* const checkpoint =
      static_cast<const bf16*>(args.checkpoints) +
      (slot * args.num_heads + place.head) * (int64_t{1} * args.head_dim_k * args.head_dim_v);
  LoadState<false>(state, checkpoint, rows);
  if (!params.splits_checkpoints) return;
  const int64_t rest = CheckpointElements(args, every);
  AddState<false>(state, checkpoint + rest, rows);
  if (params.centre.mean != nullptr)
    Centred<Config>(state, args, params.centre, slot, rest / args.head_dim_v, args.chunks[index],
                    place, rows);
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
