// The reverse scan with Hopper's instructions (sm_90a), for bf16: adjoint_scan.cuh with the chunks
// of warpgroup_chunks.cuh. R^T [64 columns of V, K] of a block is in accumulators. For each chunk,
// from the last to the first, with the names of backward.h:
//
//   dU^T = R^T (k Q)^T + dout^T A
//   R'^T = R^T diag(Gamma) + dout^T (scale q P) - dU^T W
//
// Rounded to bf16, R^T, dout^T and dU^T are operands from registers. TMA loads dout from the
// caller's tensor, so the rows after the chunk's end can belong to another document or contain NaN;
// they are cleared in registers. Results differ from those of the mma.sync scan only by the order
// of the sums.
#pragma once

#include "kernels/delta_rule/cuda/adjoint_scan.cuh"
#include "kernels/delta_rule/cuda/warpgroup_chunks.cuh"

namespace halflife::kernels::delta {

#if HL_HAS_WGMMA

// Stores the operand R^T to rows of K' elements: 16 rows of the warp.
template <int kK, int kSteps>
HL_DEVICE void StoreAdjoint(const uint32_t (&rounded)[kSteps][4], bf16* rows) {
  const int lane = tiles::FreshLaneId();
  bf16* const target = rows + lane / 4 * kK + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)  // as PackFragment
      *reinterpret_cast<uint32_t*>(target + i % 2 * 8 * kK + 16 * j + i / 2 * 8) = rounded[j][i];
  }
}

// Negates an operand.
HL_DEVICE void Negate(uint32_t (&x)[kChunk / 16][4]) {
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j][i] ^= 0x80008000u;
  }
}

// Processes one chunk: stores R^T and dU, and turns R into the gradient of the state before the
// chunk.
template <typename Config>
HL_DEVICE void AdjointChunk(float (&adjoint)[Config::kK / 8][4], const Ring<Config>& ring,
                            const RingStage& from, const AdjointScanParams& params,
                            const ScanPlace& place, int n) {
  constexpr int kK = Config::kK;
  const int width = PaddedValues(params.args.head_dim_v);
  const int64_t index = int64_t{1} * n * params.args.num_value_heads + place.head;
  float du[kChunk / 8][4];
  uint32_t rounded[Config::kPart / 16][4], dout[kChunk / 16][4], written[kChunk / 16][4];
  tiles::LoadOwnValues(dout, from.values, from.chunk->length);
  Clear(du);
  tiles::FenceTiles(du);
  FenceOperands(dout);
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    if (part > 0) {  // the registers of the operand are used again
      WgmmaWait<0>();
      KeepRegisters(rounded);
    }
    PackTiles(rounded, adjoint, part * Config::kPart / 8);
    if (params.arrays.adjoints != nullptr)
      StoreAdjoint<kK>(rounded, static_cast<bf16*>(params.arrays.adjoints) + part * Config::kPart +
                                    (index * width + place.first_value + WarpId() * 16) * kK);
    FenceOperands(rounded);
    if (part == Config::kParts - 1) {
      tiles::ScaleAccumulatorColumns(adjoint, from.through);
      tiles::FenceTiles(adjoint);
    }
    WgmmaFence();
    tiles::IssueTimesTransposed(du, rounded, from.k_exit + part * kChunk * Config::kPart);
    if (part == 0) tiles::IssueTimes(du, dout, from.scores);
    WgmmaCommit();
  }
  tiles::IssueTimes(adjoint, dout, from.q_entry);  // during the next lines
  WgmmaCommit();
  WgmmaWait<1>();
  tiles::FenceTiles(du);
  KeepRegisters(rounded);
  PackTiles(written, du);
  Negate(written);
  FenceOperands(written);
  WgmmaFence();
  tiles::IssueTimes(adjoint, written, from.w);
  WgmmaCommit();
  if (params.arrays.du != nullptr)
    StoreToWorkspace<Config>(du, ring.Results(from.k_exit),
                             static_cast<bf16*>(params.arrays.du) + index * kChunk * width, width,
                             place.first_value);
  WgmmaWait<0>();
  tiles::FenceTiles(adjoint);
  KeepRegisters(dout);
  KeepRegisters(written);
}

// The loop of the warps that multiply.
template <typename Config>
HL_DEVICE void AdjointScanByWarpgroup(const Ring<Config>& ring, const AdjointScanParams& params,
                                      const ScanPlace& place) {
  const DeltaRuleArgs& args = params.args;
  const tiles::StateRows rows = {args.head_dim_k, args.head_dim_v, /*row=*/0,
                                 place.first_value + WarpId() * 16};
  const int64_t state = (int64_t{1} * place.sequence * args.num_value_heads + place.head) *
                        args.head_dim_k * args.head_dim_v;
  float adjoint[Config::kK / 8][4];
  Clear(adjoint);
  if (params.entry != nullptr) tiles::LoadState<true>(adjoint, params.entry + state, rows);
#pragma unroll 1
  for (int n = place.last - 1; n >= place.first; --n) {
    const int i = place.last - 1 - n;
    const RingStage from = WaitForChunk(ring, i);
    AdjointChunk(adjoint, ring, from, params, place, n);
    ClearRarely(adjoint, (from.chunk->flags & kChunkResets) != 0);
    ReleaseChunk(ring, i);
  }
  if (params.exit != nullptr) tiles::StoreState<true>(adjoint, params.exit + state, rows);
}

#endif  // HL_HAS_WGMMA

struct WarpgroupAdjointMaps {
  ChunkMaps chunks;
  tiles::RowsMap dout;
};

// Traps on other architectures, for which no caller selects it.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    WarpgroupAdjointScanKernel([[maybe_unused]] HL_GRID_CONSTANT const AdjointScanParams params,
                               [[maybe_unused]] HL_GRID_CONSTANT const WarpgroupAdjointMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  const Ring<Config> ring(raw);
  const ScanPlace place = MakeScanPlace(params);
  InitRing(ring);
  if (tiles::FreshWarpId() < Config::kWarps) {
    AdjointScanByWarpgroup(ring, params, place);
  } else if (LaneId() == 0) {
    const int column = static_cast<int>(place.head * params.dout.stride_h) + place.first_value;
    LoadRing(ring, maps.chunks, params.args, params.workspace.through,
             {place.last - 1, place.last - place.first, /*step=*/-1, place.head},
             Config::kValueBytes, [&](bf16* to, uint64_t* full, int, const ChunkEntry& chunk) {
               TmaLoad2d(to, &maps.dout.map, full, column, tiles::MapRow(maps.dout, chunk));
             });
  }
#else
  __trap();
#endif
}

template <typename Config>
void LaunchWarpgroupAdjointScanAs(const AdjointScanParams& params, cudaStream_t stream) {
  const DeltaRuleArgs& args = params.args;
  const int64_t blocks = int64_t{1} * args.num_sequences * args.num_value_heads * params.num_slices;
  if (blocks == 0) return;
  const WarpgroupAdjointMaps maps = {
      MakeChunkMaps<Config>(args, params.workspace),
      tiles::MapOfRows(params.dout, args.batch, args.seq_len, args.num_value_heads, args.head_dim_v,
                       "dout")};
  constexpr const char* kName = "delta rule's adjoint scan by warpgroups";
  Launch({dim3(GridBlocks(blocks, kName)), dim3(Config::kThreads), Config::kSmemBytes, kName},
         stream, WarpgroupAdjointScanKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::delta
