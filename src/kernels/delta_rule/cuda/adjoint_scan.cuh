// The reverse scan over chunks, which computes the gradient R of the state from the last chunk to
// the first (see backward.h).
//
// A block owns one sequence, one value head and 64 columns of V. Each of its four warps holds R^T
// for 16 of these columns in accumulators. The columns are independent, so a chunk needs only one
// barrier, after the loads of the tiles that all warps read. The accumulators of R^T are used
// directly as an operand of the next product. dU goes through shared memory, because there are not
// enough registers for all of it.
//
// Shared memory of a stage, bf16, K = 128, in KiB: k_exit, q_entry and w [64, K] 17 each, scores
// and dout [64, 64] 9 each, through 0.5. Once: dU [64, 64] 9.
#pragma once

#include "kernels/delta_rule/cuda/accumulators.cuh"
#include "kernels/delta_rule/cuda/backward.h"

namespace halflife::kernels::delta {

constexpr int kValues = 64;  // columns of V of a block of the scan, and of a step of the gradients

struct AdjointScanParams {
  DeltaRuleArgs args;
  TensorView dout;
  Workspace workspace;
  BackwardArrays arrays;         // `du` and `adjoints` may be null: not computed
  const float* entry = nullptr;  // [num_sequences, HV, K, V]; null: zero
  float* exit = nullptr;         // null: not computed
  int num_slices = 0;            // of V
};

// Launches the wgmma version of the scan, on sm_90a (warpgroup_adjoint_scan.cuh). Requires
// CanScanAdjointByWgmma.
void LaunchWarpgroupAdjointScan(const AdjointScanParams& params, cudaStream_t stream);

template <typename T_, int kK_, int kStages_ = sizeof(T_) == 2 && kK_ <= 128 ? 2 : 1>
struct AdjointScanConfig {
  using T = T_;
  using Rows = Matrix<T, kK_>;
  using Square = Matrix<T, kChunk>;  // also [64, kValues]
  static_assert(kChunk == kValues);
  static constexpr int kK = kK_, kThreads = 128;
  static constexpr int kStages = kStages_;
  static constexpr int kSmemBytes = kStages * (3 * Rows::Bytes(kChunk) + 2 * Square::Bytes(kChunk) +
                                               static_cast<int>(sizeof(float)) * kK) +
                                    Square::Bytes(kChunk);
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

// The tiles of one chunk.
template <typename Config>
struct AdjointScanTiles {
  typename Config::Rows k_exit, q_entry, w;
  typename Config::Square scores, dout;
  float* through;  // [K]
};
template <typename Config>
struct AdjointScanShared {
  using T = typename Config::T;

  T *rows, *squares;  // [kStages][3][64, K], [kStages][2][64, 64]
  float* through;     // [kStages][K]
  typename Config::Square du;

