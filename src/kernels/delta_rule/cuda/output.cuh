// The third pass: out = (scale q P) S + A U for all chunks in parallel. A block has one chunk of
// one value head and 64 columns of V; a warp has 16 rows and 32 columns.
//
// Shared memory in KiB, bf16, K = 128 (53):
//   | scale q P 17 | S [K, 64] 18 | A 9 | U 9 |
#pragma once

#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/cuda/products.cuh"

namespace halflife::kernels::delta {

template <typename T_, int kK_>
struct OutputConfig {
  using T = T_;
  static constexpr int kK = kK_, kValues = 64;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  using Rows = Matrix<T, kK>;
  using Values = Matrix<T, kValues>;
  static constexpr int kSmemBytes = Rows::Bytes(kChunk) + Values::Bytes(kK) +
                                    Matrix<T, kChunk>::Bytes(kChunk) + Values::Bytes(kChunk);
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

// Stores a warp's accumulators in the rows and columns of a tensor that exist.
template <typename T>
HL_DEVICE void StoreTensor(float (&d)[4][4], const tiles::Rows& rows, int length, int row,
                           int column) {
  T* const data = reinterpret_cast<T*>(rows.data);
  ForPairs(d, row, column, [&](int r, int c, float x, float y) {
    if (r >= length || c >= rows.dim) return;
    T* const at = data + r * rows.stride_t + c;
    if (rows.aligned) {
      StorePair(at, x, y);
    } else {
      at[0] = ToType<T>(x);
      if (c + 1 < rows.dim) at[1] = ToType<T>(y);
    }
  });
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    OutputKernel(const DeltaRuleArgs args, const Workspace workspace) {
  using T = typename Config::T;
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  const typename Config::Rows q{carver.Take<T>(Config::Rows::Elements(kChunk))};
  const typename Config::Values state{carver.Take<T>(Config::Values::Elements(kK))};
  const Matrix<T, kChunk> scores{carver.Take<T>(Matrix<T, kChunk>::Elements(kChunk))};
  const typename Config::Values u{carver.Take<T>(Config::Values::Elements(kChunk))};

  const int width = PaddedValues(args.head_dim_v);
  const int slices = (width + Config::kValues - 1) / Config::kValues;
  const int first = static_cast<int>(blockIdx.x % slices) * Config::kValues;
  const int64_t index = blockIdx.x / slices;  // n HV + head
  const ChunkEntry chunk = args.chunks[index / args.num_value_heads];
  if (chunk.length == 0) return;
  const int head = static_cast<int>(index % args.num_value_heads);
  LoadArray<kChunk, kThreads>(q, static_cast<const T*>(workspace.q_entry) + index * kChunk * kK,
                              kK);
  LoadArray<kK, kThreads>(state,
                          static_cast<const T*>(workspace.states) + index * kK * width + first,
                          width, width - first);
  LoadArray<kChunk, kThreads>(
      scores, static_cast<const T*>(workspace.scores) + index * kChunk * kChunk, kChunk);
  LoadArray<kChunk, kThreads>(
      u, static_cast<const T*>(workspace.u) + index * kChunk * width + first, width, width - first);
  CpAsyncCommit();
  CpAsyncWait<0>();
  __syncthreads();
  const int row = WarpId() % 4 * 16, column = WarpId() / 4 * 32;
  float d[4][4];
  Clear(d);
  MultiplyAdd<2>(d, q, row, state, column, 0, kK);
  MultiplyAdd<2>(d, scores, row, u, column, 0, row + 16);
  StoreTensor<T>(d, tiles::RowsOf(args.out, chunk, head, first, args.head_dim_v), chunk.length, row,
                 column);
}

}  // namespace halflife::kernels::delta
