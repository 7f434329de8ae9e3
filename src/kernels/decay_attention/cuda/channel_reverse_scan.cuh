// Gradients of decay attention where each key channel has its own decay: one block scans a segment
// from the end, in tiles of 16 tokens, with R = dL/d(state) in registers.
//
// As in reverse_scan.cuh the chunks between two checkpoints, a group, are scanned twice: forward
// from the checkpoint, leaving the state before each tile in a scratch, then in reverse, so that S
// before a tile and R after it are there at the same time. Of a tile:
//
//   w_rs = product of the decays in (s, r]
//   P: tile's start to r, inclusive; Q: after s to its end; G: all of it
//   D_rs = dout_r v_s
//   scores_rs = scale c_s sum over channels of q_r k_s w_rs            (s <= r)
//   x = P (S dout)                             y = c Q (R v)
//   dq_r = scale (x_r + sum_{s <= r} D_rs w_rs c_s k_s)
//   dk_s = y_s + c_s sum_{r >= s} D_rs w_rs scale q_r
//   dv = scores^T dout + (c k Q) R             R' = G R + (scale q P)^T dout
//   dg_t = sum_{r >= t} (a_r + scale q_r x_r) + sum_{s < t} k_s y_s - sum_{s >= t} b_s
//          + G sum_v(S R)
//     a_r, b_s: what pairs s < r give to q_r dq_r and to k_s dk_s. A pair that t does not part
//     cancels, and none is of a size that the weights of the pairs parted do not have: pairs (s, s)
//     are left out on both sides.
//
// Products over V are MMAs. What weights of pairs enter is summed pair by pair in fp32: scores by
// threads that share a key, gradients by two threads a channel, of which one has the queries and
// one the keys.
//
// Shared memory in KiB, K = V = 128:
//   | 2 x (q [16, K] 4 | k 4 | v [16, V] 4 | dout 4) | log decays [16, K] 8 | decays 8 | q P 4
//   | k Q 4 |
//   | R [K, V] 32 | x 8.3 | y 8.3 | scores [16, 64] 2 | stage of dv 4 | sums 3.4 |
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

template <int kK>
struct ChannelGradSums {
  float dscores[kTile][kTile];             // D, 0 above the diagonal
  float dscores_transposed[kTile][kTile];  // the same, [s, r]
  float query_scale[kTile], key_scale[kTile];
  float dkey_scale[kK / 32][kTile];  // by the warps that have keys
  float transition[kK];              // G
  float through[kK];                 // sum of S R over V
};
static_assert(sizeof(ChannelGradSums<128>) == ChannelGradSumsBytes(128));

template <int kK_, int kV_>
struct ChannelRevConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;  // two threads a channel
  static constexpr int kMinBlocksPerSm = ReverseScanBlocksPerSm(kK);
  static constexpr int kPitch = kK + 4;  // of x and y, so that fragments' stores meet no bank twice
  static constexpr int kSmemBytes = ChannelReverseScanBytes(kK, kV);
};

template <typename Config>
struct ChannelRevShared {
  bf16 *q, *k, *v, *dout;     // [2][16, kK | kV]
  float* log_decay;           // [16, kK]
  float* decays;              // [16, kK]
  bf16 *scaled_q, *scaled_k;  // [16, kK]: scale q P and c k Q
  bf16* adjoint;              // R [kK, kV]
  float *x, *y;               // [16, kPitch]
  bf16* scores;               // [16, 64], of which 16 columns are used
  bf16* out;                  // [kWarps][16, 16]
  ChannelGradSums<Config::kK>* sums;
  Place* place;
};

// Of one of the two stages.
struct TileOperands {
  const bf16 *q, *k;     // [16, kK]
  const bf16 *v, *dout;  // [16, kV]
};
template <typename Config>
HL_DEVICE TileOperands OperandsOf(const ChannelRevShared<Config>& smem, int stage) {
  const int k = stage * kTile * Config::kK, v = stage * kTile * Config::kV;
  return {smem.q + k, smem.k + k, smem.v + v, smem.dout + v};
}

