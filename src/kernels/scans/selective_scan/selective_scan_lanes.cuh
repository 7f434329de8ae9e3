// The selective scan with 16 states per channel, which all stay in registers. Used for inputs with
// enough channels to fill a GPU.
//
// A channel is processed by 4 lanes of a warp. Each lane holds 4 of its states for the whole row.
// Blocks process tiles of 16 tokens in order. Each token of a tile is owned by one lane of the
// channel, which loads the token's x and delta and stores its results. The other lanes of the
// channel read the token's values from shared memory. b and c are in shared memory as well, because
// the channels of a block share them.
//
// Shared memory of a block in KiB: values of tokens 32.5; b and c of a tile 2, for two tiles in the
// forward and one in the backward; in the backward the warps' sums of db and dc, 32.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/softplus.cuh"
#include "kernels/scans/selective_scan/selective_scan_args.h"

namespace halflife::kernels {

// Returns the decay rate a. `given` is a, or p of a = -e^p.
HL_DEVICE float DecayOf(float given, bool negative_exp) {
  return negative_exp ? -expf(given) : given;
}

// Adds up elements over lanes in steps. In the first step, lanes whose numbers differ by kOffset
// exchange half of their 2 kHalf elements and add. Each further step halves the offset and the
// elements, down to the offset kLast. With k elements left, lane l holds the sums of elements
// k (l / kLast) .. k (l / kLast + 1) - 1; bits of l above kOffset do not count.
template <int kHalf, int kOffset, int kLast, int kSize>
HL_DEVICE void SumHalves(float (&x)[kSize]) {
  const bool upper = (threadIdx.x & static_cast<unsigned>(kOffset)) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? x[i] : x[i + kHalf];
    const float held = upper ? x[i + kHalf] : x[i];
    x[i] = held + __shfl_xor_sync(kFullWarp, sent, kOffset);
  }
  if constexpr (kOffset > kLast) SumHalves<kHalf / 2, kOffset / 2, kLast>(x);
}

// Partial sums of a backward.
struct ScanGradPartials {
  float* weights;  // [pieces, N + 2, I]: da, dskip, ddelta_bias; one per row or segment
  float* tokens;   // [groups, 2, B, T, N]: db, dc; one per block of channels
};

namespace lanes {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kLanes = 4;   // of a channel
constexpr int kStates = 4;  // of a lane
constexpr int kN = kLanes * kStates;
constexpr int kTile = cuda::kScanTile;
constexpr int kOwn = kTile / kLanes;          // tokens of a tile that a lane owns
constexpr int kChannels = kThreads / kLanes;  // of a block
constexpr int kRows = kTile * kN;             // elements of b, and of c, of a tile
static_assert(2 * kRows == kThreads, "a thread loads one element of b or c of a tile");
// The backward recomputes the states of this many tokens at a time. Each lane owns one of them.
constexpr int kPart = kLanes, kParts = kTile / kPart;
// Distance between the tokens in TokenValues. The lanes of a warp then write to different banks.
constexpr int kPitch = kChannels + 2;
constexpr int kTileBytes = 2 * kRows * static_cast<int>(sizeof(float));
constexpr int kTokenBytes = kTile * kPitch * 4 * static_cast<int>(sizeof(float));
constexpr int kForwardBytes = 2 * kTileBytes + kTokenBytes;
constexpr int kBackwardBytes = (1 + kWarps) * kTileBytes + kTokenBytes;

inline int64_t GroupsOf(int64_t channels) { return (channels + kChannels - 1) / kChannels; }

// Returns the product of two numbers that are not negative, by one instruction.
HL_DEVICE int64_t Product(int x, int y) {
  return static_cast<int64_t>(uint64_t{static_cast<unsigned>(x)} * static_cast<unsigned>(y));
}

// A thread's row, channel and lane. Token j of the thread in the tile at `begin` is begin + lane +
// kLanes j.
struct Place {
  template <typename T>
  HL_DEVICE explicit Place(const ScanShape<T, float>& shape)
      : seq_len(static_cast<int>(shape.seq_len)), channels(static_cast<int>(shape.channels)) {
    const int groups = (channels + kChannels - 1) / kChannels;
    row = static_cast<int>(blockIdx.x) / groups;
    group = static_cast<int>(blockIdx.x) - row * groups;
    lane = static_cast<int>(threadIdx.x % kLanes);
    channel = group * kChannels + channel_of_block();
    exists = channel < channels;
    first_token = int64_t{row} * seq_len;
    first = first_token * channels + channel;
  }
  HL_DEVICE int channel_of_block() const { return static_cast<int>(threadIdx.x / kLanes); }
  HL_DEVICE int Token(int begin, int j) const { return begin + lane + kLanes * j; }
  HL_DEVICE bool Has(int token) const { return exists && token < seq_len; }
  // Returns the offset in [B, T, I].
  HL_DEVICE int64_t At(int token) const { return first + Product(token, channels); }
  // Returns the offset of a state of the lane in [B, I, N].
  HL_DEVICE int64_t OfState(int s) const {
    return ((int64_t{row} * channels + channel) * kLanes + lane) * kStates + s;
  }
  // Returns the offset of a state of the lane in [B, tiles, N, I].
  HL_DEVICE int64_t OfKept(int tile, int s) const {
    const int tiles = (seq_len + kTile - 1) / kTile;
    const int64_t of_row = int64_t{row} * tiles * kN * channels + channel;
    return of_row + Product((tile * kLanes + lane) * kStates + s, channels);
  }