  HL_DEVICE explicit AdjointScanShared(unsigned char* raw) {
    SmemCarver carver(raw);
    rows = carver.Take<T>(Config::kStages * 3 * Config::Rows::Elements(kChunk));
    squares = carver.Take<T>(Config::kStages * 2 * Config::Square::Elements(kChunk));
    through = carver.Take<float>(Config::kStages * Config::kK);
    du.data = carver.Take<T>(Config::Square::Elements(kChunk));
  }
  HL_DEVICE AdjointScanTiles<Config> Stage(int stage) const {
    constexpr int kRows = Config::Rows::Elements(kChunk),
                  kSquare = Config::Square::Elements(kChunk);
    T* const first = rows + stage * 3 * kRows;
    T* const square = squares + stage * 2 * kSquare;
    return {{first},  {first + kRows},    {first + 2 * kRows},
            {square}, {square + kSquare}, through + stage * Config::kK};
  }
};

struct ScanPlace {
  int sequence, head, first_value;  // of V
  int first, last;                  // chunks [first, last)
};
HL_DEVICE ScanPlace MakeScanPlace(const AdjointScanParams& params) {
  ScanPlace place;
  int index = static_cast<int>(blockIdx.x);
  place.first_value = index % params.num_slices * kValues;
  index /= params.num_slices;
  place.head = index % params.args.num_value_heads;
  place.sequence = index / params.args.num_value_heads;
  place.first = params.args.sequence_begin[place.sequence];
  place.last = params.args.sequence_begin[place.sequence + 1];
  return place;
}

template <typename Config>
HL_DEVICE void LoadScanChunk(const AdjointScanTiles<Config>& tiles, const AdjointScanParams& params,
                             const ScanPlace& place, int n) {
  using T = typename Config::T;
  constexpr int kK = Config::kK, kThreads = Config::kThreads, kUnroll = 4;
  const ChunkEntry chunk = params.args.chunks[n];
  const int64_t index = int64_t{1} * n * params.args.num_value_heads + place.head;
  const auto array = [&](const void* data, int row) {
    return static_cast<const T*>(data) + index * kChunk * row;
  };
  const Workspace& from = params.workspace;
  LoadArray<kChunk, kThreads, kUnroll>(tiles.k_exit, array(from.k_exit, kK), kK);
  LoadArray<kChunk, kThreads, kUnroll>(tiles.q_entry, array(from.q_entry, kK), kK);
  LoadArray<kChunk, kThreads, kUnroll>(tiles.w, array(from.w, kK), kK);
  LoadArray<kChunk, kThreads, kUnroll>(tiles.scores, array(from.scores, kChunk), kChunk);
  LoadRows<kChunk, kThreads, kUnroll>(
      tiles.dout,
      tiles::RowsOf(params.dout, chunk, place.head, place.first_value, params.args.head_dim_v),
      chunk.length);
  const int c = 4 * static_cast<int>(threadIdx.x);
  if (c < kK) CpAsync16(tiles.through + c, from.through + index * kK + c, true);
  CpAsyncCommit();
}

// Calls visit(element, k, v) for the elements of R^T [V, K] from row `first` on that exist. Each
// tile computes its addresses anew, because all of them would need too many registers.
template <int kTiles, typename Visit>
HL_DEVICE void ForState(float (&adjoint)[kTiles][4], const DeltaRuleArgs& args, int first,
                        const Visit& visit) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int lane = tiles::FreshLaneId();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int v = first + lane / 4 + i / 2 * 8, k = 8 * n + lane % 4 * 2 + i % 2;
      if (v < args.head_dim_v && k < args.head_dim_k) visit(adjoint[n][i], k, v);
    }
  }
}

// dU of the warp's 16 columns, 32 tokens at a time, into `to`.
template <typename Config>
HL_DEVICE void ValueAdjoints(const float (&adjoint)[Config::kK / 8][4],
                             const AdjointScanTiles<Config>& tiles, typename Config::Square to,
                             int column) {
  using T = typename Config::T;
#pragma unroll 1
  for (int token = 0; token < kChunk; token += 32) {
    float du[4][4];  // dU^T [16 columns of V, 32 tokens]
    Clear(du);
    MultiplyAdd<2>(du, Transposed(tiles.dout), column, tiles.scores, token, token, kChunk);
    MultiplyAccumulators<2, Config::kK / 16>(du, adjoint, Transposed(tiles.k_exit), token);
    ForPairs(du, column, token, [&](int v, int s, float x, float y) {
      to.At(s, v) = ToType<T>(x);
      to.At(s + 1, v) = ToType<T>(y);
    });
  }
  __syncwarp();
}

// Stores the warp's columns of dU to rows of `width` elements, of which `columns` exist.
template <typename T>
HL_DEVICE void StoreValueAdjoints(Matrix<T, kValues> du, int column, T* target, int width,
                                  int columns) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kUnits = 16 / kUnit;
#pragma unroll 2
  for (int i = LaneId(); i < kChunk * kUnits; i += 32) {
    const int token = i / kUnits, v = column + i % kUnits * kUnit;
    if (v < columns)
      *reinterpret_cast<uint4*>(target + token * width + v) =
          *reinterpret_cast<const uint4*>(&du.At(token, v));
  }
}