// One tile after the other in the order in which they are needed: of each group of chunks, from the
// last on, all but its last tile forward, then all in reverse.
struct TileCursor {
  const ChunkEntry* chunks;
  int begin, every;            // first chunk of the segment; chunks of a group
  int group_begin, group_end;  // chunks of the group; none where the scan is over
  int chunk, row;              // the tile
  bool sweeps;                 // in reverse

  HL_DEVICE bool valid() const { return group_end > begin; }
  HL_DEVICE ChunkEntry tile() const { return TileOf(chunks[chunk], row); }
  HL_DEVICE int slot() const { return (chunk - group_begin) * kTilesPerChunk + row / kTile; }
  HL_DEVICE int LastRow() const { return LastTile(chunks[chunk]); }
  HL_DEVICE bool EndsGroup() const { return chunk == group_end - 1 && row == LastRow(); }

  HL_DEVICE void StartGroupBefore(int end) {
    group_end = end;
    if (!valid()) return;
    group_begin = begin + (end - 1 - begin) / every * every;
    chunk = group_begin;
    row = 0;
    sweeps = EndsGroup();
  }
  HL_DEVICE void Advance() {
    if (!sweeps) {
      row += kTile;
      if (row > LastRow()) {
        row = 0;
        ++chunk;
      }
      sweeps = EndsGroup();
    } else if (row > 0) {
      row -= kTile;
    } else if (chunk > group_begin) {
      --chunk;
      row = LastRow();
    } else {
      StartGroupBefore(group_begin);
    }
  }
};

template <typename Config>
HL_DEVICE void LoadOperands(const ChannelRevShared<Config>& smem,
                            const DecayAttentionGradArgs& grads, const TileCursor& at,
                            const Place& place, int stage) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  const DecayAttentionArgs& args = grads.forward;
  const ChunkEntry tile = at.tile();
  const int k_head = SharedHead(place.head, args.num_k_heads, args.num_heads);
  const int v_head = SharedHead(place.head, args.num_v_heads, args.num_heads);
  const int channel = place.key_slice * kK, column = place.slice * kV;
  LoadTile<kK, kThreads, kTile>(smem.k + stage * kTile * kK,
                                RowsOf(args.k, tile, k_head, channel, args.head_dim_k),
                                tile.length);
  LoadTile<kV, kThreads, kTile>(smem.v + stage * kTile * kV,
                                RowsOf(args.v, tile, v_head, column, args.head_dim_v), tile.length);
  if (!at.sweeps) return;
  const int q_head = SharedHead(place.head, args.num_q_heads, args.num_heads);
  LoadTile<kK, kThreads, kTile>(smem.q + stage * kTile * kK,
                                RowsOf(args.q, tile, q_head, channel, args.head_dim_k),
                                tile.length);
  LoadTile<kV, kThreads, kTile>(smem.dout + stage * kTile * kV,
                                RowsOf(grads.dout, tile, place.head, column, args.head_dim_v),
                                tile.length);
}

// [16 channels of the warp, 16 tokens] to [token, channel].
template <typename Config>
HL_DEVICE void KeepProducts(float* target, const float (&acc)[2][4]) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      target[(8 * n + lane % 4 * 2 + i % 2) * Config::kPitch + WarpId() * 16 + lane / 4 +
             i / 2 * 8] = acc[n][i];
  }
}
// S dout and R v of the tile, and the sums of S R.
template <typename Config>
HL_DEVICE void StateProducts(const ChannelRevShared<Config>& smem, const uint4* state,
                             const float (&adjoint)[Config::kV / 8][4], const bf16* v,
                             const bf16* dout) {
  constexpr int kV = Config::kV;
  const int lane = FreshLaneId();
  const int columns_v = ColumnsFirst<kV>(lane);
  float acc[2][4];
  Clear(acc);
  float through[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) {
    const uint4 packed = state[32 * j + lane];
    const uint32_t a[4] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&d)[4] = adjoint[2 * j + i / 2];
      through[i % 2] += UnpackLo(a[i]) * d[i % 2 * 2] + UnpackHi(a[i]) * d[i % 2 * 2 + 1];
    }
    LoadFragment<kV, false>(b, dout, columns_v, 0, 16 * j);
    MmaPair(acc[0], acc[1], a, b);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(through[half]);
    if (lane % 4 == 0) smem.sums->through[WarpId() * 16 + lane / 4 + 8 * half] = sum;
  }
  KeepProducts<Config>(smem.x, acc);
  Clear(acc);
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) {
    uint32_t a[4], b[4];
    PackFragment(a, adjoint[2 * j], adjoint[2 * j + 1]);
    LoadFragment<kV, false>(b, v, columns_v, 0, 16 * j);
    MmaPair(acc[0], acc[1], a, b);
  }
  KeepProducts<Config>(smem.y, acc);
}

