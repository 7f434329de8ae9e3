// Gradients of decay attention with per-channel decays: the part that proceeds from tile to tile.
// One block scans a segment from the end, in tiles of 16 tokens, with R = dL/d(state) in registers.
//
// As in reverse_scan.cuh, a group is the chunks between two checkpoints, and it is scanned twice:
// forward from the checkpoint, storing the state before each tile in a scratch buffer, then in
// reverse. So S before a tile and R after it are available together. For each tile, with the
// operands of channel_operands.cuh:
//
//   x = S dout   y = R v   t = sum_v(S R)        stored: channel_gradients.cuh computes dq, dk and
//                                                the decays' gradients from them
//   dv = scores^T dout + (c k Q) R
//   R' = G R + (scale q P)^T dout                and forward S' = G S + (c k Q)^T v
//
// Shared memory in KiB, K = V = 128:
//   | 4 x (q P [16, K] 4 | k Q 4 | v [16, V] 4 | dout 4 | scores 0.75 | G 0.5) | R [K, V] 32
//   | stage of dv 4 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, int kTerms_>
struct ChannelRevConfig {
  static constexpr int kK = kK_, kV = kV_, kTerms = kTerms_;
  using T = typename Unsplit<kTerms>::Type;  // of v and dout
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = ReverseScanBlocksPerSm(kK);
  static constexpr int kSmemBytes = ChannelReverseScanBytes(kK, kV, kTerms);
};

template <typename Config>
struct ChannelRevShared {
  unsigned char* operands;       // [kTileStages][OperandOffsets::kStage]
  typename Config::T *v, *dout;  // [kTileStages][16, kV]
  StagedTile* tiles;             // [kTileStages]
  bf16* adjoint;                 // R [kTerms][kK, kV]
  bf16* out;                     // [kWarps][16, 16]
  BlockIndex* block_index;
};
template <typename Config>
HL_DEVICE ChannelRevShared<Config> CarveChannelRev(unsigned char* raw) {
  constexpr int kK = Config::kK, kV = Config::kV;
  SmemCarver carver(raw);
  ChannelRevShared<Config> smem;
  smem.operands =
      carver.Take<unsigned char>(kTileStages * OperandOffsets<kK, Config::kTerms>::kStage);
  smem.v = carver.Take<typename Config::T>(kTileStages * kTile * kV);
  smem.dout = carver.Take<typename Config::T>(kTileStages * kTile * kV);
  smem.tiles = carver.Take<StagedTile>(kTileStages);
  smem.adjoint = carver.Take<bf16>(Config::kTerms * kK * kV);
  smem.out = carver.Take<bf16>(Config::kWarps * kTile * 16);
  smem.block_index = carver.Take<BlockIndex>(1);
  return smem;
}

// Iterates over tiles in the order in which they are needed. Groups of chunks come last to first;
// for each group, all tiles except the last one forward, then all tiles in reverse.
struct TileCursor {
  const ChunkEntry* chunks;
  int begin, every;            // first chunk of the segment; chunks per group
  int group_begin, group_end;  // chunks of the group; empty if the scan is complete
  int chunk, row;              // the current tile
  bool sweeps;                 // whether the tile is visited in reverse
  ChunkEntry entry;            // of the current chunk

  HL_DEVICE bool valid() const { return group_end > begin; }
  HL_DEVICE StagedTile staged() const {
    StagedTile tile = StagedTileOf(valid(), entry, chunk, row);
    if (!tile.valid) return tile;
    tile.sweeps = sweeps;
    tile.starts_group = chunk == group_begin && row == 0;
    tile.ends_group = EndsGroup();
    tile.slot = (chunk - group_begin) * kTilesPerChunk + row / kTile;
    return tile;
  }
  HL_DEVICE int LastRow() const { return LastTile(entry); }
  HL_DEVICE void GoTo(int other) {
    chunk = other;
    entry = chunks[other];
  }
  HL_DEVICE bool EndsGroup() const { return chunk == group_end - 1 && row == LastRow(); }

