// The operands of the wgmma scan with per-channel decays (channel_chunks.h), computed for
// every chunk and head independently, by one block each.
//
// A decay per channel cannot scale a finished score, and a quotient exp(b_r) / exp(b_s) of sums
// from the chunk's start would overflow. The weight of a pair of tokens is the product of the
// decays in (s, r]. It is computed as a product of factors over adjacent ranges:
//
//   r and s in different blocks of 8 tokens: the decays of the key after s to its block's end, of
//     whole blocks between the two, and of the query from its block's start to r. The first and the
//     last are in the operands, and those of whole blocks are multiplied into fragments. These
//     pairs are products on tensor cores, in tiles of 16 x 16 tokens.
//   in one block: at most 7 decays, one after the other, in fp32
//
// Every factor is exp of a sum of log decays over its own range. This has three consequences: no
// factor exceeds 1 if no decay does, a decay of 0 needs no special case, and row r of any result
// does not depend on decays after r.
//
// Shared memory in KiB, K = 128, C = 64:
//   | q [C, K] 16 | k 16 | log decays, then decays [C, K] 32 | queries 16 | keys 16
//   | scores [C, C] 8 | sums of blocks [C / 8, K] 4 | scales 0.5 |
#pragma once

#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/channel_tile.cuh"

namespace halflife::kernels::decay {

template <int kK_>
struct ChannelChunkOperandsConfig {
  static constexpr int kK = kK_, kWarps = kChunk / kBaseBlock, kThreads = 32 * kWarps;
  static constexpr int kPairs = kK / 2;  // a thread handles two adjacent channels of a block
  static constexpr int kMinBlocksPerSm = 2;
  static constexpr int kSmemBytes = ChannelChunkOperandsSharedBytes(kK);
};

struct ChunkOperandsShared {
  bf16 *q, *k;                     // [64, kK]
  float* decays;                   // [64, kK]: log decays until the operands are complete
  bf16 *queries, *keys;            // [64, kK]: scale q and c k, decayed within their blocks
  bf16* scores;                    // [64, 64]
  float* totals;                   // [8, kK]: log2 of the product of each block's decays
  float *query_scale, *key_scale;  // [64]
};

HL_DEVICE float2 Log2Decays(const float* log_decay) {
  const float2 decays = *reinterpret_cast<const float2*>(log_decay);
  return make_float2(decays.x * kLog2E, decays.y * kLog2E);
}
HL_DEVICE float2 Exp2Of(float2 x) { return make_float2(Exp2Approx(x.x), Exp2Approx(x.y)); }
HL_DEVICE void AddTo(float2& sum, float2 x) {
  sum.x += x.x;
  sum.y += x.y;
}

// Calls visit(block of 8 tokens, first of two channels) for this thread's parts of the chunk.
template <typename Config, typename Visit>
HL_DEVICE void VisitBlocks(const Visit& visit) {
  constexpr int kPairs = Config::kPairs;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kChunk / kBaseBlock * kPairs;
       i += Config::kThreads)
    visit(i / kPairs, i % kPairs * 2);
}

template <int kK>
HL_DEVICE void SumBlock(const ChunkOperandsShared& smem, int block, int column) {
  const float* const log_decay = smem.decays + block * kBaseBlock * kK + column;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int r = 0; r < kBaseBlock; ++r) AddTo(sum, Log2Decays(log_decay + r * kK));
  *reinterpret_cast<float2*>(smem.totals + block * kK + column) = sum;
}

// Stores x and x decay, for two channels of a token: into shared memory, and as an operand.
HL_DEVICE void StoreOperand(bf16* within, char* whole, float2 x, float2 decay) {
  *reinterpret_cast<uint32_t*>(within) = PackBf16(x.x, x.y);
  *reinterpret_cast<uint32_t*>(whole) = PackBf16(x.x * decay.x, x.y * decay.y);
}
HL_DEVICE float2 PairAt(const bf16* x) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(x);
  return make_float2(UnpackLo(pair), UnpackHi(pair));
}
HL_DEVICE float2 ScaledPair(const bf16* x, float scale, float2 decay) {
  const float2 pair = PairAt(x);
  return make_float2(pair.x * (scale * decay.x), pair.y * (scale * decay.y));
}