// D and its transpose, by one warp.
template <typename Config>
HL_DEVICE void ScoreGradients(ChannelGradSums<Config::kK>& sums, const bf16* v, const bf16* dout) {
  constexpr int kV = Config::kV;
  const int lane = FreshLaneId();
  const int rows_v = RowsFirst<kV>(lane), columns_v = ColumnsFirst<kV>(lane);
  float acc[2][4];
  Clear(acc);
#pragma unroll 2
  for (int j = 0; j < kV; j += 16) {
    uint32_t a[4], b[4];
    LoadFragment<kV, false>(a, dout, rows_v, 0, j);
    LoadFragment<kV, false>(b, v, columns_v, 0, j);
    MmaPair(acc[0], acc[1], a, b);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 4 + i / 2 * 8, s = 8 * n + lane % 4 * 2 + i % 2;
      const float dscore = s <= r ? acc[n][i] : 0.0f;
      sums.dscores[r][s] = dscore;
      sums.dscores_transposed[s][r] = dscore;
    }
  }
}

// No load from shared memory moves up past it: those of all rows at once would take more registers
// than there are.
HL_DEVICE void KeepLoadsApart() { __syncwarp(); }

HL_DEVICE void LoadRow(float (&row)[kTile], const float* source) {
#pragma unroll
  for (int i = 0; i < kTile; i += 4) {
    const float4 part = *reinterpret_cast<const float4*>(source + i);
    row[i] = part.x;
    row[i + 1] = part.y;
    row[i + 2] = part.z;
    row[i + 3] = part.w;
  }
}
HL_DEVICE void StoreValue(const Rows& rows, int row, int column, float value) {
  const int64_t at = row * rows.stride_t + column;
  if (rows.is_wide) {
    reinterpret_cast<float*>(rows.data)[at] = value;
  } else {
    reinterpret_cast<bf16*>(rows.data)[at] = ToBf16(value);
  }
}

// dq of a channel a thread; leaves a_r + scale q_r x_r in place of S dout.
template <typename Config>
HL_DEVICE void GradQueries(const ChannelRevShared<Config>& smem, const bf16* q, const bf16* k,
                           const Rows& rows, int length) {
  constexpr int kK = Config::kK;
  const int c = static_cast<int>(threadIdx.x);
  float keys[kTile];  // on their way to r
  float incoming = 1;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    if (r % 4 == 0) KeepLoadsApart();
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
    keys[r] = ToFloat(k[TileOffset<kK>(r, c)]) * smem.sums->key_scale[r];
    const float scale = smem.sums->query_scale[r];
    smem.x[r * Config::kPitch + c] = scale * ToFloat(q[TileOffset<kK>(r, c)]) * sum;
    if (r < length && c < rows.dim) StoreValue(rows, r, c, scale * fmaf(dscores[r], keys[r], sum));
  }
}