  int seq_len, channels, row, group, channel, lane;
  int64_t first_token, first;  // offsets of the row in [B, T], and of its channel in [B, T, I]
  bool exists;
};

// The values of a tile that a thread loads, in the storage type: x, delta and, in the backward, dy
// of the tokens that it owns; an element of b or c; and whether a document starts at the token with
// the number of the thread's lane in the warp. The bias is loaded with them rather than once,
// because the backward has no register for it.
template <typename T>
struct TileLoads {
  T x[kOwn], delta[kOwn], dy[kOwn];
  T state;
  float bias;  // of delta
  bool starts;
};

template <bool kBackward, typename T>
HL_DEVICE void LoadTile(const Place& place, const ScanShape<T, float>& shape, const T* dy,
                        int begin, TileLoads<T>& tile) {
  int64_t at = place.At(place.Token(begin, 0));
  const int64_t step = int64_t{kLanes} * place.channels;
#pragma unroll
  for (int j = 0; j < kOwn; ++j, at += step) {
    const bool has = place.Has(place.Token(begin, j));
    tile.x[j] = has ? shape.x[at] : T{};
    tile.delta[j] = has ? shape.delta[at] : T{};
    tile.dy[j] = kBackward && has ? dy[at] : T{};
  }
  const auto element = static_cast<int>(threadIdx.x % kRows),
             lane_of_warp = static_cast<int>(threadIdx.x % 32);
  const int of_state = begin + element / kN, of_start = begin + lane_of_warp;
  const T* const from = threadIdx.x < kRows ? shape.b : shape.c;
  tile.state = of_state < place.seq_len
                   ? from[(place.first_token + of_state) * shape.token_stride + element % kN]
                   : T{};
  tile.bias = place.exists ? shape.delta_bias[place.channel] : 0.0f;
  tile.starts = shape.starts != nullptr && lane_of_warp < kTile && of_start < place.seq_len &&
                shape.starts[place.first_token + of_start];
}

// The values of a token for all lanes of a channel; zeros for tokens that do not exist.
struct alignas(16) TokenValues {
  float step, input, x, dy;  // input: step x
};

// Operands of a tile in shared memory.
struct TileOperands {
  TokenValues* of_channel;  // those of the thread's channel; tokens are kPitch apart
  float* b;                 // [tile][N]
  float* c;                 // [tile][N]

