// Gradients of decay attention with per-channel decays: the part that each tile of 16 tokens
// computes independently. It produces dq, dk and the gradients of decays from the scan's products
// with the states (channel_reverse_scan.cuh) and from the pairs of tokens in the tile.
//
//   w_rs = product of the decays in (s, r]
//   P: tile's start to r, inclusive; Q: after s to its end; G: all of it
//   D_rs = dout_r v_s
//   dq_r = scale (P x_r + sum_{s <= r} D_rs w_rs c_s k_s)
//   dk_s = c_s (Q y_s + sum_{r >= s} D_rs w_rs scale q_r)
//   dg_t = sum_{r >= t} (a_r + scale q_r P x_r) + sum_{s < t} c_s k_s Q y_s - sum_{s >= t} b_s
//          + G t
//     a_r, b_s: the contributions of pairs s < r to q_r dq_r and to k_s dk_s. A pair that t does
//     not separate cancels, and no pair is larger than the weights of the separated pairs allow:
//     pairs (s, s) are excluded on both sides.
//
// Everything that the weights of pairs enter is summed pair by pair in fp32, by two threads per
// channel: one handles the queries, the other the keys.
//
// Shared memory in KiB, K = 128:
//   | q [16, K] 4 | k 4 | decays [16, K] 8 | x 8.3 | y 8.3 | v, dout [16, 128] 8 | D by warps 8
//   | sums 3.4 |
//   | sums 3.4 |
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

template <int kK>
struct ChannelGradSums {
  float dscores[kTile][kTile];             // D; values above the diagonal are not read
  float dscores_transposed[kTile][kTile];  // the same, [s, r]
  float query_scale[kTile], key_scale[kTile];
  float dkey_scale[kK / 32][kTile];  // by the warps that handle keys
  float transition[kK];              // G
  float through[kK];                 // sum of S R over V
};
static_assert(sizeof(ChannelGradSums<128>) == ChannelGradSumsBytes(128));

template <int kK_, int kTerms_>
struct ChannelGradConfig {
  static constexpr int kK = kK_, kThreads = 2 * kK, kWarps = kThreads / 32, kTerms = kTerms_;
  using T = typename Unsplit<kTerms>::Type;  // of q, k, v and dout
  // without it, nvcc would use fewer registers than there are
  static constexpr int kMinBlocksPerSm = 512 / kThreads;
  static constexpr int kPitch = kK + 4;  // for x and y
  static constexpr int kSmemBytes = ChannelGradientsSharedBytes(kK, kTerms);
};

template <typename Config>
struct ChannelGradShared {
  using T = typename Config::T;

  T *q, *k;        // [16, kK]
  float* decays;   // [16, kK]: initially the log decays
  float *x, *y;    // [16, kPitch]
  T *v, *dout;     // [16, kValuesAtOnce]
  float* dscores;  // [kWarps][16, 16]: D, for each warp's part of V
  ChannelGradSums<Config::kK>* sums;
};
constexpr int kValuesAtOnce = 128;  // columns of v and dout

template <typename Config>
HL_DEVICE ChannelGradShared<Config> CarveChannelGrad(unsigned char* raw) {
  constexpr int kK = Config::kK;
  SmemCarver carver(raw);
  ChannelGradShared<Config> smem;
  using T = typename Config::T;
  smem.q = carver.Take<T>(kTile * kK);
  smem.k = carver.Take<T>(kTile * kK);
  smem.decays = carver.Take<float>(kTile * kK);
  smem.x = carver.Take<float>(kTile * Config::kPitch);
  smem.y = carver.Take<float>(kTile * Config::kPitch);
  smem.v = carver.Take<T>(kTile * kValuesAtOnce);
  smem.dout = carver.Take<T>(kTile * kValuesAtOnce);
  smem.dscores = carver.Take<float>(Config::kWarps * kTile * kTile);
  smem.sums = carver.Take<ChannelGradSums<kK>>(1);
  return smem;
}

// Returns true if the thread handles a channel of the queries; otherwise it handles one of the
// keys.
template <typename Config>
HL_DEVICE bool HasQuery() {
  return static_cast<int>(threadIdx.x) < Config::kK;
}