// dk of a channel a thread; leaves sum_{s < t} k_s y_s - sum_{s >= t} b_s in place of R v.
template <typename Config>
HL_DEVICE void GradKeys(const ChannelRevShared<Config>& smem, const bf16* q, const bf16* k,
                        const Rows& rows, int length, bool wants_key_scale) {
  constexpr int kK = Config::kK;
  const int c = static_cast<int>(threadIdx.x) - kK;
  float queries[kTile];  // on their way back to s
  float following[kTile], products[kTile];
  float outgoing = 1, sum_b = 0;
#pragma unroll
  for (int s = kTile - 1; s >= 0; --s) {
    if (s % 4 == 3) KeepLoadsApart();
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
    queries[s] = smem.sums->query_scale[s] * ToFloat(q[TileOffset<kK>(s, c)]);
    const float key = ToFloat(k[TileOffset<kK>(s, c)]), key_scale = smem.sums->key_scale[s];
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

// dv = scores^T dout + (c k Q) R, 16 columns a warp.
template <typename Config>
HL_DEVICE void GradValues(const ChannelRevShared<Config>& smem, const bf16* dout, const Rows& rows,
                          int length) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int rows_k = RowsFirst<kK>(lane), rows_v = RowsFirst<kV>(lane);
  bf16* const stage = smem.out + WarpId() * kTile * 16;
#pragma unroll 1
  for (int column = WarpId() * 16; column < kV; column += Config::kWarps * 16) {
    float acc[2][4];
    Clear(acc);
    uint32_t a[4], b[4];
#pragma unroll 2
    for (int c = 0; c < kK; c += 16) {
      LoadFragment<kK, false>(a, smem.scaled_k, rows_k, 0, c);
      LoadFragment<kV, true>(b, smem.adjoint, rows_v, c, column);
      MmaPair(acc[0], acc[1], a, b);
    }
    LoadFragment<kChunk, true>(a, smem.scores, ColumnsFirst<kChunk>(lane), 0, 0);
    LoadFragment<kV, true>(b, dout, rows_v, 0, column);
    MmaPair(acc[0], acc[1], a, b);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = lane / 4 + 8 * half, c = 8 * n + lane % 4 * 2;
        const float lo = acc[n][2 * half], hi = acc[n][2 * half + 1];
        if (!rows.is_wide) {
          *reinterpret_cast<uint32_t*>(stage + r * 16 + c) = PackBf16(lo, hi);
        } else if (r < length) {
          if (column + c < rows.dim) StoreValue(rows, r, column + c, lo);
          if (column + c + 1 < rows.dim) StoreValue(rows, r, column + c + 1, hi);
        }
      }
    }
    if (!rows.is_wide) FlushTransposed<kTile>(stage, rows, length, column);
  }
}

// Gradients of the log decays of a channel a thread, to `target` if it is there; returns their sum.
// A decay of 0 has none, exactly.
template <typename Config>
HL_DEVICE float GradDecays(const ChannelRevShared<Config>& smem, const TensorView& target,
                           const DecayAttentionArgs& args, const ChunkEntry& tile,
                           const Place& place) {
  const int c = static_cast<int>(threadIdx.x), first = place.key_slice * Config::kK;
  const int dim = args.head_dim_k;
  const bool resets = (tile.flags & kChunkResets) != 0;
  Rows rows = {};
  if (target.data != nullptr)
    rows = RowsOf(SliceOf(target, args, place.slice, dim), tile, place.head, first, dim);
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
HL_DEVICE void GradKeyScale(const ChannelRevShared<Config>& smem, const ReverseScanParams& params,
                            const ChunkEntry& tile, const Place& place) {
  const int s = static_cast<int>(threadIdx.x) - Config::kK;
  if (s < 0 || s >= tile.length) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Config::kK / 32; ++w) sum += smem.sums->dkey_scale[w][s];
  *TokenValue(params.dkey_scale, params, tile, place, s) = sum;
}