  // Returns the lane's four elements of row t of b or c.
  HL_DEVICE static float4 Row(const float* rows, int t, int lane) {
    return reinterpret_cast<const float4*>(rows)[t * kLanes + lane];
  }
};

// Computes the values of the tokens that the lane owns, for all lanes of the channel.
template <typename T>
HL_DEVICE void StoreOperands(const Place& place, const TileLoads<T>& loads, int begin,
                             const TileOperands& tile) {
  tile.b[threadIdx.x] = rows::FromStorage(loads.state);  // c follows b
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const float x = rows::FromStorage(loads.x[j]);
    const float step = place.Has(place.Token(begin, j))
                           ? rows::SoftPlus(rows::FromStorage(loads.delta[j]) + loads.bias)
                           : 0.0f;
    tile.of_channel[(place.lane + kLanes * j) * kPitch] = {step, step * x, x,
                                                           rows::FromStorage(loads.dy[j])};
  }
}

// Moves the states to the next token. Returns the decays of the step.
HL_DEVICE float4 Advance(const TokenValues& token, float4 b, const float (&a)[kStates],
                         float (&h)[kStates]) {
  const float4 decay = make_float4(Exp2Approx(token.step * a[0]), Exp2Approx(token.step * a[1]),
                                   Exp2Approx(token.step * a[2]), Exp2Approx(token.step * a[3]));
  h[0] = decay.x * h[0] + token.input * b.x;
  h[1] = decay.y * h[1] + token.input * b.y;
  h[2] = decay.z * h[2] + token.input * b.z;
  h[3] = decay.w * h[3] + token.input * b.w;
  return decay;
}

HL_DEVICE void Clear(float (&h)[kStates]) { h[0] = h[1] = h[2] = h[3] = 0; }

// Returns the sum over the channel's lanes of the element with the lane's number.
HL_DEVICE float SumOverLanes(float (&x)[kLanes]) {
  SumHalves<kLanes / 2, kLanes / 2, 1>(x);
  return x[0];
}

template <typename T>
HL_DEVICE void LoadDecays(const Place& place, const ScanShape<T, float>& shape,
                          float (&a)[kStates]) {
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    const int64_t at = int64_t{kN} * place.channel + kStates * place.lane + s;
    a[s] = place.exists ? DecayOf(shape.a[at], shape.negative_exp) * kLog2E : 0.0f;
  }
}

// Loads the lane's states from [B, I, N]; null: zero.
HL_DEVICE void LoadRowStates(const Place& place, const float* from, float (&h)[kStates]) {
#pragma unroll
  for (int s = 0; s < kStates; ++s)
    h[s] = from != nullptr && place.exists ? from[place.OfState(s)] : 0.0f;
}
HL_DEVICE void StoreRowStates(const Place& place, const float (&h)[kStates], float* to) {
  if (to == nullptr || !place.exists) return;
#pragma unroll
  for (int s = 0; s < kStates; ++s) to[place.OfState(s)] = h[s];
}

// Computes y without the skip of the tile's tokens, for their owners. kResets: documents start in
// the tile, at the bits of `resets`.
template <bool kResets>
HL_DEVICE void ForwardTile(const TileOperands& tile, unsigned resets, int lane,
                           const float (&a)[kStates], float (&h)[kStates], float (&y)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    float products[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int t = kLanes * j + i;
      if (kResets && (resets >> t & 1) != 0) Clear(h);
      Advance(tile.of_channel[t * kPitch], tile.Row(tile.b, t, lane), a, h);
      const float4 c = tile.Row(tile.c, t, lane);
      products[i] = h[0] * c.x + h[1] * c.y + (h[2] * c.z + h[3] * c.w);
    }
    y[j] = SumOverLanes(products);
  }
}

