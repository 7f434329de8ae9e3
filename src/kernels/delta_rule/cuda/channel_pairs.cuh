// The second part of a chunk's gradients with one decay per token and channel: the pairs of tokens
// in the chunk. Weights differ by channel, so they scale the operands of products, in levels.
//
// Level h = 32, 16, 8, 4, 2, 1 has the pairs (r, s), s < r, whose numbers agree above bit h and
// differ in it. So they are in the two halves, of h rows each, of one block of 2 h rows. With
// `middle` the first row of r's half:
//
//   w_rs = f_r f_s    f_r = exp(sum over [middle, r])    f_s = exp(sum over (s, middle))
//
// Both factors lie between 0 and 1, and each is exp of a sum over exactly its range, so -inf needs
// no special case. A row belongs to one half per level and so has one factor per channel. The pairs
// of a level are then products of whole tiles: of D with k f, of D^T with q f, and so on. Below
// h = 16, the pairs are in the diagonal tiles, and the other elements of D and F are masked.
#pragma once

#include "kernels/delta_rule/cuda/token_pairs.cuh"

namespace halflife::kernels::delta {

// Returns the log decay of a row and channel, in units of log2: from shared memory if it is there.
template <typename Config>
HL_DEVICE float Log2DecayOf(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                            const GradientPlace& place, int r, int c) {
  if constexpr (Config::kDecaysShared) {
    return smem.log2_decay.At(r, c);
  } else {
    return r < place.chunk.length && place.first_key + c < args.head_dim_k
               ? Log2DecayAt(args, place.chunk, r, place.head, place.first_key + c)
               : 0.0f;
  }
}

// Loads the log decays of a slice of K: zeros past the chunk's end and past K.
template <typename Config>
HL_DEVICE void LoadDecays(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                          const GradientPlace& place) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * Config::kK; i += Config::kThreads) {
    const int r = i / Config::kK, c = i % Config::kK, channel = place.first_key + c;
    smem.log2_decay.At(r, c) = r < place.chunk.length && channel < args.head_dim_k
                                   ? Log2DecayAt(args, place.chunk, r, place.head, channel)
                                   : 0.0f;
  }
}

// A thread's channel, and its half of the rows. Threads beyond two per channel are idle.
template <typename Config>
struct ChannelThread {
  int channel, half;
  bool exists;
};
template <typename Config>
HL_DEVICE ChannelThread<Config> MakeChannelThread() {
  const int thread = static_cast<int>(threadIdx.x);
  return {thread % Config::kK, thread / Config::kK, thread < 2 * Config::kK};
}

// Fills the factors of the states: P (kFromStart) or Q of all rows.
template <bool kFromStart, typename Config>
HL_DEVICE void FillStateFactors(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                                const GradientPlace& place) {
  const ChannelThread<Config> thread = MakeChannelThread<Config>();
  if (!thread.exists || thread.half > 0) return;
  const int c = thread.channel;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < kChunk; ++i) {
    const int r = kFromStart ? i : kChunk - 1 - i;
    if (kFromStart) sum += Log2DecayOf(smem, args, place, r, c);
    smem.factors.At(r, c) = Exp2Approx(sum);
    if (!kFromStart) sum += Log2DecayOf(smem, args, place, r, c);
  }
}

// Fills the factors of a level, and q and k times them.
template <typename Config>
HL_DEVICE void FillLevel(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                         const GradientPlace& place, int level) {
  using T = typename Config::T;
  const ChannelThread<Config> thread = MakeChannelThread<Config>();
  if (!thread.exists) return;
  const int c = thread.channel, begin = thread.half * (kChunk / 2);
  const auto scale = [&](int r, float sum) {
    const float factor = Exp2Approx(sum);
    smem.factors.At(r, c) = factor;
    smem.q_level.At(r, c) = ToType<T>(ToFloat(smem.q.At(r, c)) * factor);
    smem.k_level.At(r, c) = ToType<T>(ToFloat(smem.k.At(r, c)) * factor);
  };
  float sum = 0;
#pragma unroll 4
  for (int r = begin; r < begin + kChunk / 2; ++r) {  // the later halves
    if (r % level == 0) sum = 0;
    sum += Log2DecayOf(smem, args, place, r, c);
    if ((r & level) != 0) scale(r, sum);
  }
#pragma unroll 4
  for (int s = begin + kChunk / 2 - 1; s >= begin; --s) {  // the earlier halves
    if ((s + 1) % level == 0) sum = 0;
    if ((s & level) == 0) scale(s, sum);
    sum += Log2DecayOf(smem, args, place, s, c);
  }
}