template <typename Config>
HL_DEVICE ChannelRevShared<Config> CarveChannelRev(unsigned char* raw) {
  constexpr int kK = Config::kK, kV = Config::kV;
  SmemCarver carver(raw);
  ChannelRevShared<Config> smem;
  smem.q = carver.Take<bf16>(2 * kTile * kK);
  smem.k = carver.Take<bf16>(2 * kTile * kK);
  smem.v = carver.Take<bf16>(2 * kTile * kV);
  smem.dout = carver.Take<bf16>(2 * kTile * kV);
  smem.log_decay = carver.Take<float>(kTile * kK);
  smem.decays = carver.Take<float>(kTile * kK);
  smem.scaled_q = carver.Take<bf16>(kTile * kK);
  smem.scaled_k = carver.Take<bf16>(kTile * kK);
  smem.adjoint = carver.Take<bf16>(kK * kV);
  smem.x = carver.Take<float>(kTile * Config::kPitch);
  smem.y = carver.Take<float>(kTile * Config::kPitch);
  smem.scores = carver.Take<bf16>(kTile * kChunk);
  smem.out = carver.Take<bf16>(Config::kWarps * kTile * 16);
  smem.sums = carver.Take<ChannelGradSums<kK>>(1);
  smem.place = carver.Take<Place>(1);
  return smem;
}

// A block on its way through its segment.
template <typename Config>
struct ChannelReverseScan {
  static constexpr int kSlot = Config::kK * Config::kV / 8;  // a state, in units of 16 bytes

  const ReverseScanParams& params;
  const Place& place;
  const ChannelRevShared<Config>& smem;
  uint4* scratch;  // of the warp: [group's tiles][kSlot]
  TileCursor at;   // the tile that is loaded last
  int stage;       // of its operands

  HL_DEVICE const DecayAttentionArgs& args() const { return params.grads.forward; }
  HL_DEVICE static bool HasQuery() {  // else a key
    return static_cast<int>(threadIdx.x) < Config::kK;
  }
  HL_DEVICE bool WantsDecays() const {
    return params.dlog_decay.data != nullptr || params.dlambda != nullptr;
  }
  HL_DEVICE static int Channel() { return static_cast<int>(threadIdx.x) % Config::kK; }
  // Of the block, of all channels.
  HL_DEVICE int FirstChannel() const { return place.key_slice * Config::kK; }
  HL_DEVICE uint4* StateSlot() const { return scratch + int64_t{1} * at.slot() * kSlot; }
  HL_DEVICE StateRows WarpRows() const {
    return {args().head_dim_k, args().head_dim_v, FirstChannel() + FreshWarpId() * 16,
            place.slice * Config::kV};
  }
  HL_DEVICE int64_t StateElements() const {
    return int64_t{1} * args().head_dim_k * args().head_dim_v;
  }
};

template <typename Config>
HL_DEVICE void LoadDecaysOf(const ChannelReverseScan<Config>& scan) {
  LoadLogDecays<Config::kK, Config::kThreads>(scan.smem.log_decay, scan.args(), scan.at.tile(),
                                              scan.place);
}
template <typename Config>
HL_DEVICE void ScaleKeysOf(const ChannelReverseScan<Config>& scan, const bf16* k,
                           const ChunkEntry& tile) {
  const ChannelRevShared<Config>& smem = scan.smem;
  const int c = ChannelReverseScan<Config>::Channel();
  smem.sums->transition[c] = Exp2Approx(ScaleKeys<Config::kK>(smem.scaled_k, k, smem.log_decay, c,
                                                              scan.args(), tile, scan.place.head));
}

// Forward through a group: leaves the state before each of its tiles in the scratch, and the last
// tile loaded. Barriers of a tile: it is there; scaled keys are there.
template <typename Config>
HL_DEVICE void RecomputeStates(ChannelReverseScan<Config>& scan) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const ChannelRevShared<Config>& smem = scan.smem;
  TileCursor& at = scan.at;
  float state[kV / 8][4];
  LoadCheckpoint<Config>(state, scan.params, scan.place, at.group_begin, scan.WarpRows());
