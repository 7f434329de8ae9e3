#include "kernels/decay_attention/channel_loops.h"

#include <algorithm>

#include "kernels/cpu_math.h"
#include "kernels/decay_attention/chunks.h"

namespace halflife::kernels::internal {
namespace {

// out_r = scale * exp(sum of rows begin..r), r = begin..end-1; sums holds the whole afterwards.
HL_VECTORISED void PrefixWeights(const float* log_decay, int64_t dim, int64_t begin, int64_t end,
                                 float scale, float* sums, float* out) {
  std::fill(sums, sums + dim, 0.0f);
  for (int64_t r = begin; r < end; ++r) {
    const float* g = log_decay + r * dim;
    float* row = out + r * dim;
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) {
      sums[c] += g[c];
      row[c] = scale * Exp(sums[c]);
    }
  }
}

// out_s = exp(sum of rows s+1..end-1), s = 0..end-1.
HL_VECTORISED void SuffixWeights(const float* log_decay, int64_t dim, int64_t end, float* sums,
                                 float* out) {
  std::fill(sums, sums + dim, 0.0f);
  for (int64_t s = end - 1; s >= 0; --s) {
    const float* g = log_decay + s * dim;
    float* row = out + s * dim;
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) {
      row[c] = Exp(sums[c]);
      sums[c] += g[c];
    }
  }
}

// Rows of one chunk, picked from the arrays over all.
struct FinishRows {
  const float *q, *k, *dscores, *q_state, *k_state, *incoming, *outgoing;
  float *dq, *dk;
  int64_t chunk, dim;
  float scale;
};

HL_VECTORISED void FinishRow(const FinishRows& rows, int64_t r) {
  const int64_t offset = r * rows.dim;
  const float own = rows.scale * rows.dscores[r * (rows.chunk + 1)];
  const float *q = rows.q + offset, *k = rows.k + offset;
  const float *q_state = rows.q_state + offset, *k_state = rows.k_state + offset;
  const float *incoming = rows.incoming + offset, *outgoing = rows.outgoing + offset;
  float *dq = rows.dq + offset, *dk = rows.dk + offset;
#pragma omp simd
  for (int64_t c = 0; c < rows.dim; ++c) {
    dq[c] += q_state[c] * incoming[c] + own * k[c];
    dk[c] += k_state[c] * outgoing[c] + own * q[c];
  }
}

// dg_t = sum_{r >= t} (q_r (dq_r + dqX_r) - k_r dk_r) + sum_{s < t} k_s dkX_s + through: one walk back, one forward.
HL_VECTORISED void DecayGradientRows(const FinishRows& rows, const float* transition,
                                     const float* through, float* sums, float* dlog_decay) {
  const int64_t dim = rows.dim;
  for (int64_t c = 0; c < dim; ++c) sums[c] = through[c] * transition[c];
  for (int64_t r = rows.chunk - 1; r >= 0; --r) {
    const int64_t offset = r * dim;
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) {
      const int64_t i = offset + c;
      sums[c] +=
          rows.q[i] * (rows.dq[i] + rows.q_state[i] * rows.incoming[i]) - rows.k[i] * rows.dk[i];
      dlog_decay[i] = sums[c];
    }
  }
  std::fill(sums, sums + dim, 0.0f);
  for (int64_t s = 0; s < rows.chunk; ++s) {
    const int64_t offset = s * dim;
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) {
      const int64_t i = offset + c;
      dlog_decay[i] += sums[c];
      sums[c] += rows.k[i] * rows.k_state[i] * rows.outgoing[i];
    }
  }
}

}  // namespace

void FillChannelFactors(const ChannelFactorRows& rows) {
  const int64_t dim = rows.dim, chunk = rows.num_tiles * kTile;
  for (int64_t i = 0; i < rows.num_tiles; ++i) {
    PrefixWeights(rows.log_decay, dim, i * kTile, (i + 1) * kTile, rows.scale, rows.sums,
                  rows.in_tile);
    if (i > 0) SuffixWeights(rows.log_decay, dim, i * kTile, rows.sums, rows.to_tile[i]);
  }
  SuffixWeights(rows.log_decay, dim, chunk, rows.sums, rows.outgoing);
  PrefixWeights(rows.log_decay, dim, 0, chunk, rows.scale, rows.sums, rows.incoming);
  for (int64_t c = 0; c < dim; ++c) rows.transition[c] = Exp(rows.sums[c]);
}

void FinishChannelChunk(const ChannelFinish& all, int64_t index, float* sums) {
  const int64_t offset = index * all.chunk * all.dim;
  const FinishRows rows = {.q = all.q + offset,
                           .k = all.k + offset,
                           .dscores = all.dscores + index * all.chunk * all.chunk,
                           .q_state = all.q_state + offset,
                           .k_state = all.k_state + offset,
                           .incoming = all.incoming + offset,
                           .outgoing = all.outgoing + offset,
                           .dq = all.dq + offset,
                           .dk = all.dk + offset,
                           .chunk = all.chunk,
                           .dim = all.dim,
                           .scale = all.scale};
  if (all.through != nullptr)
    DecayGradientRows(rows, all.transition + index * all.dim, all.through + index * all.dim, sums,
                      all.dlog_decay + offset);
  for (int64_t r = 0; r < all.chunk; ++r) FinishRow(rows, r);
}

}  // namespace halflife::kernels::internal