// Adds factors times product to tiles kFirst .. of sums, element by element.
template <int kFirst, int kSums, int kTiles, int kK>
HL_DEVICE void AddScaled(float (&sums)[kSums][4], float (&product)[kTiles][4],
                         Matrix<float, kK> factors, int row, int column) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    KeepLoadsApart();
    float(&sum)[4] = sums[kFirst + n];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 factor = LoadPair(&factors.At(row + g + 8 * i, column + 8 * n + 2 * t));
      sum[2 * i] += factor.x * product[n][2 * i];
      sum[2 * i + 1] += factor.y * product[n][2 * i + 1];
    }
  }
}
template <int kTiles, int kK>
HL_DEVICE void ScaleElements(float (&d)[kTiles][4], Matrix<float, kK> factors, float factor,
                             int row, int column) {
  ForRowPairs(d, row, column, [&](int i, int r, int c, float& x, float& y) {
    if (i == 0) KeepLoadsApart();
    const float2 pair = LoadPair(&factors.At(r, c));
    x *= factor * pair.x;
    y *= factor * pair.y;
  });
}

// For rows `row` to row + 15 at this level: EarlierRows returns the rows s of the pairs in which
// they are the later ones, and LaterRows the rows r of the pairs in which they are the earlier
// ones. Empty if there are none.
HL_DEVICE Range EarlierRows(int row, int level) {
  if (level < 16) return {row, row + 16};
  const int block = row & ~(2 * level - 1);
  return {block, (row & level) != 0 ? block + level : block};
}
HL_DEVICE Range LaterRows(int row, int level) {
  if (level < 16) return {row, row + 16};
  const int middle = (row & ~(2 * level - 1)) + level;
  return {middle, (row & level) == 0 ? middle + level : middle};
}

// Adds the pairs of a level to half kPart of the warp's columns of the gradients: query, reader,
// and `later`, which is the part of dk from later readers. Products of all columns at once would
// need more registers than there are.
template <int kPart, typename Config>
HL_DEVICE void AddLevel(GradientSums<Config>& sums, float (&later)[GradientSums<Config>::kTiles][4],
                        const GradientShared<Config>& smem, const GradientPlace& place, int level) {
  constexpr int kTilesOfPart = GradientSums<Config>::kTiles / 2, kPairs = kTilesOfPart / 2;
  constexpr int kFirst = kPart * kTilesOfPart;
  const int row = place.row, column = place.column + 8 * kFirst;
  const float* const beta = smem.rows->beta;
  const auto select = [&](float x, int r, int s) { return (r ^ s) / level == 1 ? x : 0.0f; };
  const Range earlier = EarlierRows(row, level), rows = LaterRows(row, level);
  float product[kTilesOfPart][4];
  if (earlier.begin < earlier.end) {
    Clear(product);
    MultiplyChanged<kPairs>(product, smem.d, row, smem.k_level, column, earlier, select);
    AddScaled<kFirst>(sums.query, product, smem.factors, row, column);
    Clear(product);
    MultiplyChanged<kPairs>(product, smem.f, row, smem.k_level, column, earlier, select);
    AddScaled<kFirst>(sums.reader, product, smem.factors, row, column);
  }
  if (rows.begin < rows.end) {
    Clear(product);
    MultiplyChanged<kPairs>(product, Transposed(smem.d), row, smem.q_level, column, rows, select);
    MultiplyChanged<kPairs>(product, Transposed(smem.f), row, smem.k_level, column, rows,
                            [&](float x, int s, int r) { return -beta[r] * select(x, r, s); });
    AddScaled<kFirst>(later, product, smem.factors, row, column);
  }
}

template <typename Config>
HL_DEVICE void StateFactors(GradientSums<Config>& sums, const GradientShared<Config>& smem,
                            const DeltaRuleArgs& args, const GradientPlace& place) {
  FillStateFactors<true>(smem, args, place);
  __syncthreads();
  ScaleElements(sums.query, smem.factors, static_cast<float>(args.scale), place.row, place.column);
  ScaleElements(sums.reader, smem.factors, 1, place.row, place.column);
  __syncthreads();
  FillStateFactors<false>(smem, args, place);
  __syncthreads();
  ScaleElements(sums.written, smem.factors, 1, place.row, place.column);
  __syncthreads();
}