#pragma unroll 1
  while (true) {
    const ChunkEntry tile = at.tile();
    if ((tile.flags & kChunkResets) != 0) Clear(state);
    KeepState<Config>(scan.StateSlot(), state);
    if (at.sweeps) return;
    const bf16* const k = smem.k + scan.stage * kTile * kK;
    const bf16* const v = smem.v + scan.stage * kTile * kV;
    CpAsyncWait<0>();
    __syncthreads();
    at.Advance();
    scan.stage = 1 - scan.stage;
    LoadOperands(smem, scan.params.grads, at, scan.place, scan.stage);
    if (scan.HasQuery()) ScaleKeysOf(scan, k, tile);
    __syncthreads();
    LoadDecaysOf(scan);
    CpAsyncCommit();
    AdvanceState<kK, kV>(state, smem.scaled_k, v, smem.sums->transition);
  }
}

// What a tile's gradients need of both sides: scaled operands, decays, x, y, the copy of R.
template <typename Config>
HL_DEVICE void PrepareTile(const ChannelReverseScan<Config>& scan, const TileOperands& tile_in,
                           const ChunkEntry& tile, const uint4* state,
                           const float (&adjoint)[Config::kV / 8][4]) {
  const ChannelRevShared<Config>& smem = scan.smem;
  const int c = scan.Channel();
  StateProducts<Config>(smem, state, adjoint, tile_in.v, tile_in.dout);
  CopyAdjoint<Config>(smem.adjoint, adjoint);
  if (scan.HasQuery()) {
    ScaleQueries<Config::kK>(smem.scaled_q, smem.decays, tile_in.q, smem.log_decay, c, scan.args(),
                             tile, scan.place.head, scan.params.row_scales);
    return;
  }
  ScaleKeysOf(scan, tile_in.k, tile);
  if (c >= kTile) return;
  const bool live = c < tile.length;
  smem.sums->key_scale[c] = live ? KeyScaleAt(scan.args(), tile, c, scan.place.head) : 0.0f;
  smem.sums->query_scale[c] =
      live ? QueryScaleAt(scan.args(), scan.params.row_scales, tile, c, scan.place.head) : 0.0f;
}

// dq, dk, dv.
template <typename Config>
HL_DEVICE void GradOperands(const ChannelReverseScan<Config>& scan, const TileOperands& tile_in,
                            const ChunkEntry& tile) {
  const ReverseScanParams& params = scan.params;
  const DecayAttentionArgs& args = scan.args();
  const Place& place = scan.place;
  const auto channels = [&](const TensorView& gradient) {
    return RowsOf(SliceOf(gradient, args, place.slice, args.head_dim_k), tile, place.head,
                  scan.FirstChannel(), args.head_dim_k);
  };
  if (scan.HasQuery()) {
    GradQueries(scan.smem, tile_in.q, tile_in.k, channels(params.dq), tile.length);
  } else {
    GradKeys(scan.smem, tile_in.q, tile_in.k, channels(params.dk), tile.length,
             params.dkey_scale.data != nullptr);
  }
  GradValues(scan.smem, tile_in.dout,
             RowsOf(SliceOf(params.dv, args, place.key_slice, args.head_dim_v), tile, place.head,
                    place.slice * Config::kV, args.head_dim_v),
             tile.length);
}