// Computes the operands of one block's tokens for two channels, and their decays. queries, keys,
// transition, log2_transition: those of this chunk and head.
template <int kK>
HL_DEVICE void ScaleBlock(const ChunkOperandsShared& smem, const ChannelChunks& target, int block,
                          int column) {
  float2 before = make_float2(0, 0), after = make_float2(0, 0), own = before;
#pragma unroll
  for (int m = 0; m < kChunk / kBaseBlock; ++m) {
    const float2 total = *reinterpret_cast<const float2*>(smem.totals + m * kK + column);
    if (m < block) AddTo(before, total);
    if (m == block) own = total;
    if (m > block) AddTo(after, total);
  }
  char* const queries = static_cast<char*>(target.queries);
  char* const keys = static_cast<char*>(target.keys);
  const int first = block * kBaseBlock;
  const float2 decay_before = Exp2Of(before), decay_after = Exp2Of(after);
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int row = first; row < first + kBaseBlock; ++row) {
    AddTo(sum, Log2Decays(smem.decays + row * kK + column));
    const int at = TileOffset<kK>(row, column);
    StoreOperand(smem.queries + at, queries + (row * kK + column) * 2,
                 ScaledPair(smem.q + at, smem.query_scale[row], Exp2Of(sum)), decay_before);
  }
  sum = make_float2(0, 0);
#pragma unroll
  for (int row = first + kBaseBlock - 1; row >= first; --row) {
    const int at = TileOffset<kK>(row, column);
    StoreOperand(smem.keys + at, keys + (row * kK + column) * 2,
                 ScaledPair(smem.k + at, smem.key_scale[row], Exp2Of(sum)), decay_after);
    float* const decays = smem.decays + row * kK + column;
    const float2 decay = Log2Decays(decays);
    AddTo(sum, decay);
    *reinterpret_cast<float2*>(decays) = Exp2Of(decay);
  }
  if (block > 0) return;
  AddTo(own, after);
  *reinterpret_cast<float2*>(target.transition + column) = Exp2Of(own);
  *reinterpret_cast<float2*>(target.log2_transition + column) = own;
}

// Computes the scores of pairs within the warp's block of 8 tokens. A lane sums its channels of all
// pairs, so it reads each q, k and decay once: row by row, the keys before r decay by r's decay.
template <int kK>
HL_DEVICE void ScoresWithinBlock(const ChunkOperandsShared& smem, int length) {
  constexpr int kRows = kBaseBlock, kPairs = kRows * (kRows - 1) / 2;
  const int lane = FreshLaneId(), first = FreshWarpId() * kRows;
  float own[kRows], pairs[32];  // q_r k_r; q_r and a decayed k_s, s < r, at r (r - 1) / 2 + s
#pragma unroll
  for (int i = 0; i < kRows; ++i) own[i] = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) pairs[i] = 0;
#pragma unroll 1
  for (int c = 2 * lane; c < kK; c += 64) {
    float2 keys[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float2 query = PairAt(smem.q + TileOffset<kK>(first + r, c));
      const float2 decay = *reinterpret_cast<const float2*>(smem.decays + (first + r) * kK + c);
      keys[r] = PairAt(smem.k + TileOffset<kK>(first + r, c));
      own[r] = fmaf(query.y, keys[r].y, fmaf(query.x, keys[r].x, own[r]));
#pragma unroll
      for (int s = 0; s < r; ++s) {
        keys[s].x *= decay.x;
        keys[s].y *= decay.y;
        float& sum = pairs[r * (r - 1) / 2 + s];
        sum = fmaf(query.y, keys[s].y, fmaf(query.x, keys[s].x, sum));
      }
    }
  }
  const auto store = [&](int r, int s, float sum) {
    const int row = first + r, column = first + s;
    smem.scores[TileOffset<kChunk>(row, column)] =
        ToBf16(row < length ? sum * (smem.query_scale[row] * smem.key_scale[column]) : 0.0f);
  };
  const float pair = SumOverLanes(pairs);
  float diagonal = SumOverLanes(own);
  diagonal += __shfl_xor_sync(kFullWarp, diagonal, 8);
  diagonal += __shfl_xor_sync(kFullWarp, diagonal, 16);
  int r = 1;
#pragma unroll
  for (int next = 2; next < kRows; ++next) r += lane >= next * (next - 1) / 2 ? 1 : 0;
  if (lane < kPairs) store(r, lane - r * (r - 1) / 2, pair);
  if (lane < kRows) store(lane, lane, diagonal);
}

// Stores two adjacent scores; those past the chunk's end are zero.
HL_DEVICE void StoreScores(bf16* scores, int row, int column, float x, float y, int length) {
  const bool live = row < length;
  *reinterpret_cast<uint32_t*>(scores + TileOffset<kChunk>(row, column)) =
      PackBf16(live && column < length ? x : 0.0f, live && column + 1 < length ? y : 0.0f);
}