  HL_DEVICE void StartGroupBefore(int end) {
    group_end = end;
    if (!valid()) return;
    group_begin = begin + (end - 1 - begin) / every * every;
    GoTo(group_begin);
    row = 0;
    sweeps = EndsGroup();
  }
  HL_DEVICE void Advance() {
    if (!sweeps) {
      row += kTile;
      if (row > LastRow()) {
        row = 0;
        GoTo(chunk + 1);
      }
      sweeps = EndsGroup();
    } else if (row > 0) {
      row -= kTile;
    } else if (chunk > group_begin) {
      GoTo(chunk - 1);
      row = LastRow();
    } else {
      StartGroupBefore(group_begin);
    }
  }
};

// The addresses of a block's tiles in global memory.
struct ChannelRevTensors {
  TilesOfHead tiles;
  Rows v, dout, dv;
};
// Issues the async copies for the next tile and advances the cursor. A tile that is only replayed
// to rebuild the state needs just its keys and values.
template <typename Config>
HL_DEVICE void StageTile(const ChannelRevShared<Config>& smem, const ReverseScanParams& params,
                         const ChannelRevTensors& tensors, TileCursor& next, int stage) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  using Offsets = OperandOffsets<kK, Config::kTerms>;
  const StagedTile staged = next.staged();
  if (threadIdx.x == 0) smem.tiles[stage] = staged;
  if (!staged.valid) return;
  const char* const source = static_cast<const char*>(params.operands) +
                             tensors.tiles.Index(staged.chunk, staged.row) * Offsets::kBytes;
  unsigned char* const target = smem.operands + stage * OperandOffsets<kK, Config::kTerms>::kStage;
  const int length = staged.tile.length;
  LoadTile<kV, kThreads, kTile>(smem.v + stage * kTile * kV,
                                RowsAt(tensors.v, params.grads.forward.v, staged.tile), length);
  if (staged.sweeps) {
    CopyUnits<kThreads, 0, OperandOffsets<kK, Config::kTerms>::kStage>(target, source);
    LoadTile<kV, kThreads, kTile>(smem.dout + stage * kTile * kV,
                                  RowsAt(tensors.dout, params.grads.dout, staged.tile), length);
  } else {
    CopyUnits<kThreads, Offsets::kKeys, Offsets::kRows>(target, source);
    CopyUnits<kThreads, Offsets::kTransition, kK * 4>(target, source);
  }
  next.Advance();
}

// Stores [16 channels of the warp, 16 tokens] as [token, channel], in whole sectors.
template <typename Config>
HL_DEVICE void StoreProducts(float* target, const float (&acc)[2][4]) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      target[(8 * n + lane % 4 * 2 + i % 2) * Config::kK + WarpId() * 16 + lane / 4 + i / 2 * 8] =
          acc[n][i];
  }
}
// Computes S dout and R v for the tile, and the sums of S R. `state`: the warp's fragments of S.
template <typename Config>
HL_DEVICE void StateProducts(float* products,
                             const Fragment<Config::kTerms> (&state)[Config::kV / 16],
                             const float (&adjoint)[Config::kV / 8][4], const typename Config::T* v,
                             const typename Config::T* dout) {
  constexpr int kV = Config::kV;
  using Offsets = ProductOffsets<Config::kK>;
  const int lane = FreshLaneId();
  float x[2][4], y[2][4];  // two chains of products, to hide latency
  Clear(x);
  Clear(y);
  float through[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) {
    Fragment<Config::kTerms> b, a;
    AddStateProducts(through, state[j], adjoint, j);
    LoadFragment<kV, false, /*kColumnsFirst=*/true>(b, dout, lane, 0, 16 * j);
    MmaPair(x[0], x[1], state[j], b);
    PackFragment(a, adjoint[2 * j], adjoint[2 * j + 1]);
    LoadFragment<kV, false, /*kColumnsFirst=*/true>(b, v, lane, 0, 16 * j);
    MmaPair(y[0], y[1], a, b);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(through[half]);
    if (lane % 4 == 0) products[Offsets::kThrough + WarpId() * 16 + lane / 4 + 8 * half] = sum;
  }
  StoreProducts<Config>(products + Offsets::kX, x);
  StoreProducts<Config>(products + Offsets::kY, y);
}

