// Device steps shared by the reverse scans. The states S between two checkpoints are stored as A
// fragments in a scratch buffer that stays in the L2 cache. R = dL/d(state) is held in
// accumulators, with a copy in shared memory.
#pragma once

#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

// Returns the index of a slice of K and V, combined into one number.
HL_DEVICE int PartOf(const ReverseScanParams& params, const BlockIndex& block_index) {
  return block_index.key_slice * params.shape.num_slices + block_index.slice;
}
// Returns the index into [slices, num_sequences, H, num_segments].
HL_DEVICE int64_t PieceOf(const ReverseScanParams& params, int slice,
                          const BlockIndex& block_index) {
  return int64_t{1} * slice * params.grads.forward.num_sequences * params.grads.forward.num_heads *
             params.shape.num_segments +
         block_index.piece;
}
// For a gradient with one number per token and head: its address in the part of a block that owns
// `part` of K and V.
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

// Computes S - z mean^T for a warp's rows.
template <typename Config>
HL_DEVICE void SubtractMeanFromState(float (&state)[Config::kV / 8][4],
                                     const DecayAttentionArgs& args, const ValueMean& value_mean,
                                     int64_t slot, int64_t rest, const ChunkEntry& chunk,
                                     const BlockIndex& block_index, const StateRows& rows) {
  const int lane = FreshLaneId();
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const bf16* const sums = static_cast<const bf16*>(value_mean.key_sums) +
                           (slot * args.num_heads + block_index.head) * args.head_dim_k;
  const float* const mean =
      value_mean.mean + (int64_t{1} * chunk.row * args.num_v_heads + v_head) * args.head_dim_v;
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

// Loads a warp's rows of the state before the group that starts at chunk `index`.
template <typename Config>
HL_DEVICE void LoadCheckpoint(float (&state)[Config::kV / 8][4], const ReverseScanParams& params,
                              const BlockIndex& block_index, int index, const StateRows& rows) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int every = params.checkpoint_every;
  const int64_t slot = CheckpointSlot(block_index.sequence, block_index.first, index, every);
  const bf16* const checkpoint =
      static_cast<const bf16*>(args.checkpoints) +
      (slot * args.num_heads + block_index.head) * (int64_t{1} * args.head_dim_k * args.head_dim_v);
  LoadState<false>(state, checkpoint, rows);
  if (!params.splits_checkpoints) return;
  const int64_t rest = CheckpointElements(args, every);
  AddState<false>(state, checkpoint + rest, rows);
  if (params.value_mean.mean != nullptr)
    SubtractMeanFromState<Config>(state, args, params.value_mean, slot, rest / args.head_dim_v,
                                  args.chunks[index], block_index, rows);
}

// Stores the state as A fragments, which the same thread reads again; LoadFragmentOfState reads
// fragment j.
template <typename Config>
HL_DEVICE void KeepState(uint4* slot, const float (&state)[Config::kV / 8][4]) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int j = 0; j < Config::kV / 16; ++j) {
    Fragment<Config::kTerms> a;
    PackFragment(a, state[2 * j], state[2 * j + 1]);
#pragma unroll
    for (int i = 0; i < Config::kTerms; ++i)
      slot[32 * (Config::kTerms * j + i) + lane] =
          make_uint4(a.terms[i][0], a.terms[i][1], a.terms[i][2], a.terms[i][3]);
  }
}
template <int kTerms>
HL_DEVICE void LoadFragmentOfState(Fragment<kTerms>& a, const uint4* slot, int j) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    const uint4 packed = slot[32 * (kTerms * j + i) + lane];
    a.terms[i][0] = packed.x;
    a.terms[i][1] = packed.y;
    a.terms[i][2] = packed.z;
    a.terms[i][3] = packed.w;
  }
}

