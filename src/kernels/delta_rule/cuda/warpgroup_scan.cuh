// The scan of states with Hopper's instructions (sm_90a), which also computes the outputs. It
// replaces the passes `scan` and `output` for bf16. The state is transposed: S^T [64 columns of V,
// K] of a block is in accumulators. For each chunk, with the names of workspace.h:
//
//   U^T = U~^T - S^T W^T
//   out^T = S^T (scale q P)^T + U^T A^T
//   S^T = S^T diag(Gamma) + U^T (k Q)
//
// Rounded to bf16, S^T and U^T are operands from registers. With outputs, neither the states nor U
// are stored. For a backward, which recomputes both from checkpoints, there are no outputs. S and U
// are rounded where the mma.sync passes round them, so results differ from theirs only by the order
// of the sums.
#pragma once

#include "kernels/delta_rule/cuda/scan_block.cuh"
#include "kernels/delta_rule/cuda/warpgroup_chunks.cuh"

namespace halflife::kernels::delta {

constexpr int kWarpgroupValues = 64;  // columns of V that a block owns

#if HL_HAS_WGMMA

// Returns the warp's rows of S^T.
HL_DEVICE tiles::StateRows OwnColumns(const ScanParams& params, const ScanBlock& block) {
  return {params.args.head_dim_k, params.values, /*row=*/0, block.column + WarpId() * 16};
}

template <int kTiles>
HL_DEVICE void LoadFirstColumns(float (&state)[kTiles][4], const ScanParams& params,
                                const ScanBlock& block) {
  const tiles::StateRows rows = OwnColumns(params, block);
  Clear(state);
  if (params.from_checkpoints) {
    tiles::LoadState<true>(state, CheckpointAt(params, block, block.begin), rows);
  } else if (params.from_identity) {
    const int v = rows.column + LaneId() / 4, k = LaneId() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] = v + i / 2 * 8 == k + 8 * n + i % 2 ? 1.0f : 0.0f;
    }
  } else if (params.initial_state != nullptr) {
    tiles::LoadState<true>(state, params.initial_state + StateIndex(params, block), rows);
  }
}

// Stores what a chunk starts with: its checkpoint in fp32, or its state, rounded.
template <typename Config>
HL_DEVICE void StoreStateBefore(float (&state)[Config::kK / 8][4], const Ring<Config>& ring,
                                const ScanParams& params, const ScanBlock& block, int n) {
  if (params.checkpoints != nullptr && !params.from_checkpoints &&
      (n - block.first) % kDeltaCheckpointEvery == 0)
    tiles::StoreState<true>(state, CheckpointAt(params, block, n), OwnColumns(params, block));
  if (Config::kQueries || params.workspace.states == nullptr) return;
  const int width = PaddedValues(params.values);
  const int64_t index = int64_t{1} * n * params.args.num_value_heads + block.head;
#pragma unroll
  for (int part = 0; part < Config::kK / 64; ++part) {
    float d[kChunk / 8][4];
#pragma unroll
    for (int tile = 0; tile < kChunk / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[tile][i] = state[8 * part + tile][i];
    }
    StoreToWorkspace<Config>(
        d, ring.Results(),
        static_cast<bf16*>(params.workspace.states) + (index * Config::kK + 64 * part) * width,
        width, block.column);
  }
}

// read = U~^T - read
HL_DEVICE void SubtractFromValues(float (&read)[kChunk / 8][4],
                                  const uint32_t (&values)[kChunk / 16][4]) {
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // as PackFragment
      float(&tile)[4] = read[2 * j + i / 2];
      tile[i % 2 * 2] = UnpackLo(values[j][i]) - tile[i % 2 * 2];
      tile[i % 2 * 2 + 1] = UnpackHi(values[j][i]) - tile[i % 2 * 2 + 1];
    }
  }
}