// dv = scores^T dout + (c k Q) R, 16 columns per warp.
template <typename Config>
HL_DEVICE void GradValues(const ChannelRevShared<Config>& smem, const StagedOperands& operands,
                          const typename Config::T* dout, const Rows& rows, int length) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int rows_k = RowsFirst<kK>(lane), rows_v = RowsFirst<kV>(lane);
  const bf16* const k = operands.k;
  bf16* const stage = smem.out + WarpId() * kTile * 16;
#pragma unroll 1
  for (int column = WarpId() * 16; column < kV; column += Config::kWarps * 16) {
    float acc[2][4], other[2][4];
    Clear(acc);
    Clear(other);
    Fragment<Config::kTerms> a, b;
#pragma unroll
    for (int c = 0; c < kK; c += 32) {
      LoadFragment<kK, false>(a, k, kTile * kK, rows_k, 0, c);
      LoadFragment<kV, true>(b, smem.adjoint, kK * kV, rows_v, c, column);
      MmaPair(acc[0], acc[1], a, b);
      LoadFragment<kK, false>(a, k, kTile * kK, rows_k, 0, c + 16);
      LoadFragment<kV, true>(b, smem.adjoint, kK * kV, rows_v, c + 16, column);
      MmaPair(other[0], other[1], a, b);
    }
    ScoresFragment<true>(a, operands.scores);
    LoadFragment<kV, true, /*kColumnsFirst=*/false>(b, dout, lane, 0, column);
    MmaPair(acc[0], acc[1], a, b);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = lane / 4 + 8 * half, c = 8 * n + lane % 4 * 2;
        const float lo = acc[n][2 * half] + other[n][2 * half];
        const float hi = acc[n][2 * half + 1] + other[n][2 * half + 1];
        if (!rows.is_wide) {
          *reinterpret_cast<uint32_t*>(stage + r * 16 + c) = PackBf16(lo, hi);
        } else if (r < length) {
          if (column + c < rows.dim) StoreValue(rows, r, column + c, lo);
          if (column + c + 1 < rows.dim) StoreValue(rows, r, column + c + 1, hi);
        }
      }
    }
    if (!rows.is_wide) FlushTransposed<kTile>(stage, rows, length, column);
  }
}

// The scan of one block over its segment. The warp's rows of R and, in the forward part, of S are
// held by the caller.
template <typename Config>
struct ChannelReverseScan {
  static constexpr int kK = Config::kK, kV = Config::kV;
  static constexpr int kSlot = Config::kTerms * kK * kV / 8;  // a state, in units of 16 bytes

  const ReverseScanParams& params;
  const BlockIndex& block_index;
  const ChannelRevShared<Config>& smem;
  const ChannelRevTensors& tensors;
  uint4* scratch;  // the warp's part: [group's tiles][kSlot]

  HL_DEVICE const DecayAttentionArgs& args() const { return params.grads.forward; }
  HL_DEVICE uint4* StateSlot(int slot) const { return scratch + int64_t{1} * slot * kSlot; }
  HL_DEVICE StateRows WarpRows() const {
    return {args().head_dim_k, args().head_dim_v, block_index.key_slice * kK + FreshWarpId() * 16,
            block_index.slice * kV};
  }
  HL_DEVICE int64_t StateElements() const {
    return int64_t{1} * args().head_dim_k * args().head_dim_v;
  }
  // Returns the tile's x, y and t for one slice of V.
  HL_DEVICE float* Products(const StagedTile& at) const {
    return params.products +
           (block_index.slice * params.num_tiles + tensors.tiles.Index(at.chunk, at.row)) *
               ProductOffsets<kK>::kElements;
  }
};