// Loads the scan's products, summed over all slices of V in order: x or y of one channel.
template <typename Config>
HL_DEVICE void LoadProducts(const ChannelGradShared<Config>& smem,
                            const ChannelGradientsParams& params) {
  constexpr int kK = Config::kK;
  using Offsets = ProductOffsets<kK>;
  const int c = static_cast<int>(threadIdx.x) % kK;
  const bool has_query = HasQuery<Config>();
  const float* const first = params.products + int64_t{1} * blockIdx.x * Offsets::kElements + c;
  const int64_t next = params.num_tiles * Offsets::kElements;
  float sums[kTile] = {}, through = 0;
#pragma unroll 2
  for (int slice = 0; slice < params.num_slices; ++slice) {
    const float* const source = first + slice * next;
#pragma unroll
    for (int r = 0; r < kTile; ++r)
      sums[r] += source[(has_query ? Offsets::kX : Offsets::kY) + r * kK];
    if (has_query) through += source[Offsets::kThrough];
  }
  float* const target = (has_query ? smem.x : smem.y) + c;
#pragma unroll
  for (int r = 0; r < kTile; ++r) target[r * Config::kPitch] = sums[r];
  if (has_query) smem.sums->through[c] = through;
}

// Loads v and dout, starting at column `first` of V.
template <typename Config>
HL_DEVICE void LoadValues(const ChannelGradShared<Config>& smem,
                          const ChannelGradientsParams& params, const OneTile& one, int first) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int v_head = SharedHead(one.block_index.head, args.num_v_heads, args.num_heads);
  LoadTile<kValuesAtOnce, Config::kThreads, kTile>(
      smem.v, RowsOf(args.v, one.tile, v_head, first, args.head_dim_v), one.tile.length);
  LoadTile<kValuesAtOnce, Config::kThreads, kTile>(
      smem.dout, RowsOf(params.grads.dout, one.tile, one.block_index.head, first, args.head_dim_v),
      one.tile.length);
}

// Computes D for the warp's part of V.
template <typename Config>
HL_DEVICE void ScoreGradients(const ChannelGradShared<Config>& smem,
                              const ChannelGradientsParams& params, const OneTile& one) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int lane = FreshLaneId();
  float acc[2][4];
  Clear(acc);
#pragma unroll 1
  for (int first = 0; first < args.head_dim_v; first += kValuesAtOnce) {
    if (first > 0) {
      __syncthreads();  // the previous columns are no longer in use
      LoadValues<Config>(smem, params, one, first);
      CpAsyncCommit();
    }
    CpAsyncWait<0>();
    __syncthreads();
#pragma unroll 1
    for (int j = WarpId() * 16; j < kValuesAtOnce; j += Config::kWarps * 16) {
      Fragment<Config::kTerms> a, b;
      LoadFragment<kValuesAtOnce, false, /*kColumnsFirst=*/false>(a, smem.dout, lane, 0, j);
      LoadFragment<kValuesAtOnce, false, /*kColumnsFirst=*/true>(b, smem.v, lane, 0, j);
      MmaPair(acc[0], acc[1], a, b);
    }
  }
  float* const target = smem.dscores + WarpId() * kTile * kTile;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      target[(lane / 4 + i / 2 * 8) * kTile + 8 * n + lane % 4 * 2 + i % 2] = acc[n][i];
  }
}

// Computes dq, one channel per thread. Stores a_r + scale q_r P x_r in place of x.
template <typename Config>
HL_DEVICE void GradQueries(const ChannelGradShared<Config>& smem, const Rows& rows, int length) {
  constexpr int kK = Config::kK;
  const int c = static_cast<int>(threadIdx.x);
  float keys[kTile];  // decayed up to token r
  float incoming = 1;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    if (r % 2 == 0) KeepLoadsApart();
    float dscores[kTile];
    LoadRow(dscores, smem.sums->dscores[r]);
    const float decay = smem.decays[r * kK + c];
    incoming *= decay;
    float sum = incoming * smem.x[r * Config::kPitch + c];
#pragma unroll
    for (int s = 0; s < r; ++s) {
      keys[s] *= decay;
      sum = fmaf(dscores[s], keys[s], sum);
    }
    keys[r] = ToFloat(smem.k[TileOffset<kK>(r, c)]) * smem.sums->key_scale[r];
    const float scale = smem.sums->query_scale[r];
    smem.x[r * Config::kPitch + c] = scale * ToFloat(smem.q[TileOffset<kK>(r, c)]) * sum;
    if (r < length && c < rows.dim) StoreValue(rows, r, c, scale * fmaf(dscores[r], keys[r], sum));
  }
}