// Computes the scores of the later block of tile i of 16 tokens with the keys of its earlier block.
template <int kK>
HL_DEVICE void ScoresWithinTile(const ChunkOperandsShared& smem, int i, int length) {
  const int lane = FreshLaneId();
  float acc[4] = {0, 0, 0, 0};
#pragma unroll 2
  for (int c = 0; c < kK; c += 16) {
    uint32_t a[4], b[4];
    LoadFragment<kK, false>(a, smem.queries, RowsFirst<kK>(lane), kTile * i, c);
    LoadFragment<kK, false>(b, smem.keys, ColumnsFirst<kK>(lane), kTile * i, c);
    const uint32_t earlier[2] = {b[0], b[1]};
    MmaM16N8K16(acc, a, earlier);  // of its rows, only the later eight are scores
  }
  StoreScores(smem.scores, kTile * i + 8 + lane / 4, kTile * i + lane % 4 * 2, acc[2], acc[3],
              length);
}

// Multiplies fragments of queries (tile i) and keys (tile j < i), 16 channels from c on, by the
// decays of the whole blocks between a query's block and a key's.
template <int kK>
HL_DEVICE void DecayBetween(uint32_t (&a)[4], uint32_t (&b)[4], const float* totals, int i, int j,
                            int c) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const column = totals + c + 8 * half + FreshLaneId() % 4 * 2;
    const auto total = [&](int block) {
      return *reinterpret_cast<const float2*>(column + block * kK);
    };
    float2 between = make_float2(0, 0);
#pragma unroll 1
    for (int block = 2 * j + 2; block < 2 * i; ++block) AddTo(between, total(block));
    const float2 query = Exp2Of(total(2 * i)), later_key = Exp2Of(between);
    AddTo(between, total(2 * j + 1));
    const float2 key = Exp2Of(between);
    a[1 + 2 * half] = ScalePair(a[1 + 2 * half], query.x, query.y);  // the later eight queries
    b[half] = ScalePair(b[half], key.x, key.y);                      // the earlier eight keys
    b[2 + half] = ScalePair(b[2 + half], later_key.x, later_key.y);
  }
}
// Computes the scores of tile i of 16 tokens with the keys of tile j < i.
template <int kK>
HL_DEVICE void ScoresOfTiles(const ChunkOperandsShared& smem, int i, int j, int length) {
  const int lane = FreshLaneId();
  float acc[2][4];
  Clear(acc);
#pragma unroll 1
  for (int c = 0; c < kK; c += 16) {
    uint32_t a[4], b[4];
    LoadFragment<kK, false>(a, smem.queries, RowsFirst<kK>(lane), kTile * i, c);
    LoadFragment<kK, false>(b, smem.keys, ColumnsFirst<kK>(lane), kTile * j, c);
    DecayBetween<kK>(a, b, smem.totals, i, j, c);
    MmaPair(acc[0], acc[1], a, b);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      StoreScores(smem.scores, kTile * i + 8 * half + lane / 4, kTile * j + 8 * n + lane % 4 * 2,
                  acc[n][2 * half], acc[n][2 * half + 1], length);
  }
}
// All scores of the chunk. A warp has one block; and of the pairs between blocks, six warps have
// one of the six tiles below the diagonal, and two have two of the four on it.
template <int kK>
HL_DEVICE void ComputeScores(const ChunkOperandsShared& smem, int length) {
  const int warp = FreshWarpId();
  ScoresWithinBlock<kK>(smem, length);
  if (warp < 6) {
    const int i = warp < 1 ? 1 : warp < 3 ? 2 : 3;
    ScoresOfTiles<kK>(smem, i, warp - i * (i - 1) / 2, length);
  } else {
    ScoresWithinTile<kK>(smem, 2 * (warp - 6), length);
    ScoresWithinTile<kK>(smem, 2 * (warp - 6) + 1, length);
  }
}