// Grid: rows x groups of channels.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    ForwardKernel(ScanShape<T, float> shape, ScanResults<T, float> results) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  float* const buffers = carver.Take<float>(2 * 2 * kRows);  // b and c of two tiles
  TokenValues* const values = carver.Take<TokenValues>(kTile * kPitch);
  const Place place(shape);
  const float skip = place.exists ? shape.skip[place.channel] : 0.0f;
  float a[kStates], h[kStates];
  LoadDecays(place, shape, a);
  LoadRowStates(place, shape.initial, h);
  TileLoads<T> ahead;
  LoadTile<false, T>(place, shape, nullptr, 0, ahead);
  for (int begin = 0; begin < place.seq_len; begin += kTile) {
    // The barrier of this tile is passed by threads that have finished the tile before, so the
    // buffer of the tile after this one is free behind it. Only a warp uses the values of its
    // tokens.
    float* const b = buffers + (begin / kTile & 1) * 2 * kRows;
    const TileOperands tile = {values + place.channel_of_block(), b, b + kRows};
    __syncwarp();
    StoreOperands(place, ahead, begin, tile);
    const unsigned resets = __ballot_sync(kFullWarp, ahead.starts);
    __syncthreads();
    LoadTile<false, T>(place, shape, nullptr, begin + kTile, ahead);
    if (results.kept != nullptr && place.exists) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) results.kept[place.OfKept(begin / kTile, s)] = h[s];
    }
    float y[kOwn];
    if (resets == 0) {
      ForwardTile<false>(tile, 0, place.lane, a, h, y);
    } else {
      ForwardTile<true>(tile, resets, place.lane, a, h, y);
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int token = place.Token(begin, j);
      const float x = tile.of_channel[(place.lane + kLanes * j) * kPitch].x;
      if (place.Has(token)) results.y[place.At(token)] = rows::Narrow<T>(y[j] + skip * x);
    }
  }
  StoreRowStates(place, h, results.final);
}

// The state that the backward carries from tile to tile.
struct Adjoint {
  float later[kStates];        // gradients of the lane's states, from the later tokens
  float da[kStates] = {};      // of the lane's states, over the tokens of the row
  float dskip = 0, dbias = 0;  // over the tokens that the lane owns
};

// Gradients of one token that the lane owns, summed over the channel's states: dstep is the
// gradient of step through the decays, in units of log2(e), and dinput is the gradient of step x.
struct OwnGrads {
  float dstep, dinput;
};

// Processes tokens [begin, begin + kPart) of the tile: computes their states from those before
// them, then the gradients in reverse. `db` and `dc` receive the values of this channel, [kPart][4
// states].
template <bool kResets>
HL_DEVICE OwnGrads ReversePart(const TileOperands& tile, unsigned resets, int lane, int begin,
                               const float (&a)[kStates], const float (&before)[kStates],
                               Adjoint& adjoint, float (&db)[kPart * kStates],
                               float (&dc)[kPart * kStates]) {
  float h[kStates];
#pragma unroll
  for (int s = 0; s < kStates; ++s) h[s] = before[s];
#pragma unroll
  for (int i = 0; i < kPart; ++i) {  // db: the decays, dc: the states after the tokens
    const int t = begin + i;
    if (kResets && (resets >> t & 1) != 0) Clear(h);
    const float4 decay = Advance(tile.of_channel[t * kPitch], tile.Row(tile.b, t, lane), a, h);
    db[4 * i] = decay.x, db[4 * i + 1] = decay.y, db[4 * i + 2] = decay.z, db[4 * i + 3] = decay.w;
#pragma unroll
    for (int s = 0; s < kStates; ++s) dc[kStates * i + s] = h[s];
  }
  __syncwarp();  // the compiler may not load the operands of all tokens at once
  float dstep[kPart], dinput[kPart];
#pragma unroll
  for (int i = kPart - 1; i >= 0; --i) {
    const int t = begin + i;
    const TokenValues token = tile.of_channel[t * kPitch];
    const float4 row_b = tile.Row(tile.b, t, lane), row_c = tile.Row(tile.c, t, lane);
    const float b[kStates] = {row_b.x, row_b.y, row_b.z, row_b.w};
    const float c[kStates] = {row_c.x, row_c.y, row_c.z, row_c.w};
    const bool cut = kResets && (resets >> t & 1) != 0;
    dstep[i] = dinput[i] = 0;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      const int at = kStates * i + s;
      const float dh = adjoint.later[s] + token.dy * c[s];
      dc[at] *= token.dy;
      dinput[i] += dh * b[s];
      const float decayed = db[at] * dh;
      db[at] = dh * token.input;
      const float dlog = cut ? 0.0f : decayed * (i > 0 ? dc[i > 0 ? at - kStates : 0] : before[s]);
      dstep[i] += dlog * a[s];
      adjoint.da[s] += dlog * token.step;
      adjoint.later[s] = cut ? 0.0f : decayed;
    }
  }
  return {SumOverLanes(dstep), SumOverLanes(dinput)};
}