// Processes one chunk: computes U, out, and the state after it.
template <typename Config>
HL_DEVICE void ScanChunkByWarpgroup(float (&state)[Config::kK / 8][4], const Ring<Config>& ring,
                                    const RingStage& from, const ScanParams& params,
                                    const ScanBlock& block, int n) {
  constexpr bool kOutputs = Config::kQueries;
  constexpr int kAfterRead = kOutputs ? 1 : 0;  // groups that need not be complete
  const ChunkEntry chunk = *from.chunk;
  float u[kChunk / 8][4], out[kChunk / 8][4];
  uint32_t rounded[Config::kPart / 16][4], values[kChunk / 16][4] = {};
  Clear(u);
  tiles::FenceTiles(u);
  if constexpr (kOutputs) {
    Clear(out);
    tiles::FenceTiles(out);
  }
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    if (part > 0) {  // the registers of the operand are used again
      WgmmaWait<0>();
      KeepRegisters(rounded);
    }
    PackTiles(rounded, state, part * Config::kPart / 8);
    FenceOperands(rounded);
    WgmmaFence();
    tiles::IssueTimesTransposed(u, rounded, from.w + part * kChunk * Config::kPart);
    WgmmaCommit();
    if constexpr (kOutputs) {
      tiles::IssueTimesTransposed(out, rounded, from.q_entry + part * kChunk * Config::kPart);
      WgmmaCommit();
    }
  }
  if (!params.from_identity) tiles::LoadOwnValues(values, from.values, kChunk);
  WgmmaWait<kAfterRead>();
  tiles::FenceTiles(u);
  SubtractFromValues(u, values);
  PackTiles(values, u);
  tiles::ScaleAccumulatorColumns(state, from.through);
  FenceOperands(values);
  tiles::FenceTiles(state);
  WgmmaFence();
  if constexpr (kOutputs) {
    tiles::IssueTimesTransposed(out, values, from.scores);
    WgmmaCommit();
  }
  tiles::IssueTimes(state, values, from.k_exit);
  WgmmaCommit();
  if constexpr (kOutputs) {
    WgmmaWait<1>();
    tiles::FenceTiles(out);
    KeepRegisters(rounded);
    tiles::StoreTransposed<Config::kStageTokens>(
        out, ring.Results(from.w),
        tiles::RowsOf(params.args.out, chunk, block.head, block.column, params.args.head_dim_v),
        chunk.length, WarpId() * 16);
  } else if (params.workspace.states != nullptr) {
    const int width = PaddedValues(params.values);
    const int64_t index = int64_t{1} * n * params.args.num_value_heads + block.head;
    StoreToWorkspace<Config>(u, ring.Results(),
                             static_cast<bf16*>(params.workspace.u) + index * kChunk * width, width,
                             block.column);
  }
  WgmmaWait<0>();
  tiles::FenceTiles(state);
  KeepRegisters(rounded);
  KeepRegisters(values);
}

// The loop of the warps that multiply.
template <typename Config>
HL_DEVICE void ScanByWarpgroup(const Ring<Config>& ring, const ScanParams& params,
                               const ScanBlock& block) {
  float state[Config::kK / 8][4];
  LoadFirstColumns(state, params, block);
#pragma unroll 1
  for (int n = block.begin; n < block.end; ++n) {
    const RingStage from = WaitForChunk(ring, n - block.begin);
    ClearRarely(state, (from.chunk->flags & kChunkResets) != 0);
    StoreStateBefore(state, ring, params, block, n);
    ScanChunkByWarpgroup(state, ring, from, params, block, n);
    ReleaseChunk(ring, n - block.begin);
  }
  if (params.final_state != nullptr)
    tiles::StoreState<true>(state, params.final_state + StateIndex(params, block),
                            OwnColumns(params, block));
}

#endif  // HL_HAS_WGMMA

struct WarpgroupScanMaps {
  ChunkMaps chunks;
  TensorMap values;  // U~
};

// Traps on other architectures, for which no caller selects it.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    WarpgroupScanKernel([[maybe_unused]] HL_GRID_CONSTANT const ScanParams params,
                        [[maybe_unused]] HL_GRID_CONSTANT const WarpgroupScanMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  const Ring<Config> ring(raw);
  const ScanBlock block = MakeScanBlock<kWarpgroupValues>(params);
  if (params.from_checkpoints && block.begin >= block.end) return;
  InitRing(ring);
  if (tiles::FreshWarpId() < Config::kWarps) {
    ScanByWarpgroup(ring, params, block);
  } else if (LaneId() == 0) {
    const int heads = params.args.num_value_heads;
    LoadRing(ring, maps.chunks, params.args, params.workspace.through,
             {block.begin, block.end - block.begin, /*step=*/1, block.head},
             params.from_identity ? 0 : Config::kValueBytes,
             [&](bf16* to, uint64_t* full, int n, const ChunkEntry&) {
               TmaLoad2d(to, &maps.values, full, block.column, (n * heads + block.head) * kChunk);
             });
  }
#else
  __trap();
#endif
}

template <typename Config>
void LaunchWarpgroupScanAs(const ScanParams& params, cudaStream_t stream) {
  const DeltaRuleArgs& args = params.args;
  const int slices = (PaddedValues(params.values) + kWarpgroupValues - 1) / kWarpgroupValues;
  const int64_t blocks = NumScanParts(params) * args.num_value_heads * slices;
  if (blocks == 0) return;
  WarpgroupScanMaps maps = {MakeChunkMaps<Config>(args, params.workspace), {}};
  if (!params.from_identity) {
    TileSource source;
    source.data = params.workspace.u;
    source.num_rows = int64_t{1} * args.num_chunks * args.num_value_heads * kChunk;
    source.num_cols = PaddedValues(params.values);
    source.row_bytes = 2 * source.num_cols;
    source.element_bytes = 2;
    source.box_rows = kChunk;
    source.name = "values of chunks";
    maps.values = MakeTensorMap(source);
  }
  constexpr const char* kName = "delta rule, scan by warpgroups";
  Launch({dim3(GridBlocks(blocks, kName)), dim3(Config::kThreads), Config::kSmemBytes, kName},
         stream, WarpgroupScanKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::delta