template <typename Config>
HL_DEVICE ChunkOperandsShared CarveChunkOperands(unsigned char* raw) {
  constexpr int kK = Config::kK;
  SmemCarver carver(raw);
  ChunkOperandsShared smem;
  smem.q = carver.Take<bf16>(kChunk * kK);
  smem.k = carver.Take<bf16>(kChunk * kK);
  smem.decays = carver.Take<float>(kChunk * kK);
  smem.queries = carver.Take<bf16>(kChunk * kK);
  smem.keys = carver.Take<bf16>(kChunk * kK);
  smem.scores = carver.Take<bf16>(kChunk * kChunk);
  smem.totals = carver.Take<float>(kChunk / kBaseBlock * kK);
  smem.query_scale = carver.Take<float>(kChunk);
  smem.key_scale = carver.Take<float>(kChunk);
  return smem;
}
// Loads a chunk's q, k, log decays and scales, and clears the scores; one thread per unit.
template <typename Config>
HL_DEVICE void LoadChunkOperands(const ChunkOperandsShared& smem, const DecayAttentionArgs& args,
                                 const RowScales& row_scales, const ChunkEntry& chunk, int head) {
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int q_head = SharedHead(head, args.num_q_heads, args.num_heads);
  const int k_head = SharedHead(head, args.num_k_heads, args.num_heads);
  BlockIndex block_index = {};
  block_index.head = head;
  LoadTile<kK, kThreads>(smem.q, RowsOf(args.q, chunk, q_head, 0, kK), chunk.length);
  LoadTile<kK, kThreads>(smem.k, RowsOf(args.k, chunk, k_head, 0, kK), chunk.length);
  LoadLogDecays<kK, kThreads, kChunk>(smem.decays, args, chunk, block_index);
  CpAsyncCommit();
  for (int i = thread; i < kChunk * kChunk / 8; i += kThreads)
    *reinterpret_cast<uint4*>(smem.scores + 8 * i) = make_uint4(0, 0, 0, 0);
  if (thread < kChunk) {
    const bool live = thread < chunk.length;
    smem.query_scale[thread] = live ? QueryScaleAt(args, row_scales, chunk, thread, head) : 0.0f;
    smem.key_scale[thread] = live ? KeyScaleAt(args, chunk, thread, head) : 0.0f;
  }
}

// Barriers: (1) the chunk is loaded, (2) the sums of blocks are complete, (3) the operands and
// decays are complete, (4) the scores are complete.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelChunkOperandsKernel(const ChannelOperandsParams params, const ChannelChunks chunks) {
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  HL_DYNAMIC_SMEM(raw);
  const ChunkOperandsShared smem = CarveChunkOperands<Config>(raw);
  const DecayAttentionArgs& args = params.args;
  const SegmentShape& shape = params.shape;
  const auto heads = static_cast<unsigned>(args.num_heads);
  const int head = static_cast<int>(blockIdx.x % heads);
  const int index =
      args.sequence_begin[shape.first_sequence] + static_cast<int>(blockIdx.x / heads);
  if (index >= args.sequence_begin[shape.first_sequence + shape.num_sequences]) return;
  const ChunkEntry chunk = args.chunks[index];
  LoadChunkOperands<Config>(smem, args, params.row_scales, chunk, head);
  CpAsyncWait<0>();
  __syncthreads();
  VisitBlocks<Config>([&](int block, int column) { SumBlock<kK>(smem, block, column); });
  __syncthreads();
  ChannelChunks target = chunks;
  const int64_t at = blockIdx.x;
  target.queries = static_cast<char*>(chunks.queries) + at * (kChunk * kK * 2);
  target.keys = static_cast<char*>(chunks.keys) + at * (kChunk * kK * 2);
  target.transition = chunks.transition + at * kK;
  target.log2_transition = chunks.log2_transition + at * kK;
  VisitBlocks<Config>([&](int block, int column) { ScaleBlock<kK>(smem, target, block, column); });
  __syncthreads();
  ComputeScores<kK>(smem, chunk.length);
  __syncthreads();
  uint4* const scores =
      reinterpret_cast<uint4*>(static_cast<char*>(chunks.scores) + at * (kChunk * kChunk * 2));
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kChunk / 8; i += kThreads)
    scores[i] = *reinterpret_cast<const uint4*>(smem.scores + TileOffset<kChunk>(i / 8, i % 8 * 8));
}

template <int kK>
void LaunchChannelChunkOperands(const ChannelOperandsParams& params, cudaStream_t stream) {
  using Config = ChannelChunkOperandsConfig<kK>;
  const DecayAttentionArgs& args = params.args;
  constexpr const char* kName = "decay attention operands of chunks, decays of channels";
  Launch(
      {GridBlocks(MaxStatesInBatchTile(args, params.shape.num_sequences, /*num_parts=*/1), kName),
       Config::kThreads, Config::kSmemBytes, kName},
      stream, ChannelChunkOperandsKernel<Config>, params,
      ChannelChunksOf(args, params.shape, params.operands));
}

}  // namespace halflife::kernels::decay
