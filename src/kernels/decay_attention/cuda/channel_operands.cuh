// The operands of the scans with per-channel decays, computed for every tile of 16 tokens
// independently. Tiles do not depend on each other here, so the exponentials and the pairs of
// tokens, which are most of the arithmetic, do not wait for a state. For each tile:
//
//   scale q P, c k Q    P: tile's start to r, inclusive; Q: after s to its end
//   scores_rs           scale c_s sum over channels of q_r k_s times the decays in (s, r]
//   G                   the product of the tile's decays, and its log2
//
// Every factor is exp of a sum of log decays over its own range within the tile, so no factor
// exceeds 1 if no decay does. The 16 x 16 scores, whose weights lie between the two ends of a tile,
// are summed pair by pair: q_r k_s times a product of at most 15 decays.
//
// Shared memory in KiB, K = 128:
//   | q [16, K] 4 | k 4 | log decays [16, K] 8 | decays 8 | q P 4 | k Q 4 | scores 0.8 | scales |
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kTerms_>
struct ChannelOperandsConfig {
  static constexpr int kK = kK_, kTerms = kTerms_;
  static constexpr int kThreads = 2 * kK;  // per channel, one for q and one for k
  static constexpr int kSmemBytes = ChannelOperandsSharedBytes(kK, kTerms);
};

// Computes scale q P for channel c, and its decays.
template <int kTerms, int kK, typename T>
HL_DEVICE void ScaleQueries(bf16* scaled, float* decays, const T* q, const float* log_decay,
                            const float* query_scale, int c) {
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    const float decay = log_decay[r * kK + c] * kLog2E;
    sum += decay;
    decays[r * kK + c] = Exp2Approx(decay);
    const int at = TileOffset<kK>(r, c);
    StoreTerms<kTerms>(scaled + at, kTile * kK,
                       ToFloat(q[at]) * (query_scale[r] * Exp2Approx(sum)));
  }
}
// Computes c k Q for channel c. Returns the sum of its log decays, in units of log2.
template <int kTerms, int kK, typename T>
HL_DEVICE float ScaleKeys(bf16* scaled, const T* k, const float* log_decay, const float* key_scale,
                          int c) {
  float sum = 0;
#pragma unroll
  for (int s = kTile - 1; s >= 0; --s) {
    const int at = TileOffset<kK>(s, c);
    StoreTerms<kTerms>(scaled + at, kTile * kK, ToFloat(k[at]) * (key_scale[s] * Exp2Approx(sum)));
    sum += log_decay[s * kK + c] * kLog2E;
  }
  return sum;
}

// Barriers: (1) the tile is loaded, (2) scaled operands and decays are complete, (3) scores are
// complete.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    ChannelOperandsKernel(const ChannelOperandsParams params) {
  constexpr int kK = Config::kK, kThreads = Config::kThreads, kTerms = Config::kTerms;
  using Offsets = OperandOffsets<kK, kTerms>;
  using T = typename Unsplit<kTerms>::Type;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  T* const q = carver.Take<T>(kTile * kK);
  T* const k = carver.Take<T>(kTile * kK);
  float* const log_decay = carver.Take<float>(kTile * kK);
  float* const decays = carver.Take<float>(kTile * kK);
  bf16* const scaled = carver.Take<bf16>(2 * kTerms * kTile * kK);  // q P, then k Q
  bf16* const scores = carver.Take<bf16>(kTerms * kTile * kScorePitch);
  float* const query_scale = carver.Take<float>(kTile);
  float* const key_scale = carver.Take<float>(kTile);

  const DecayAttentionArgs& args = params.args;
  const OneTile one = OneTileOf(args, params.shape);
  if (!one.exists) return;
  LoadKeysAndQueries<kK, kThreads>(q, k, log_decay, args, one);
  CpAsyncCommit();
  FillTokenScales(query_scale, key_scale, args, one, params.row_scales);
  CpAsyncWait<0>();
  __syncthreads();
  char* const target =
      static_cast<char*>(params.operands) + int64_t{1} * blockIdx.x * Offsets::kBytes;
  const int thread = static_cast<int>(threadIdx.x), c = thread % kK;
  if (thread < kK) {
    ScaleQueries<kTerms, kK>(scaled, decays, q, log_decay, query_scale, c);
  } else {
    const float sum =
        ScaleKeys<kTerms, kK>(scaled + kTerms * kTile * kK, k, log_decay, key_scale, c);
    reinterpret_cast<float*>(target + Offsets::kTransition)[c] = Exp2Approx(sum);
    reinterpret_cast<float*>(target + Offsets::kLog2Transition)[c] = sum;
  }
  __syncthreads();
  PairScores<kK, kThreads>(q, k, decays, [&](int r, int s, float sum) {
    StoreTerms<kTerms>(scores + r * kScorePitch + s, kTile * kScorePitch,
                       s <= r ? sum * (query_scale[r] * key_scale[s]) : 0.0f);
  });
  const uint4* const rows = reinterpret_cast<const uint4*>(scaled);
#pragma unroll
  for (int i = thread; i < 2 * Offsets::kRows / 16; i += kThreads)
    reinterpret_cast<uint4*>(target)[i] = rows[i];
  __syncthreads();
  if (thread < kTerms * kTile * 2) {  // two units per row; the padding between rows is not read
    const int unit = thread / 2 * (kScorePitch / 8) + thread % 2;
    reinterpret_cast<uint4*>(target + Offsets::kScores)[unit] =
        reinterpret_cast<const uint4*>(scores)[unit];
  }
}

template <int kK, int kTerms>
void LaunchChannelOperands(const ChannelOperandsParams& params, cudaStream_t stream) {
  using Config = ChannelOperandsConfig<kK, kTerms>;
  Launch({NumTiles(params.args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention operands, decays of channels"},
         stream, ChannelOperandsKernel<Config>, params);
}

}  // namespace halflife::kernels::decay