// All gradients of a tile, and R before it; adds those of the thread's log decay to `dlambda`.
// Barriers: the tile is there; what PrepareTile makes is there; scores and D are there; gradients
// of pairs are there.
template <typename Config>
HL_DEVICE void SweepTile(ChannelReverseScan<Config>& scan, float (&adjoint)[Config::kV / 8][4],
                         float& dlambda) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const ChannelRevShared<Config>& smem = scan.smem;
  const DecayAttentionGradArgs& grads = scan.params.grads;
  const ChunkEntry tile = scan.at.tile();
  const uint4* const state = scan.StateSlot();
  const TileOperands in = OperandsOf(smem, scan.stage);
  CpAsyncWait<0>();
  __syncthreads();
  scan.at.Advance();
  scan.stage = 1 - scan.stage;
  const bool more = scan.at.valid();
  if (more) LoadOperands(smem, grads, scan.at, scan.place, scan.stage);
  PrepareTile(scan, in, tile, state, adjoint);
  __syncthreads();
  if (more) LoadDecaysOf(scan);
  CpAsyncCommit();
  PairScores<kK, Config::kThreads>(in.q, in.k, smem.decays, [&](int r, int s, float sum) {
    smem.scores[TileOffset<kChunk>(r, s)] =
        ToBf16(s <= r ? sum * (smem.sums->query_scale[r] * smem.sums->key_scale[s]) : 0.0f);
  });
  // The last warp has the fewest pairs.
  if (WarpId() == Config::kWarps - 1) ScoreGradients<Config>(*smem.sums, in.v, in.dout);
  AdvanceState<kK, kV>(adjoint, smem.scaled_q, in.dout, smem.sums->transition);
  if ((tile.flags & kChunkResets) != 0) Clear(adjoint);
  __syncthreads();
  GradOperands(scan, in, tile);
  __syncthreads();
  if (scan.HasQuery()) {
    if (scan.WantsDecays())
      dlambda += GradDecays<Config>(smem, scan.params.dlog_decay, grads.forward, tile, scan.place);
  } else if (scan.params.dkey_scale.data != nullptr) {
    GradKeyScale<Config>(smem, scan.params, tile, scan.place);
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelReverseScanKernel(const ReverseScanParams params) {
  constexpr int kV = Config::kV, kSlot = ChannelReverseScan<Config>::kSlot;
  HL_DYNAMIC_SMEM(raw);
  const ChannelRevShared<Config> smem = CarveChannelRev<Config>(raw);
  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  // All threads have the same: in shared memory it takes no registers, which are scarce here.
  if (threadIdx.x == 0) *smem.place = PlaceOf(args, params.shape, params.checkpoint_every);
  __syncthreads();
  const Place& place = *smem.place;
  uint4* const scratch =
      static_cast<uint4*>(params.group) +
      int64_t{1} * blockIdx.x * params.checkpoint_every * kTilesPerChunk * kSlot +
      WarpId() * (kSlot / Config::kWarps);
  ChannelReverseScan<Config> scan = {
      params, place, smem, scratch, {args.chunks, place.begin, params.checkpoint_every}, 0};

  float adjoint[kV / 8][4];
  Clear(adjoint);
  if (params.segment_states != nullptr) {
    LoadState<false>(adjoint, params.segment_states + place.piece * scan.StateElements(),
                     scan.WarpRows());
  } else if (grads.dfinal_state != nullptr) {
    LoadState<false>(
        adjoint, static_cast<const float*>(grads.dfinal_state) + place.state * scan.StateElements(),
        scan.WarpRows());
  }
  float dlambda = 0;
  scan.at.StartGroupBefore(place.end);
  if (scan.at.valid()) {
    LoadOperands(smem, grads, scan.at, place, 0);
    LoadDecaysOf(scan);
    CpAsyncCommit();
  }
#pragma unroll 1
  while (scan.at.valid()) {
    const int group_end = scan.at.group_end;
    RecomputeStates(scan);
#pragma unroll 1
    while (scan.at.valid() && scan.at.group_end == group_end) SweepTile(scan, adjoint, dlambda);
  }
  if (grads.dinitial_state != nullptr && place.starts)
    StoreState<false>(
        adjoint, static_cast<float*>(grads.dinitial_state) + place.state * scan.StateElements(),
        scan.WarpRows());
  const int channel = scan.FirstChannel() + static_cast<int>(threadIdx.x);
  if (params.dlambda != nullptr && scan.HasQuery() && channel < args.head_dim_k)
    params.dlambda[PieceOf(params, place.slice, place) * args.head_dim_k + channel] = dlambda;
}

template <int kK, int kV>
void LaunchChannelReverseScan(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ChannelRevConfig<kK, kV>;
  Launch({NumBlocks(params.grads.forward, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention reverse scan, decays of channels"},
         stream, ChannelReverseScanKernel<Config>, params);
}

}  // namespace halflife::kernels::decay