// Stores R as terms of bf16 in shared memory, so that every warp can read all of it.
template <typename Config>
HL_DEVICE void CopyAdjoint(bf16* copy, const float (&adjoint)[Config::kV / 8][4]) {
  constexpr int kTerms = Config::kTerms, kDistance = Config::kK * Config::kV;
  const int lane = FreshLaneId();
  const int row = WarpId() * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < Config::kV / 8; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    StorePair<kTerms>(copy + TileOffset<Config::kV>(row, column), kDistance, adjoint[n][0],
                      adjoint[n][1]);
    StorePair<kTerms>(copy + TileOffset<Config::kV>(row + 8, column), kDistance, adjoint[n][2],
                      adjoint[n][3]);
  }
}
// Adds the lane's share of sum(S R), given fragment j of S: to one sum, or to two sums, of rows g
// and of rows g + 8.
template <int kSums, int kTerms, int kTiles>
HL_DEVICE void AddStateProducts(float (&sums)[kSums], const Fragment<kTerms>& state,
                                const float (&adjoint)[kTiles][4], int j) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&d)[4] = adjoint[2 * j + i / 2];
    const float2 pair = FragmentPair(state, i);
    sums[i % kSums] += pair.x * d[i % 2 * 2] + pair.y * d[i % 2 * 2 + 1];
  }
}

// ---- gradients for one decay factor per token ----

// Suffix and prefix sums over the lanes, for one half of the chunk.
HL_DEVICE float SumFromHere(float x) {
  const int lane = LaneId();
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_down_sync(kFullWarp, x, offset);
    if (lane + offset < 32) x += other;
  }
  return x;
}
HL_DEVICE float SumUpToHere(float x) {
  const int lane = LaneId();
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(kFullWarp, x, offset);
    if (lane >= offset) x += other;
  }
  return x;
}

// A token's sums over pairs, scores * (dout v) (reverse_scan.cuh). row: its pairs below the
// diagonal as a query. column: its pairs below the diagonal as a key, without c. diagonal: its pair
// with itself, without c. x: x_r. y: y_s, without c.
struct TokenSums {
  float row, column, diagonal, x, y;
};

// Computes a chunk's gradients of decays and of key scales, by one warp, from sums_of(r) for its
// tokens and `through`, the sum of S R. `part` is the block's index among the partial sums of a
// head. Returns the gradient of a decay that all tokens share.
template <typename SumsOf>
HL_DEVICE float FinishDecays(const SumsOf& sums_of, float through, const DecayTables& tables,
                             const ReverseScanParams& params, const ChunkEntry& chunk, int head,
                             int part) {
  const int lane = LaneId();
  float after[2], before[2], constant = 0;
  through *= tables.transition;
  if ((chunk.flags & kChunkResets) != 0) through = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane + 32 * half;
    const TokenSums sums = sums_of(r);
    if (params.dkey_scale.data != nullptr && r < chunk.length)
      *TokenValue(params.dkey_scale, params.grads.forward, part, chunk, head, r) =
          sums.y + sums.column + sums.diagonal;
    const float y = sums.y * tables.key_scale[r];
    const float h = sums.row - tables.key_scale[r] * sums.column;
    after[half] = h + sums.x;
    before[half] = y;
    if (r < chunk.length)
      constant += static_cast<float>(r) * h + static_cast<float>(r + 1) * sums.x +
                  static_cast<float>(chunk.length - 1 - r) * y;
  }
  if (params.dlog_decay.data != nullptr) {
    float from_here[2], up_to_here[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      from_here[half] = SumFromHere(after[half]);
      up_to_here[half] = SumUpToHere(before[half]);
    }
    from_here[0] += __shfl_sync(kFullWarp, from_here[1], 0);
    up_to_here[1] += __shfl_sync(kFullWarp, up_to_here[0], 31);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = lane + 32 * half;
      float earlier = __shfl_up_sync(kFullWarp, up_to_here[half], 1);
      const float edge = __shfl_sync(kFullWarp, up_to_here[0], 31);
      if (lane == 0) earlier = half == 0 ? 0.0f : edge;
      const bool cut = (r == 0 && (chunk.flags & kChunkResets) != 0) ||
                       __float_as_uint(tables.log2_decay[r]) == 0xff800000u;
      if (r < chunk.length)
        *TokenValue(params.dlog_decay, params.grads.forward, part, chunk, head, r) =
            cut ? 0.0f : from_here[half] + earlier + through;
    }
  }
  return WarpSum(constant) + static_cast<float>(chunk.length) * through;
}

}  // namespace halflife::kernels::decay