// Computes everything in a tile's gradients that depends on the states, the R before the tile, and
// dv. Barrier: the copy of R is complete.
template <typename Config>
HL_DEVICE void SweepTile(const ChannelReverseScan<Config>& scan, const StagedTile& at, int stage,
                         float (&adjoint)[Config::kV / 8][4]) {
  constexpr int kK = Config::kK, kV = Config::kV, kTerms = Config::kTerms;
  const ChannelRevShared<Config>& smem = scan.smem;
  const auto* const v = smem.v + stage * kTile * kV;
  const auto* const dout = smem.dout + stage * kTile * kV;
  const StagedOperands operands = OperandsOf<kK, kTerms>(smem.operands, stage);
  Fragment<kTerms> state[kV / 16];
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) LoadFragmentOfState(state[j], scan.StateSlot(at.slot), j);
  CopyAdjoint<Config>(smem.adjoint, adjoint);
  StateProducts<Config>(scan.Products(at), state, adjoint, v, dout);
  AdvanceState<kTerms, kK, kV>(adjoint, operands.q, dout, operands.transition);
  if ((at.tile.flags & kChunkResets) != 0) Clear(adjoint);
  __syncthreads();
  GradValues<Config>(smem, operands, dout, RowsAt(scan.tensors.dv, scan.params.dv, at.tile),
                     at.tile.length);
}

// Barriers: (1) a tile is loaded, and the previous tile's stage and the copy of R are free; (2) the
// copy of R is complete.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelReverseScanKernel(const ReverseScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV;
  using Scan = ChannelReverseScan<Config>;
  HL_DYNAMIC_SMEM(raw);
  const ChannelRevShared<Config> smem = CarveChannelRev<Config>(raw);
  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  // The same value for all threads. Shared memory saves registers, which are scarce here.
  if (threadIdx.x == 0)
    *smem.block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  __syncthreads();
  const BlockIndex& block_index = *smem.block_index;
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const int column = block_index.slice * kV, dim = args.head_dim_v;
  const ChannelRevTensors tensors = {TilesOfHeadOf(args, params.shape, block_index),
                                     HeadRows(args.v, v_head, column, dim),
                                     HeadRows(grads.dout, block_index.head, column, dim),
                                     HeadRows(SliceOf(params.dv, args, block_index.key_slice, dim),
                                              block_index.head, column, dim)};
  const Scan scan = {
      params, block_index, smem, tensors,
      static_cast<uint4*>(params.group) +
          int64_t{1} * blockIdx.x * params.checkpoint_every * kTilesPerChunk * Scan::kSlot +
          WarpId() * (Scan::kSlot / Config::kWarps)};

  float adjoint[kV / 8][4], state[kV / 8][4];
  Clear(adjoint);
  Clear(state);
  if (params.segment_states != nullptr) {
    LoadState<false>(adjoint, params.segment_states + block_index.piece * scan.StateElements(),
                     scan.WarpRows());
  } else if (grads.dfinal_state != nullptr) {
    LoadState<false>(
        adjoint,
        static_cast<const float*>(grads.dfinal_state) + block_index.state * scan.StateElements(),
        scan.WarpRows());
  }
  TileCursor next = {args.chunks, block_index.begin, params.checkpoint_every};
  next.StartGroupBefore(block_index.end);
  const auto stage_next = [&](int stage) { StageTile(smem, params, tensors, next, stage); };
  VisitStaged(smem.tiles, stage_next, [&](const StagedTile& at, int stage) {
    if (!at.sweeps || at.ends_group) {  // forward, or the first in reverse: S before it is new
      if (at.starts_group)
        LoadCheckpoint<Config>(state, params, block_index, at.chunk, scan.WarpRows());
      if ((at.tile.flags & kChunkResets) != 0) Clear(state);
      KeepState<Config>(scan.StateSlot(at.slot), state);
    }
    if (at.sweeps) {
      SweepTile(scan, at, stage, adjoint);
    } else {
      const StagedOperands operands = OperandsOf<kK, Config::kTerms>(smem.operands, stage);
      AdvanceState<Config::kTerms, kK, kV>(state, operands.k, smem.v + stage * kTile * kV,
                                           operands.transition);
    }
  });
  if (grads.dinitial_state != nullptr && block_index.starts)
    StoreState<false>(
        adjoint,
        static_cast<float*>(grads.dinitial_state) + block_index.state * scan.StateElements(),
        scan.WarpRows());
}

template <int kK, int kV, int kTerms>
void LaunchChannelReverseScan(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ChannelRevConfig<kK, kV, kTerms>;
  Launch({NumBlocks(params.grads.forward, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention reverse scan, decays of channels"},
         stream, ChannelReverseScanKernel<Config>, params);
}

}  // namespace halflife::kernels::decay