// Processes one chunk: stores R^T and dU, and turns R into the gradient of the state before the
// chunk.
template <typename Config>
HL_DEVICE void ScanChunk(float (&adjoint)[Config::kK / 8][4], const AdjointScanTiles<Config>& tiles,
                         typename Config::Square du, const AdjointScanParams& params,
                         const ScanPlace& place, int n) {
  using T = typename Config::T;
  constexpr int kK = Config::kK;
  const int width = PaddedValues(params.args.head_dim_v), column = 16 * WarpId();
  const int64_t index = int64_t{1} * n * params.args.num_value_heads + place.head;
  if (params.arrays.adjoints != nullptr)
    StoreToRows<T>(
        adjoint,
        MatrixRows(static_cast<const T*>(params.arrays.adjoints) + index * width * kK, kK, kK),
        width, place.first_value + column, 0);
  ValueAdjoints<Config>(adjoint, tiles, du, column);
  ForPairs(adjoint, 0, 0, [&](int, int k, float& x, float& y) {
    x *= tiles.through[k];
    y *= tiles.through[k + 1];
  });
  MultiplyAdd<kK / 16>(adjoint, Transposed(tiles.dout), column, tiles.q_entry, 0, 0, kChunk);
  MultiplyChanged<kK / 16>(adjoint, Transposed(du), column, tiles.w, 0, {0, kChunk},
                           [](float x, int, int) { return -x; });
  if (params.arrays.du != nullptr)
    StoreValueAdjoints<T>(
        du, column, static_cast<T*>(params.arrays.du) + index * kChunk * width + place.first_value,
        width, width - place.first_value);
  __syncwarp();  // the next chunk overwrites dU
  if ((params.args.chunks[n].flags & kChunkResets) != 0) Clear(adjoint);
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    AdjointScanKernel(const AdjointScanParams params) {
  HL_DYNAMIC_SMEM(raw);
  const AdjointScanShared<Config> smem(raw);
  const ScanPlace place = MakeScanPlace(params);
  const DeltaRuleArgs& args = params.args;
  const int64_t V = args.head_dim_v;
  const int64_t state =
      (int64_t{1} * place.sequence * args.num_value_heads + place.head) * args.head_dim_k * V;
  const int value = place.first_value + 16 * WarpId();
  float adjoint[Config::kK / 8][4];
  Clear(adjoint);
  if (params.entry != nullptr)
    ForState(adjoint, args, value,
             [&](float& x, int k, int v) { x = params.entry[state + k * V + v]; });
  if (place.first < place.last) LoadScanChunk(smem.Stage(0), params, place, place.last - 1);
#pragma unroll 1
  for (int n = place.last - 1; n >= place.first; --n) {
    const int stage = (place.last - 1 - n) % Config::kStages;
    CpAsyncWait<0>();
    __syncthreads();
    if (Config::kStages == 2 && n > place.first)
      LoadScanChunk(smem.Stage(1 - stage), params, place, n - 1);
    ScanChunk(adjoint, smem.Stage(stage), smem.du, params, place, n);
    if (Config::kStages == 1 && n > place.first) {
      __syncthreads();
      LoadScanChunk(smem.Stage(0), params, place, n - 1);
    }
  }
  if (params.exit != nullptr)
    ForState(adjoint, args, value,
             [&](float& x, int k, int v) { params.exit[state + k * V + v] = x; });
}

template <typename Config>
void LaunchAdjointScanAs(const AdjointScanParams& params, cudaStream_t stream) {
  const int64_t blocks =
      int64_t{1} * params.args.num_sequences * params.args.num_value_heads * params.num_slices;
  if (blocks == 0) return;
  Launch({dim3(GridBlocks(blocks, "delta rule's adjoint scan")), dim3(Config::kThreads),
          Config::kSmemBytes, "delta rule's adjoint scan"},
         stream, AdjointScanKernel<Config>, params);
}

}  // namespace halflife::kernels::delta
