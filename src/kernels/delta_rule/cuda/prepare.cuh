// The first pass: everything of a chunk that needs no state (workspace.h). A block treats one chunk
// of one value head:
//
//   1. load k, q, beta and the decays
//   2. L (shared memory) and the scores A (workspace), on the tensor cores; with decays per
//      channel, pairs of tokens within one tile of 16 on the CUDA cores
//   3. k Q and scale q P (workspace), k P (in place of k)
//   4. X = (I + L)^-1, fp32
//   5. W = X diag(beta) (k P) and U~ = X diag(beta) v (workspace), on the tensor cores
//
// For token_scan.cuh, A stays in shared memory, step 3 stores P instead, and step 5 computes
// diag(Q) T and A T with T = X diag(beta).
#pragma once

#include "kernels/delta_rule/cuda/inverse.cuh"
#include "kernels/delta_rule/cuda/scores.cuh"

namespace halflife::kernels::delta {

// ---- decayed operands of the other passes ----

template <typename Config>
HL_DEVICE void TokenOperands(const PrepareShared<Config>& smem, const Workspace& workspace,
                             const ChunkPlace<typename Config::T>& place) {
  using T = typename Config::T;
  constexpr int kK = Config::kK;
  T* const k_exit = static_cast<T*>(workspace.k_exit) + place.index * kChunk * kK;
  T* const q_entry = static_cast<T*>(workspace.q_entry) + place.index * kChunk * kK;
  const DecayTables& tables = *smem.tables;
#pragma unroll 2
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kChunk * kK; i += 2 * Config::kThreads) {
    const int r = i / kK, c = i % kK;
    const float2 k = LoadPair(&smem.k.At(r, c));
    const float entry = tables.entry[r], exit = tables.exit[r];
    StorePair(k_exit + i, k.x * exit, k.y * exit);
    StorePair(&smem.k.At(r, c), k.x * entry, k.y * entry);
    if (place.scores == nullptr) continue;
    const float2 q = LoadPair(&smem.q.At(r, c));
    StorePair(q_entry + i, q.x * (place.scale * entry), q.y * (place.scale * entry));
  }
  float* const through = workspace.through + place.index * kK;
  for (int c = static_cast<int>(threadIdx.x); c < kK; c += Config::kThreads)
    through[c] = tables.through;
}

template <typename Config>
HL_DEVICE void ChannelOperands(const PrepareShared<Config>& smem, const Workspace& workspace,
                               const ChunkPlace<typename Config::T>& place) {
  using T = typename Config::T;
  constexpr int kK = Config::kK, kGroups = Config::kThreads / kK;
  const int c = static_cast<int>(threadIdx.x) % kK, group = static_cast<int>(threadIdx.x) / kK;
  if (group == 0) {
    T* const k_exit = static_cast<T*>(workspace.k_exit) + place.index * kChunk * kK + c;
    float sum = 0;
#pragma unroll 4
    for (int s = kChunk - 1; s >= 0; --s) {
      k_exit[s * kK] = ToType<T>(ToFloat(smem.k.At(s, c)) * Exp2Approx(sum));
      sum += smem.log2_decay.At(s, c);
    }
    workspace.through[place.index * kK + c] = Exp2Approx(sum);
  }
  if (group == kGroups - 1 && place.scores != nullptr) {
    T* const q_entry = static_cast<T*>(workspace.q_entry) + place.index * kChunk * kK + c;
    float sum = 0;
#pragma unroll 4
    for (int r = 0; r < kChunk; ++r) {
      sum += smem.log2_decay.At(r, c);
      q_entry[r * kK] = ToType<T>(ToFloat(smem.q.At(r, c)) * (place.scale * Exp2Approx(sum)));
    }
  }
  __syncthreads();
  if (group == 0) {
    float sum = 0;
#pragma unroll 4
    for (int r = 0; r < kChunk; ++r) {
      sum += smem.log2_decay.At(r, c);
      smem.k.At(r, c) = ToType<T>(ToFloat(smem.k.At(r, c)) * Exp2Approx(sum));
    }
  }
}

// ---- products with X ----

// T = X diag(beta), rounded. Stores X itself, rounded, where it is requested.
template <typename Config>
HL_DEVICE void StoreInverse(const PrepareShared<Config>& smem, const Workspace& workspace,
                            const ChunkPlace<typename Config::T>& place) {
  using T = typename Config::T;
  T* const inverse = workspace.inverse == nullptr
                         ? nullptr
                         : static_cast<T*>(workspace.inverse) + place.index * kChunk * kChunk;
#pragma unroll 2
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kChunk * kChunk; i += 2 * Config::kThreads) {
    const int r = i / kChunk, s = i % kChunk;
    const float2 x = LoadPair(&smem.inverse.At(r, s));
    StorePair(&smem.operand.At(r, s), x.x * smem.beta[s], x.y * smem.beta[s + 1]);
    if (inverse != nullptr) StorePair(inverse + i, x.x, x.y);
  }
}

// diag(Q) T and, for token_scan.cuh, A T. T itself is in the place of L, rounded.
template <typename Config>
HL_DEVICE void StoreTokenOperands(const PrepareShared<Config>& smem, const Workspace& workspace,
                                  int64_t index) {
  using T = typename Config::T;
  T* const operand = static_cast<T*>(workspace.operand) + index * kChunk * kChunk;
#pragma unroll 2
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kChunk * kChunk; i += 2 * Config::kThreads) {
    const int r = i / kChunk, s = i % kChunk;
    const float2 x = LoadPair(&smem.inverse.At(r, s));
    const float a = x.x * smem.beta[s], b = x.y * smem.beta[s + 1], exit = smem.tables->exit[r];
    StorePair(&smem.operand.At(r, s), a, b);
    StorePair(operand + i, exit * a, exit * b);
  }
  if (threadIdx.x < kChunk)
    workspace.entry[index * kChunk + threadIdx.x] = smem.tables->entry[threadIdx.x];
  __syncthreads();
  T* const scores = static_cast<T*>(workspace.scores) + index * kChunk * kChunk;
  const int row = WarpId() % kTiles * kTile, column = WarpId() / kTiles * 32;
  float d[4][4];
  Clear(d);
  MultiplyAdd<2>(d, smem.scores, row, smem.operand, column, 0, row + kTile);
  ForPairs(d, row, column,
           [&](int r, int c, float a, float b) { StorePair(scores + r * kChunk + c, a, b); });
}

