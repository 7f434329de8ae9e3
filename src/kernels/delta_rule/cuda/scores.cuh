// The scores of a chunk: L in shared memory, and A in the workspace (for token_scan.cuh in shared
// memory instead).
//
// With decays per token, a score is a product of rows times a weight from the tables. With decays
// per channel, scores of two tiles are products of decayed operands. For row tile i, a reader
// decays from the tile's start, and a key from after itself to there, so no factor exceeds 1.
// Scores within a tile are summed pair by pair on the CUDA cores.
#pragma once

#include "kernels/delta_rule/cuda/prepare_block.cuh"

namespace halflife::kernels::delta {

template <typename Config>
HL_DEVICE void StoreScore(const PrepareShared<Config>& smem, bool query,
                          const ChunkPlace<typename Config::T>& place, int r, int s, float x) {
  if (query) {
    place.scores[r * Config::kScoresPitch + s] =
        ToType<typename Config::T>(s <= r ? place.scale * x : 0.0f);
  } else {
    smem.lower.At(r, s) = s < r ? smem.beta[r] * x : 0.0f;
  }
}

// Zeros above the diagonal blocks of A.
template <typename Config>
HL_DEVICE void ClearUpperScores(const ChunkPlace<typename Config::T>& place) {
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kChunk; i += Config::kThreads)
    if (i / kChunk / kTile < i % kChunk / kTile)
      place.scores[i / kChunk * Config::kScoresPitch + i % kChunk] =
          ToType<typename Config::T>(0.0f);
}

// Warps 0 to 3 compute 16 rows of L each, warps 4 to 7 16 rows of A.
template <typename Config>
HL_DEVICE void TokenScores(const PrepareShared<Config>& smem,
                           const ChunkPlace<typename Config::T>& place) {
  const int tile = WarpId() % kTiles;
  const bool query = WarpId() >= kTiles;
  if (query && place.scores == nullptr) return;
  const auto reader = query ? smem.q : smem.k;
#pragma unroll 1
  for (int j = 0; j <= tile; ++j) {
    float d[2][4];
    Clear(d);
    MultiplyAdd<1>(d, reader, tile * kTile, Transposed(smem.k), j * kTile, 0, Config::kK);
    ForPairs(d, tile * kTile, j * kTile, [&](int r, int s, float x, float y) {
      StoreScore(smem, query, place, r, s, s <= r ? x * smem.tables->Weight(r, s) : 0.0f);
      StoreScore(smem, query, place, r, s + 1,
                 s + 1 <= r ? y * smem.tables->Weight(r, s + 1) : 0.0f);
    });
  }
}

// Computes the scores of row r with the keys of its own tile, summed pair by pair. Called by one
// warp.
template <typename Config>
HL_DEVICE void PairScores(const PrepareShared<Config>& smem,
                          const ChunkPlace<typename Config::T>& place, int r) {
  const int first = r / kTile * kTile, lane = LaneId();
  float sums[2 * kTile];  // A, then L
#pragma unroll
  for (int s = 0; s < 2 * kTile; ++s) sums[s] = 0;
#pragma unroll 1
  for (int c = lane; c < Config::kK; c += 32) {
    const float q = ToFloat(smem.q.At(r, c)), k = ToFloat(smem.k.At(r, c));
    float log2_weight = 0;
#pragma unroll
    for (int s = kTile - 1; s >= 0; --s) {
      if (first + s > r) continue;
      const float key = ToFloat(smem.k.At(first + s, c)) * Exp2Approx(log2_weight);
      sums[s] += q * key;
      sums[kTile + s] += k * key;
      log2_weight += smem.log2_decay.At(first + s, c);
    }
  }
  const float sum = tiles::SumOverLanes(sums);
  const bool query = lane < kTile;
  if (query && place.scores == nullptr) return;
  StoreScore(smem, query, place, r, first + lane % kTile, sum);
}

// Computes the operands of the scores of row tile i with the tiles before it.
template <typename Config>
HL_DEVICE void DecayOperands(const PrepareShared<Config>& smem, int i) {
  using T = typename Config::T;
  constexpr int kGroups = Config::kThreads / Config::kK;
  const int c = static_cast<int>(threadIdx.x) % Config::kK;
  const int group = static_cast<int>(threadIdx.x) / Config::kK, start = i * kTile;
  if (group == 0) {
    float sum = 0;
#pragma unroll 4
    for (int s = start - 1; s >= 0; --s) {
      smem.decayed.At(s, c) = ToType<T>(ToFloat(smem.k.At(s, c)) * Exp2Approx(sum));
      sum += smem.log2_decay.At(s, c);
    }
  }
  if (group == kGroups - 1) {
    constexpr int kQueries = kChunk - kTile;
    float sum = 0;
#pragma unroll 4
    for (int r = 0; r < kTile; ++r) {
      sum += smem.log2_decay.At(start + r, c);
      const float decay = Exp2Approx(sum);
      smem.decayed.At(kQueries + r, c) = ToType<T>(ToFloat(smem.q.At(start + r, c)) * decay);
      smem.decayed.At(kQueries + kTile + r, c) =
          ToType<T>(ToFloat(smem.k.At(start + r, c)) * decay);
    }
  }
}

template <typename Config>
HL_DEVICE void ChannelScores(const PrepareShared<Config>& smem,
                             const ChunkPlace<typename Config::T>& place) {
#pragma unroll 1
  for (int r = WarpId(); r < kChunk; r += Config::kWarps) PairScores(smem, place, r);
#pragma unroll 1
  for (int i = 1; i < kTiles; ++i) {
    DecayOperands(smem, i);
    __syncthreads();
    // The warp's tile of keys, and whether it reads by the query.
    const int j = WarpId() / 2;
    const bool query = WarpId() % 2 == 0;
    if (j < i && (!query || place.scores != nullptr)) {
      float d[2][4];
      Clear(d);
      MultiplyAdd<1>(d, smem.decayed, kChunk - kTile + (query ? 0 : kTile),
                     Transposed(smem.decayed), j * kTile, 0, Config::kK);
      ForPairs(d, i * kTile, j * kTile, [&](int r, int s, float x, float y) {
        StoreScore(smem, query, place, r, s, x);
        StoreScore(smem, query, place, r, s + 1, y);
      });
    }
    __syncthreads();
  }
}

}  // namespace halflife::kernels::delta