// Computes dk, one channel per thread. Stores sum_{s < t} c_s k_s Q y_s - sum_{s >= t} b_s in place
// of y.
template <typename Config>
HL_DEVICE void GradKeys(const ChannelGradShared<Config>& smem, const Rows& rows, int length,
                        bool wants_key_scale) {
  constexpr int kK = Config::kK;
  const int c = static_cast<int>(threadIdx.x) - kK;
  float queries[kTile];  // decayed back to token s
  float following[kTile], products[kTile];
  float outgoing = 1, sum_b = 0;
#pragma unroll
  for (int s = kTile - 1; s >= 0; --s) {
    if (s % 2 == 1) KeepLoadsApart();
    float dscores[kTile];
    LoadRow(dscores, smem.sums->dscores_transposed[s]);
    const float decay = s + 1 < kTile ? smem.decays[(s + 1) * kK + c] : 1.0f;
    outgoing *= decay;
    float sum = 0;
#pragma unroll
    for (int r = s + 1; r < kTile; ++r) {
      queries[r] *= decay;
      sum = fmaf(dscores[r], queries[r], sum);
    }
    queries[s] = smem.sums->query_scale[s] * ToFloat(smem.q[TileOffset<kK>(s, c)]);
    const float key = ToFloat(smem.k[TileOffset<kK>(s, c)]), key_scale = smem.sums->key_scale[s];
    const float from_after = outgoing * smem.y[s * Config::kPitch + c];
    const float dk = from_after + fmaf(dscores[s], queries[s], sum);
    products[s] = key * dk;
    sum_b += key * key_scale * sum;
    following[s] = sum_b;
    smem.y[s * Config::kPitch + c] = key * key_scale * from_after;
    if (s < length && c < rows.dim) StoreValue(rows, s, c, key_scale * dk);
  }
  float before = 0;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    const float early = smem.y[t * Config::kPitch + c];
    smem.y[t * Config::kPitch + c] = before - following[t];
    before += early;
  }
  if (!wants_key_scale) return;
  float sum = SumOverLanes(products);
  sum += __shfl_xor_sync(kFullWarp, sum, kTile);
  if (LaneId() < kTile) smem.sums->dkey_scale[c / 32][LaneId()] = sum;
}

// Computes the gradients of the log decays, one channel per thread, and stores them if `target` is
// present. Returns their sum. A decay of 0 has a gradient of exactly 0.
template <typename Config>
HL_DEVICE float GradDecays(const ChannelGradShared<Config>& smem, const TensorView& target,
                           const DecayAttentionArgs& args, const ChunkEntry& tile,
                           const BlockIndex& block_index) {
  const int c = static_cast<int>(threadIdx.x), first = block_index.key_slice * Config::kK;
  const int dim = args.head_dim_k;
  const bool resets = (tile.flags & kChunkResets) != 0;
  Rows rows = {};
  if (target.data != nullptr) rows = RowsOf(target, tile, block_index.head, first, dim);
  float late = smem.sums->transition[c] * smem.sums->through[c], total = 0;
#pragma unroll
  for (int t = kTile - 1; t >= 0; --t) {
    late += smem.x[t * Config::kPitch + c];
    const bool cut = (t == 0 && resets) || smem.decays[t * Config::kK + c] == 0.0f;
    const float gradient = cut ? 0.0f : late + smem.y[t * Config::kPitch + c];
    if (t >= tile.length || first + c >= dim) continue;
    total += gradient;
    if (rows.data != nullptr) StoreValue(rows, t, c, gradient);
  }
  return total;
}

template <typename Config>
HL_DEVICE void GradKeyScale(const ChannelGradShared<Config>& smem,
                            const ChannelGradientsParams& params, const OneTile& one) {
  const int s = static_cast<int>(threadIdx.x) - Config::kK;
  if (s < 0 || s >= one.tile.length) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Config::kK / 32; ++w) sum += smem.sums->dkey_scale[w][s];
  *TokenValue(params.dkey_scale, params.grads.forward, one.block_index.key_slice, one.tile,
              one.block_index.head, s) = sum;
}

