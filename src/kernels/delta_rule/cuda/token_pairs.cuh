// The second part of a chunk's gradients with one decay per token, or none: the pairs of tokens in
// the chunk. Their weights scale D and F, and products of matrices do the rest.
//
// The gradient of log decays sums, for token t, what passes it: pairs s < t <= r, reads of the
// state by rows r >= t, writes to the state by rows s < t, and the state that passes the chunk:
//
//   dg_t = sum_{r >= t} late_r + sum_{s < t} early_s + Gamma sum(S R)
//     late_r  = q_r dq_r - beta_r k_r rho_r - k_r (dk_r from later readers), without pairs s = r
//     early_s = k_s Q_s (R u_s)
#pragma once

#include "kernels/delta_rule/cuda/chunk_gradients.cuh"

namespace halflife::kernels::delta {

template <int kTiles>
HL_DEVICE void ScaleRows(float (&d)[kTiles][4], const float* factors, float factor, int row) {
  ForPairs(d, row, 0, [&](int r, int, float& x, float& y) {
    x *= factor * factors[r];
    y *= factor * factors[r];
  });
}

// d += own_r x_r: the pairs of a token with itself.
template <int kTiles, typename M>
HL_DEVICE void AddOwnPairs(float (&d)[kTiles][4], const float* own, M x, int row, int column) {
  ForRowPairs(d, row, column, [&](int i, int r, int c, float& d0, float& d1) {
    if (i == 0) KeepLoadsApart();
    const float2 pair = LoadPair(&x.At(r, c));
    d0 += own[r] * pair.x;
    d1 += own[r] * pair.y;
  });
}

template <typename Config>
HL_DEVICE void TokenPairs(GradientSums<Config>& sums, const GradientShared<Config>& smem,
                          const ChunkGradientsParams& params, const GradientPlace& place) {
  using T = typename Config::T;
  constexpr int kPairs = Config::kHalf / 16;
  const DeltaRuleArgs& args = params.grads.forward;
  const GradientRows& rows = *smem.rows;
  const int row = place.row, column = place.column, half = place.half;
  const int length = place.chunk.length;
  float late[2] = {}, early[2] = {}, reads[2] = {};

  ScaleRows(sums.query, smem.tables->entry, static_cast<float>(args.scale), row);
  MultiplyAdd<kPairs>(sums.query, smem.d, row, smem.k, column, 0, row + 16);
  AddDots(late, sums.query, smem.q, row, column);
  AddOwnPairs(sums.query, rows.own, smem.k, row, column);
  StoreGradient<T>(
      sums.query,
      tiles::RowsOf(params.dq, place.chunk, place.head, place.first_key, args.head_dim_k), length,
      row, column);

  ScaleRows(sums.reader, smem.tables->entry, 1, row);
  MultiplyAdd<kPairs>(sums.reader, smem.f, row, smem.k, column, 0, row + 16);
  AddDots(reads, sums.reader, smem.k, row, column);
  AddRowSums(reads, smem.rows->reader[half], row);
  ScaleRows(sums.reader, rows.beta, -1, row);
#pragma unroll
  for (int i = 0; i < 2; ++i) late[i] -= rows.beta[row + LaneId() / 4 + 8 * i] * reads[i];

  ScaleRows(sums.written, smem.tables->exit, 1, row);
  AddDots(early, sums.written, smem.k, row, column);
  AddRowSums(early, smem.rows->early[half], row);

  float pairs[2 * kPairs][4];
  Clear(pairs);
  MultiplyAdd<kPairs>(pairs, Transposed(smem.d), row, smem.q, column, row, kChunk);
  MultiplyChanged<kPairs>(pairs, Transposed(smem.f), row, smem.k, column, {row, kChunk},
                          [&](float x, int, int t) { return -rows.beta[t] * x; });
  float later[2] = {};
  AddDots(later, pairs, smem.k, row, column);
#pragma unroll
  for (int i = 0; i < 2; ++i) late[i] -= later[i];
  AddRowSums(late, smem.rows->late[half], row);
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[n][i] += sums.reader[n][i] + sums.written[n][i];
  }
  AddOwnPairs(pairs, rows.own, smem.q, row, column);
  StoreGradient<T>(
      pairs, tiles::RowsOf(params.dk, place.chunk, place.head, place.first_key, args.head_dim_k),
      length, row, column);
}

// One thread per token.
template <typename Config>
HL_DEVICE void StoreTokenDecayGradient(const GradientShared<Config>& smem,
                                       const TensorView& dlog_decay, const GradientPlace& place) {
  const int t = static_cast<int>(threadIdx.x);
  if (dlog_decay.data == nullptr || t >= place.chunk.length) return;
  const GradientRows& rows = *smem.rows;
  float through = 0;
#pragma unroll 4
  for (int i = 0; i < Config::kThreads; ++i) through += smem.through[i];
  float sum = smem.tables->through * through;
#pragma unroll 4
  for (int r = kChunk - 1; r >= t; --r) sum += rows.late[0][r] + rows.late[1][r];
#pragma unroll 4
  for (int s = 0; s < t; ++s) sum += rows.early[0][s] + rows.early[1][s];
  if (IsCut(place.chunk, t, smem.tables->log2_decay[t])) sum = 0;
  Store<float>(dlog_decay, place.chunk, t, place.head, 0, sum);
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    TokenGradientsKernel(const ChunkGradientsParams params) {
  HL_DYNAMIC_SMEM(raw);
  const GradientShared<Config> smem(raw);
  const DeltaRuleArgs& args = params.grads.forward;
  GradientPlace place = MakeGradientPlace<Config>(args);
  if (place.chunk.length == 0) return;
  StartRows(smem, args, place);
  FillDecayTables(*smem.tables, args, place.chunk, place.head);
  GradientSums<Config> sums;
#pragma unroll 1
  for (; place.first_key < args.head_dim_k; place.first_key += Config::kK) {
    ValuePart(sums, smem, params, place);
    StoreScoreGradients(sums, smem, place, static_cast<float>(args.scale),
                        [&](int r, int s) { return smem.tables->Weight(r, s); });
    CpAsyncWait<0>();
    __syncthreads();
    TokenPairs(sums, smem, params, place);
    __syncthreads();
  }
  StoreBetaGradient(smem, params.grads.dbeta, place);
  StoreTokenDecayGradient(smem, params.grads.dlog_decay, place);
}

}  // namespace halflife::kernels::delta