// Adds up a part's values over the channels of the warp, and stores the sums of the lane's states
// in `to` [tile][N].
HL_DEVICE void StoreWarpSums(float (&x)[kPart * kStates], int begin, int lane, float* to) {
  SumHalves<kPart * kStates / 2, 16, kLanes>(x);
  // Two elements are left. A token has two pairs, which two neighbouring channels' lanes hold.
  const auto channel = static_cast<int>(threadIdx.x % 32 / kLanes);
  float* const at = to + (begin + channel / 2) * kN + kStates * lane + 2 * (channel % 2);
  *reinterpret_cast<float2*>(at) = make_float2(x[0], x[1]);
}

// Returns where the lane keeps its states before the part at `begin`: in place of the warp's sums
// of that part, which are stored once the part is done. Half of the lanes use those of db, half
// those of dc.
HL_DEVICE float4* StateBefore(int begin, float* token_sums) {
  static_assert(kPart * kN == 16 * kStates);
  const unsigned lane = threadIdx.x % 32;
  return reinterpret_cast<float4*>(token_sums + lane / 16 * kRows + begin * kN) + lane % 16;
}

// Computes the gradients of a tile, in reverse. Replaces `h`, the state before the tile.
// `token_sums` [2][tile][N] receives the warp's sums of db and dc. store(j, grads) takes the sums
// of the lane's token j.
template <bool kResets, typename Store>
HL_DEVICE void ReverseTile(const TileOperands& tile, unsigned resets, int lane,
                           const float (&a)[kStates], float (&h)[kStates], Adjoint& adjoint,
                           float* token_sums, const Store& store) {
  *StateBefore(0, token_sums) = make_float4(h[0], h[1], h[2], h[3]);
#pragma unroll 1
  for (int begin = 0; begin < kTile - kPart; begin += kPart) {
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const int t = begin + i;
      if (kResets && (resets >> t & 1) != 0) Clear(h);
      Advance(tile.of_channel[t * kPitch], tile.Row(tile.b, t, lane), a, h);
    }
    *StateBefore(begin + kPart, token_sums) = make_float4(h[0], h[1], h[2], h[3]);
  }
#pragma unroll 1
  for (int begin = kTile - kPart; begin >= 0; begin -= kPart) {
    const float4 packed = *StateBefore(begin, token_sums);
    const float before[kStates] = {packed.x, packed.y, packed.z, packed.w};
    float db[kPart * kStates], dc[kPart * kStates];
    const OwnGrads own =
        ReversePart<kResets>(tile, resets, lane, begin, a, before, adjoint, db, dc);
    __syncwarp();  // every lane has read its states before the part
    StoreWarpSums(db, begin, lane, token_sums);
    StoreWarpSums(dc, begin, lane, token_sums + kRows);
    store(begin / kPart, own);
  }
}

// Adds up the warps' sums [warps][2][tile][N] in order, and stores the block's db and dc of the
// tile.
template <typename T>
HL_DEVICE void StoreTokenSums(const Place& place, const ScanShape<T, float>& shape, int begin,
                              const float* sums, float* tokens) {
  const auto element = static_cast<int>(threadIdx.x % kRows),
             of_c = static_cast<int>(threadIdx.x / kRows);
  const int token = begin + element / kN;
  if (token >= place.seq_len) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp * 2 * kRows + threadIdx.x];
  // The row of [groups, 2, B].
  const int row = (2 * place.group + of_c) * static_cast<int>(shape.batch) + place.row;
  tokens[(Product(row, place.seq_len) + token) * kN + element % kN] = sum;
}