// to [64, columns] = T y, 16 rows and 32 columns per warp at once. `stride` is that of the rows.
template <typename Config, typename Y>
HL_DEVICE void StoreProduct(const PrepareShared<Config>& smem, Y y, int columns,
                            typename Config::T* to, int stride) {
  const int row = WarpId() % kTiles * kTile;
#pragma unroll 1
  for (int column = WarpId() / kTiles * 32; column < columns; column += 64) {
    float d[4][4];
    Clear(d);
    MultiplyAdd<2>(d, smem.operand, row, y, column, 0, row + kTile);
    ForPairs(d, row, column,
             [&](int r, int c, float a, float b) { StorePair(to + r * stride + c, a, b); });
  }
}

// U~, kValues columns at once. The first and the last barrier separate uses of v's memory.
template <typename Config>
HL_DEVICE void StoreValues(const PrepareShared<Config>& smem, const PrepareParams& params,
                           const ChunkPlace<typename Config::T>& place) {
  using T = typename Config::T;
  const DeltaRuleArgs& args = params.args;
  const int width = PaddedValues(args.head_dim_v);
  T* const u = static_cast<T*>(params.workspace.u) + place.index * kChunk * width;
#pragma unroll 1
  for (int column = 0; column < width; column += Config::kValues) {
    __syncthreads();
    LoadRows<kChunk, Config::kThreads>(
        smem.v, tiles::RowsOf(args.v, place.chunk, place.head, column, args.head_dim_v),
        place.chunk.length);
    CpAsyncCommit();
    CpAsyncWait<0>();
    __syncthreads();
    const int columns = width - column < Config::kValues ? width - column : Config::kValues;
    StoreProduct(smem, smem.v, columns, u + column, width);
  }
}

template <typename Config>
HL_DEVICE void LoadChunk(const PrepareShared<Config>& smem, const DeltaRuleArgs& args,
                         const ChunkPlace<typename Config::T>& place) {
  const ChunkEntry& chunk = place.chunk;
  const int key_head = SharedHead(place.head, args.num_heads, args.num_value_heads);
  LoadRows<kChunk, Config::kThreads>(
      smem.k, tiles::RowsOf(args.k, chunk, key_head, 0, args.head_dim_k), chunk.length);
  // Without queries, their place is filled with keys, which are then not used.
  LoadRows<kChunk, Config::kThreads>(
      smem.q,
      tiles::RowsOf(place.scores == nullptr ? args.k : args.q, chunk, key_head, 0, args.head_dim_k),
      chunk.length);
  CpAsyncCommit();
  const int r = static_cast<int>(threadIdx.x);
  if (r < kChunk)
    smem.beta[r] =
        r < chunk.length
            ? static_cast<const float*>(args.beta.data)[chunk.row * args.beta.stride_b +
                                                        (chunk.token + r) * args.beta.stride_t +
                                                        place.head * args.beta.stride_h]
            : 0.0f;
  if constexpr (Config::kPerChannel) {
    LoadLog2Decays<Config::kThreads>(smem.log2_decay, args, chunk, place.head);
  } else {
    FillDecayTables(*smem.tables, args, chunk, place.head);
  }
  CpAsyncWait<0>();
  __syncthreads();
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    PrepareKernel(const PrepareParams params) {
  using T = typename Config::T;
  HL_DYNAMIC_SMEM(raw);
  const PrepareShared<Config> smem(raw);
  const DeltaRuleArgs& args = params.args;
  const Workspace& workspace = params.workspace;
  ChunkPlace<T> place;
  place.chunk = args.chunks[blockIdx.x / args.num_value_heads];
  if (place.chunk.length == 0) return;
  place.head = static_cast<int>(blockIdx.x % args.num_value_heads);
  place.index = blockIdx.x;
  place.scores = workspace.scores == nullptr
                     ? nullptr
                     : static_cast<T*>(workspace.scores) + place.index * kChunk * kChunk;
  place.scale = static_cast<float>(args.scale);
  LoadChunk(smem, args, place);
  if constexpr (Config::kForTokenScan) place.scores = smem.scores.data;
  if (place.scores != nullptr) ClearUpperScores<Config>(place);
  if constexpr (Config::kPerChannel) {
    ChannelScores(smem, place);
    ChannelOperands(smem, workspace, place);
  } else {
    TokenScores(smem, place);
    __syncthreads();
    if constexpr (!Config::kForTokenScan) TokenOperands(smem, workspace, place);
  }
  InvertUnitLower<Config::kThreads>(smem.inverse, smem.lower);
  if constexpr (Config::kForTokenScan) {
    StoreTokenOperands(smem, workspace, place.index);
  } else {
    StoreInverse(smem, workspace, place);
    __syncthreads();
    StoreProduct(smem, smem.k, Config::kK,
                 static_cast<T*>(workspace.w) + place.index * kChunk * Config::kK, Config::kK);
    if (workspace.u != nullptr) StoreValues(smem, params, place);
  }
}

}  // namespace halflife::kernels::delta