// Completes and stores dq and dk. Keeps the terms of the decays' gradients in shared memory (see
// token_pairs.cuh), here per channel.
template <typename Config>
HL_DEVICE void FinishChannels(GradientSums<Config>& sums,
                              float (&later)[GradientSums<Config>::kTiles][4],
                              const GradientShared<Config>& smem,
                              const ChunkGradientsParams& params, const GradientPlace& place) {
  using T = typename Config::T;
  const GradientRows& rows = *smem.rows;
  const int row = place.row, column = place.column, length = place.chunk.length;
  const int K = params.grads.forward.head_dim_k;
  float reads[2] = {};
  AddDots(reads, sums.reader, smem.k, row, column);
  AddRowSums(reads, smem.rows->reader[place.half], row);
  ScaleRows(sums.reader, rows.beta, -1, row);
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int n = 0; n < GradientSums<Config>::kTiles; ++n) {
    KeepLoadsApart();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + g + 8 * i, c = column + 8 * n + 2 * t;
      const float2 q = LoadPair(&smem.q.At(r, c)), k = LoadPair(&smem.k.At(r, c));
      const float(&query)[4] = sums.query[n];
      float(&reader)[4] = sums.reader[n];
      const float(&written)[4] = sums.written[n];
      StorePair(&smem.late.At(r, c), q.x * query[2 * i] + k.x * (reader[2 * i] - later[n][2 * i]),
                q.y * query[2 * i + 1] + k.y * (reader[2 * i + 1] - later[n][2 * i + 1]));
      StorePair(&smem.early.At(r, c), k.x * written[2 * i], k.y * written[2 * i + 1]);
      reader[2 * i] += written[2 * i] + later[n][2 * i];
      reader[2 * i + 1] += written[2 * i + 1] + later[n][2 * i + 1];
    }
  }
  AddOwnPairs(sums.query, rows.own, smem.k, row, column);
  StoreGradient<T>(sums.query,
                   tiles::RowsOf(params.dq, place.chunk, place.head, place.first_key, K), length,
                   row, column);
  AddOwnPairs(sums.reader, rows.own, smem.q, row, column);
  StoreGradient<T>(sums.reader,
                   tiles::RowsOf(params.dk, place.chunk, place.head, place.first_key, K), length,
                   row, column);
}

// One thread per channel.
template <typename Config>
HL_DEVICE void StoreChannelDecayGradient(const GradientShared<Config>& smem,
                                         const ChunkGradientsParams& params,
                                         const GradientPlace& place) {
  const DeltaRuleArgs& args = params.grads.forward;
  const int c = static_cast<int>(threadIdx.x);
  if (params.grads.dlog_decay.data == nullptr || place.first_key + c >= args.head_dim_k ||
      c >= Config::kK)
    return;
  float through = 0, decay = 0;
#pragma unroll
  for (int i = c; i < Config::kThreads; i += Config::kK) through += smem.through[i];
#pragma unroll 4
  for (int r = 0; r < kChunk; ++r) decay += Log2DecayOf(smem, args, place, r, c);
  float sum = Exp2Approx(decay) * through;
#pragma unroll 4
  for (int r = kChunk - 1; r >= 0; --r) {
    sum += smem.late.At(r, c);
    smem.late.At(r, c) = sum;
  }
  sum = 0;
#pragma unroll 4
  for (int t = 0; t < place.chunk.length; ++t) {
    const bool cut = IsCut(place.chunk, t, Log2DecayOf(smem, args, place, t, c));
    Store<float>(params.grads.dlog_decay, place.chunk, t, place.head, place.first_key + c,
                 cut ? 0.0f : smem.late.At(t, c) + sum);
    sum += smem.early.At(t, c);
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    ChannelGradientsKernel(const ChunkGradientsParams params) {
  HL_DYNAMIC_SMEM(raw);
  const GradientShared<Config> smem(raw);
  const DeltaRuleArgs& args = params.grads.forward;
  GradientPlace place = MakeGradientPlace<Config>(args);
  if (place.chunk.length == 0) return;
  StartRows(smem, args, place);
  __syncthreads();
  GradientSums<Config> sums;
  float later[GradientSums<Config>::kTiles][4];
#pragma unroll 1
  for (; place.first_key < args.head_dim_k; place.first_key += Config::kK) {
    if constexpr (Config::kDecaysShared) LoadDecays(smem, args, place);
    ValuePart(sums, smem, params, place);
    StoreScoreGradients(sums, smem, place, static_cast<float>(args.scale),
                        [](int, int) { return 1.0f; });
    CpAsyncWait<0>();
    __syncthreads();
    StateFactors(sums, smem, args, place);
    Clear(later);
#pragma unroll 1
    for (int level = kChunk / 2; level >= 1; level /= 2) {
      FillLevel(smem, args, place, level);
      __syncthreads();
      AddLevel<0>(sums, later, smem, place, level);
      AddLevel<1>(sums, later, smem, place, level);
      __syncthreads();
    }
    FinishChannels(sums, later, smem, params, place);
    __syncthreads();
    StoreChannelDecayGradient(smem, params, place);
    __syncthreads();
  }
  StoreBetaGradient(smem, params.grads.dbeta, place);
}

}  // namespace halflife::kernels::delta