// Replaces log decays by decays and computes G, one channel per thread.
template <typename Config>
HL_DEVICE void MakeDecays(const ChannelGradShared<Config>& smem) {
  constexpr int kK = Config::kK;
  const int c = static_cast<int>(threadIdx.x);
  if (c >= kK) return;
  float sum = 0;
#pragma unroll
  for (int r = kTile - 1; r >= 0; --r) {
    const float decay = smem.decays[r * kK + c] * kLog2E;
    smem.decays[r * kK + c] = Exp2Approx(decay);
    sum += decay;
  }
  smem.sums->transition[c] = Exp2Approx(sum);
}
// Sums D over all of V, in the order of the warps, and stores its transpose, too.
template <typename Config>
HL_DEVICE void SumScoreGradients(const ChannelGradShared<Config>& smem) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += Config::kThreads) {
    const int r = i / kTile, s = i % kTile;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) sum += smem.dscores[w * kTile * kTile + i];
    smem.sums->dscores[r][s] = sum;
    smem.sums->dscores_transposed[s][r] = sum;
  }
}

// Stores the tile's sum of gradients for a constant decay, one channel per thread.
template <typename Config>
HL_DEVICE void KeepDecaySum(const ChannelGradientsParams& params, const OneTile& one, float sum) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int channel = one.block_index.key_slice * Config::kK + static_cast<int>(threadIdx.x);
  if (params.dlambda == nullptr || !HasQuery<Config>() || channel >= args.head_dim_k) return;
  const int64_t tile =
      (int64_t{1} * one.block_index.head * args.num_chunks + one.chunk) * kTilesPerChunk +
      one.row / kTile;
  params.dlambda[tile * args.head_dim_k + channel] = sum;
}

// Barriers: (1) the tile is loaded, (2) decays and partial D are complete, (3) D is complete, (4)
// the gradients of pairs are complete. Each further 128 columns of V add two barriers.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelGradientsKernel(const ChannelGradientsParams params) {
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  HL_DYNAMIC_SMEM(raw);
  const ChannelGradShared<Config> smem = CarveChannelGrad<Config>(raw);
  const DecayAttentionArgs& args = params.grads.forward;
  const OneTile one = OneTileOf(args, params.shape);
  if (!one.exists) {
    if (one.in_batch_tile) KeepDecaySum<Config>(params, one, 0);
    return;
  }
  LoadKeysAndQueries<kK, kThreads>(smem.q, smem.k, smem.decays, args, one);
  LoadValues<Config>(smem, params, one, 0);
  CpAsyncCommit();
  FillTokenScales(smem.sums->query_scale, smem.sums->key_scale, args, one, params.row_scales);
  LoadProducts<Config>(smem, params);
  ScoreGradients<Config>(smem, params, one);
  MakeDecays<Config>(smem);
  __syncthreads();
  SumScoreGradients<Config>(smem);
  __syncthreads();
  const auto channels = [&](const TensorView& gradient) {
    return RowsOf(gradient, one.tile, one.block_index.head, one.block_index.key_slice * kK,
                  args.head_dim_k);
  };
  if (HasQuery<Config>()) {
    GradQueries<Config>(smem, channels(params.dq), one.tile.length);
  } else {
    GradKeys<Config>(smem, channels(params.dk), one.tile.length, params.dkey_scale.data != nullptr);
  }
  __syncthreads();
  if (!HasQuery<Config>()) {
    if (params.dkey_scale.data != nullptr) GradKeyScale<Config>(smem, params, one);
  } else if (params.dlog_decay.data != nullptr || params.dlambda != nullptr) {
    KeepDecaySum<Config>(
        params, one, GradDecays<Config>(smem, params.dlog_decay, args, one.tile, one.block_index));
  }
}

template <int kK, int kTerms>
void LaunchChannelGradients(const ChannelGradientsParams& params, cudaStream_t stream) {
  using Config = ChannelGradConfig<kK, kTerms>;
  Launch({NumTiles(params.grads.forward, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention gradients, decays of channels"},
         stream, ChannelGradientsKernel<Config>, params);
}

}  // namespace halflife::kernels::decay
