#include "kernels/decay_attention/diagonal_tile.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "kernels/cpu_math.h"
#include "kernels/decay_attention/chunks.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {
namespace {

// Memory of one tile: rows of q, k, log_decay, dq, dk lie K apart, rows of scores C apart.
struct Tile {
  const float* q;
  const float* k;
  const float* log_decay;
  int64_t dim;
  int64_t chunk;
  float scale;
};

// Lanes run over s: keys[c][s] holds k_s decayed up to the current row.
HL_VECTORISED void TileScores(const Tile& tile, float* keys, float* scores) {
  for (int64_t s = 0; s < kTile; ++s)
    for (int64_t c = 0; c < tile.dim; ++c) keys[c * kTile + s] = tile.k[s * tile.dim + c];
  for (int64_t r = 0; r < kTile; ++r) {
    const float* q = tile.q + r * tile.dim;
    const float* log_decay = tile.log_decay + r * tile.dim;
    float sums[kTile] = {};
    for (int64_t c = 0; c < tile.dim; ++c) {
      const float decay = Exp(log_decay[c]);
      float* key = keys + c * kTile;
#pragma omp simd
      for (int64_t s = 0; s < kTile; ++s) {
        key[s] *= s < r ? decay : 1.0f;
        sums[s] += q[c] * key[s];
      }
    }
    for (int64_t s = 0; s < kTile; ++s)
      scores[r * tile.chunk + s] = s <= r ? tile.scale * sums[s] : 0.0f;
  }
}

// Lanes run over channels: `weight` is the decay from s to the current row.
HL_VECTORISED void TileGradients(const Tile& tile, const float* dscores, float* decays,
                                 float* weight, float* dq, float* dk) {
  const int64_t dim = tile.dim;
#pragma omp simd
  for (int64_t i = 0; i < kTile * dim; ++i) decays[i] = Exp(tile.log_decay[i]);
  for (int64_t s = 0; s < kTile; ++s) {
    const float* k = tile.k + s * dim;
    float* dk_row = dk + s * dim;
    for (int64_t c = 0; c < dim; ++c) weight[c] = tile.scale;
    for (int64_t r = s + 1; r < kTile; ++r) {
      const float* q = tile.q + r * dim;
      const float* decay = decays + r * dim;
      float* dq_row = dq + r * dim;
      const float d = dscores[r * tile.chunk + s];
#pragma omp simd
      for (int64_t c = 0; c < dim; ++c) {
        const float w = weight[c] * decay[c];
        weight[c] = w;
        dq_row[c] += d * w * k[c];
        dk_row[c] += d * w * q[c];
      }
    }
  }
}

// Calls body(tile index, tile) over all tiles of all chunks.
template <typename Body>
void ForEachTile(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_decay,
                 double scale, const Body& body) {
  const int64_t dim = q.size(4), chunk = q.size(3), tiles_per_chunk = chunk / kTile;
  const int64_t num_tiles = q.numel() / (dim * kTile);
  const float* q_data = q.const_data_ptr<float>();
  const float* k_data = k.const_data_ptr<float>();
  const float* g_data = log_decay.const_data_ptr<float>();
  at::parallel_for(0, num_tiles, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * kTile * dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i * kTile * dim;
      // where the tile lies in a [.., C, C] tensor
      const int64_t corner =
          i / tiles_per_chunk * chunk * chunk + i % tiles_per_chunk * kTile * (chunk + 1);
      body(Tile{q_data + row, k_data + row, g_data + row, dim, chunk, static_cast<float>(scale)},
           row, corner, scratch.data());
    }
  });
}

// Weights of all pairs of a tile: [.., I, r, s, K], 0 where s > r (or s >= r if strict).
at::Tensor PairWeights(const at::Tensor& tiles, bool strict) {
  const at::Tensor lower =
      at::ones({kTile, kTile}, tiles.options().dtype(at::kBool)).tril(-1).unsqueeze(2);
  const at::Tensor zero = at::zeros({}, tiles.options());
  const at::Tensor sums = at::where(lower, tiles.unsqueeze(-2), zero).cumsum(-3);
  const at::Tensor keep =
      at::ones({kTile, kTile}, tiles.options().dtype(at::kBool)).tril(strict ? -1 : 0).unsqueeze(2);
  return at::where(keep, sums.exp(), zero);
}

at::Tensor InTiles(const at::Tensor& x) {  // [B, H, N, C, K] -> [B, H, N, I, 16, K]
  return x.unflatten(3, {x.size(3) / kTile, kTile});
}
// The diagonal tiles of [.., C, C] as a view [.., 16, 16, I].
at::Tensor DiagonalTiles(const at::Tensor& scores) {
  const int64_t tiles = scores.size(3) / kTile;
  return scores.unflatten(4, {tiles, kTile}).unflatten(3, {tiles, kTile}).diagonal(0, 3, 5);
}

}  // namespace

void DiagonalScores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_decay,
                    double scale, at::Tensor& scores) {
  if (IsCpuFloat(q)) {
    float* out = scores.mutable_data_ptr<float>();
    ForEachTile(q, k, log_decay, scale,
                [&](const Tile& tile, int64_t, int64_t corner, float* scratch) {
                  TileScores(tile, scratch, out + corner);
                });
    return;
  }
  const at::Tensor weights = PairWeights(InTiles(log_decay), false);
  const at::Tensor pairs =
      (InTiles(q).unsqueeze(-2) * InTiles(k).unsqueeze(-3) * weights).sum(-1) * scale;
  DiagonalTiles(scores).copy_(pairs.movedim(3, -1));
}

void DiagonalGradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_decay,
                       double scale, const at::Tensor& dscores, at::Tensor& dq, at::Tensor& dk) {
  if (IsCpuFloat(q)) {
    const float* d = dscores.const_data_ptr<float>();
    float* dq_data = dq.mutable_data_ptr<float>();
    float* dk_data = dk.mutable_data_ptr<float>();
    ForEachTile(q, k, log_decay, scale,
                [&](const Tile& tile, int64_t row, int64_t corner, float* scratch) {
                  TileGradients(tile, d + corner, scratch, scratch + kTile * tile.dim,
                                dq_data + row, dk_data + row);
                });
    return;
  }
  const at::Tensor weights = PairWeights(InTiles(log_decay), true) * scale;
  const at::Tensor weighted = weights * DiagonalTiles(dscores).movedim(-1, 3).unsqueeze(-1);
  dq.add_((weighted * InTiles(k).unsqueeze(-3)).sum(-2).flatten(3, 4));
  dk.add_((weighted * InTiles(q).unsqueeze(-2)).sum(-3).flatten(3, 4));
}

}  // namespace halflife::kernels::internal