// Stores dx and ddelta of a token that the lane owns.
template <typename T>
HL_DEVICE void StoreOwnGrads(const Place& place, int token, const TokenValues& values, float skip,
                             const OwnGrads& own, const ScanGrads<T, float>& grads,
                             Adjoint& adjoint) {
  if (!place.Has(token)) return;
  // The derivative of the softplus, from its value: 1 - e^-step.
  const float slope = -expm1f(-values.step);
  const float ddelta = (own.dstep * (1 / kLog2E) + own.dinput * values.x) * slope;
  adjoint.dskip += values.dy * values.x;
  adjoint.dbias += ddelta;
  grads.dx[place.At(token)] = rows::Narrow<T>(own.dinput * values.step + skip * values.dy);
  grads.ddelta[place.At(token)] = rows::Narrow<T>(ddelta);
}

// Stores the row's gradients of the weights: those of states by their lanes, and the others, summed
// over the channel's lanes, by the first.
HL_DEVICE void StoreWeightSums(const Place& place, const float (&a)[kStates], bool negative_exp,
                               Adjoint& adjoint, float* weights) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    adjoint.dskip += __shfl_xor_sync(kFullWarp, adjoint.dskip, offset);
    adjoint.dbias += __shfl_xor_sync(kFullWarp, adjoint.dbias, offset);
  }
  if (!place.exists) return;
  const auto at = [&](int row) {
    return (int64_t{place.row} * (kN + 2) + row) * place.channels + place.channel;
  };
#pragma unroll
  for (int s = 0; s < kStates; ++s)  // the gradient of p is a times that of a
    weights[at(kStates * place.lane + s)] =
        negative_exp ? adjoint.da[s] * (a[s] * (1 / kLog2E)) : adjoint.da[s];
  if (place.lane != 0) return;
  weights[at(kN)] = adjoint.dskip;
  weights[at(kN + 1)] = adjoint.dbias;
}

// Grid: rows x groups of channels.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    BackwardKernel(ScanShape<T, float> shape, ScanGrads<T, float> grads,
                   ScanGradPartials partials) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  float* const b = carver.Take<float>(2 * kRows);                    // and c
  float* const token_sums = carver.Take<float>(kWarps * 2 * kRows);  // [warps][2][tile][N]
  TokenValues* const values = carver.Take<TokenValues>(kTile * kPitch);
  const Place place(shape);
  const TileOperands operands = {values + place.channel_of_block(), b, b + kRows};
  float* const of_warp = token_sums + WarpId() * 2 * kRows;
  const float skip = place.exists ? shape.skip[place.channel] : 0.0f;
  float a[kStates];
  LoadDecays(place, shape, a);
  Adjoint adjoint;
  LoadRowStates(place, grads.dfinal, adjoint.later);
  TileLoads<T> loads;
  float h[kStates];
  const auto load = [&](int tile) {
    LoadTile<true>(place, shape, grads.dy, tile * kTile, loads);
#pragma unroll
    for (int s = 0; s < kStates; ++s)
      h[s] = place.exists ? grads.kept[place.OfKept(tile, s)] : 0.0f;
  };
  const int last = (place.seq_len - 1) / kTile;
  load(last);
  for (int tile = last; tile >= 0; --tile) {
    const int begin = tile * kTile;
    StoreOperands(place, loads, begin, operands);
    const unsigned resets = __ballot_sync(kFullWarp, loads.starts);
    __syncthreads();
    const auto store = [&](int j, const OwnGrads& own) {
      StoreOwnGrads(place, place.Token(begin, j),
                    operands.of_channel[(place.lane + kLanes * j) * kPitch], skip, own, grads,
                    adjoint);
    };
    if (resets == 0) {
      ReverseTile<false>(operands, 0, place.lane, a, h, adjoint, of_warp, store);
    } else {
      ReverseTile<true>(operands, resets, place.lane, a, h, adjoint, of_warp, store);
    }
    // The loads for the next tile start here because there are no free registers for them before.
    if (tile > 0) load(tile - 1);
    __syncthreads();  // every warp has stored its sums and has finished reading b and c
    StoreTokenSums(place, shape, begin, token_sums, partials.tokens);
  }
  StoreRowStates(place, adjoint.later, grads.dinitial);
  StoreWeightSums(place, a, shape.negative_exp, adjoint, partials.weights);
}

}  // namespace lanes
}  // namespace halflife::kernels
