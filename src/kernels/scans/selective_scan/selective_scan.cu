// The launches of the selective scan, and its kernels for few channels or any number of states. In
// these, a thread has one channel of one segment of a row and processes a tile of tokens at a time.
// The tile's values for the channel are in registers, while the states are processed one after
// another. The channels of a block share b and c of the tile.
#include <limits>

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/softplus.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/scans/selective_scan/selective_scan_args.h"
#include "kernels/scans/selective_scan/selective_scan_lanes.cuh"

namespace halflife::kernels {
namespace {

using rows::FromStorage;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTile = cuda::kScanTile;
// Threads that keep a large GPU busy. Joining segments of fewer tokens would take as long as
// scanning them.
constexpr int64_t kThreadsWanted = 1 << 17, kMinTokens = 8 * kTile;
// Threads with which the kernels in selective_scan_lanes.cuh keep a large GPU busy. They have no
// segments.
constexpr int64_t kLaneThreadsWanted = 1 << 15;

// A segment of a row, and a thread's channel.
template <typename T>
struct Place {
  HL_DEVICE Place(const ScanShape<T, float>& of, const cuda::ScanSegments& segments) : shape(of) {
    const int64_t groups = (shape.channels + kThreads - 1) / kThreads;
    piece = blockIdx.x / groups;
    group = blockIdx.x - piece * groups;
    channel = group * kThreads + threadIdx.x;
    row = piece / segments.count;
    segment = piece - row * segments.count;
    begin = segment * segments.tokens;
    end = min(shape.seq_len, begin + segments.tokens);
    exists = channel < shape.channels;
    last = segment == segments.count - 1;
  }
  HL_DEVICE int64_t At(int64_t token) const {
    return (row * shape.seq_len + token) * shape.channels + channel;
  }
  HL_DEVICE float A(int64_t state) const {
    return exists ? DecayOf(shape.a[channel * shape.states + state], shape.negative_exp) * kLog2E
                  : 0.0f;
  }
  // Returns the offset in [B, I, N].
  HL_DEVICE int64_t OfState(int64_t state) const {
    return (row * shape.channels + channel) * shape.states + state;
  }
  // Returns the offset in [pieces, N, I].
  HL_DEVICE int64_t OfPiece(int64_t state) const {
    return (piece * shape.states + state) * shape.channels + channel;
  }
  // Returns the offset in [B, tiles, N, I].
  HL_DEVICE int64_t OfKept(int64_t token, int64_t state) const {
    const int64_t tiles = (shape.seq_len + kTile - 1) / kTile;
    return ((row * tiles + token / kTile) * shape.states + state) * shape.channels + channel;
  }

  const ScanShape<T, float>& shape;
  int64_t piece, group, row, segment, channel, begin, end;
  bool exists, last;
};

// Values of a tile's tokens for the thread's channel; zeros for tokens that do not exist. Bit t of
// `resets` is set if a document starts at token t.
struct Tile {
  float x[kTile], step[kTile];
  unsigned resets;
};

template <typename T>
HL_DEVICE float Delta(const Place<T>& place, int64_t token) {
  return FromStorage(place.shape.delta[place.At(token)]) + place.shape.delta_bias[place.channel];
}

template <typename T>
HL_DEVICE void LoadTile(const Place<T>& place, int64_t begin, Tile& tile) {
  tile.resets = 0;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    const int64_t token = begin + t;
    const bool exists = token < place.end;
    tile.x[t] = exists && place.exists ? FromStorage(place.shape.x[place.At(token)]) : 0.0f;
    tile.step[t] = exists && place.exists ? rows::SoftPlus(Delta(place, token)) : 0.0f;
    if (exists && place.shape.starts != nullptr &&
        place.shape.starts[place.row * place.shape.seq_len + token])
      tile.resets |= 1u << t;
  }
}

// Transposes rows [tile, N] of b or c to shared memory [N][tile], with zeros past the segment. All
// threads of the block must take part.
template <typename T>
HL_DEVICE void LoadShared(const Place<T>& place, const T* from, int64_t begin, float* to) {
  const int states = static_cast<int>(place.shape.states);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * states; i += kThreads) {
    const int t = i / states, state = i - t * states;
    const int64_t token = begin + t;
    to[state * kTile + t] =
        token < place.end
            ? FromStorage(
                  from[(place.row * place.shape.seq_len + token) * place.shape.token_stride +
                       state])
            : 0.0f;
  }
}

// kOwn: computes each segment's state from a zero state, and its effect on the state before it: the
// sum of its steps, and whether a document starts in it. Otherwise computes all outputs. `carry`
// [pieces, N, I] holds the states between tiles; with kEntry, it initially holds those before the
// segments.
template <typename T, bool kOwn, bool kEntry>
__global__ void __launch_bounds__(kThreads, 4)
    ScanForwardKernel(ScanShape<T, float> shape, ScanResults<T, float> results,
                      cuda::ScanSegments segments, float* carry, float* sums) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  const int states = static_cast<int>(shape.states);
  float* const b = carver.Take<float>(kTile * states);
  float* const c = carver.Take<float>(kTile * states);
  const Place<T> place(shape, segments);
  float steps = 0;
  bool cut = false;
  for (int64_t begin = place.begin; begin < place.end; begin += kTile) {
    __syncthreads();
    LoadShared(place, shape.b, begin, b);
    if (!kOwn) LoadShared(place, shape.c, begin, c);
    __syncthreads();
    if (!place.exists) continue;
    Tile tile;
    LoadTile(place, begin, tile);
    float y[kTile];
    const float skip = shape.skip[place.channel];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      y[t] = skip * tile.x[t];
      tile.x[t] *= tile.step[t];
      steps += tile.step[t];
    }
    cut = cut || tile.resets != 0;
    for (int state = 0; state < states; ++state) {
      float h = 0;
      if (begin > place.begin || kEntry) {
        h = carry[place.OfPiece(state)];
      } else if (!kOwn && shape.initial != nullptr) {
        h = shape.initial[place.OfState(state)];
      }
      if (!kOwn && results.kept != nullptr) results.kept[place.OfKept(begin, state)] = h;
      const float a = place.A(state);
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        if (tile.resets >> t & 1) h = 0;
        h = Exp2Approx(tile.step[t] * a) * h + tile.x[t] * b[state * kTile + t];
        if (!kOwn) y[t] += h * c[state * kTile + t];
      }
      carry[place.OfPiece(state)] = h;
      if (!kOwn && place.last && results.final != nullptr && begin + kTile >= place.end)
        results.final[place.OfState(state)] = h;
    }
    if constexpr (!kOwn) {
#pragma unroll
      for (int t = 0; t < kTile; ++t)
        if (begin + t < place.end) results.y[place.At(begin + t)] = rows::Narrow<T>(y[t]);
    }
  }
  if (!kOwn || !place.exists) return;
  float* const mine = sums + place.piece * 2 * shape.channels + place.channel;
  mine[0] = steps;
  mine[shape.channels] = cut ? 1.0f : 0.0f;
}

// How segments transform a state or, in reverse, its gradient: [pieces, 2, I].
struct Joined {
  const float* a;  // [I, N], or p of it
  bool negative_exp;
  const float* sums;  // see ScanForwardKernel
  // [B, I, N]: before the first segment or, in reverse, after the last; null: zero.
  const float* from;
  int64_t batch, channels, states;
  cuda::ScanSegments segments;
  bool reverse;
};

// Replaces own states [pieces, N, I] by the states before the segments or, in reverse, own adjoints
// by those of the states after them. A thread has one state of one channel of a row.
__global__ void __launch_bounds__(kThreads) ScanJoinKernel(Joined joined, float* values) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t of_row = joined.states * joined.channels;
  if (item >= joined.batch * of_row) return;
  const int64_t row = item / of_row, state = (item - row * of_row) / joined.channels;
  const int64_t channel = item - row * of_row - state * joined.channels;
  const float a = DecayOf(joined.a[channel * joined.states + state], joined.negative_exp) * kLog2E;
  float value = 0;
  if (joined.from != nullptr)
    value = joined.from[(row * joined.channels + channel) * joined.states + state];
  for (int64_t i = 0; i < joined.segments.count; ++i) {
    const int64_t segment = joined.reverse ? joined.segments.count - 1 - i : i;
    const int64_t piece = row * joined.segments.count + segment;
    float* const at = values + (piece * joined.states + state) * joined.channels + channel;
    const float* const sum = joined.sums + piece * 2 * joined.channels + channel;
    const float own = *at;
    *at = value;
    value = sum[joined.channels] != 0 ? own : Exp2Approx(sum[0] * a) * value + own;
  }
}

// Computes dL/d(state before each segment) due to outputs of that segment, in `carry` [pieces, N,
// I].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScanAdjointKernel(ScanShape<T, float> shape, const T* dy_in, cuda::ScanSegments segments,
                      float* carry, float* sums) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  const int states = static_cast<int>(shape.states);
  float* const c = carver.Take<float>(kTile * states);
  const Place<T> place(shape, segments);
  float steps = 0;
  bool cut = false;
  const int64_t tiles = (place.end - place.begin + kTile - 1) / kTile;
  for (int64_t tile_index = tiles - 1; tile_index >= 0; --tile_index) {
    const int64_t begin = place.begin + tile_index * kTile;
    __syncthreads();
    LoadShared(place, shape.c, begin, c);
    __syncthreads();
    if (!place.exists) continue;
    Tile tile;
    LoadTile(place, begin, tile);
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      tile.x[t] = begin + t < place.end ? FromStorage(dy_in[place.At(begin + t)]) : 0.0f;
      steps += tile.step[t];
    }
    cut = cut || tile.resets != 0;
    for (int state = 0; state < states; ++state) {
      float later = tile_index < tiles - 1 ? carry[place.OfPiece(state)] : 0.0f;
      const float a = place.A(state);
#pragma unroll
      for (int t = kTile - 1; t >= 0; --t) {
        later = Exp2Approx(tile.step[t] * a) * (later + tile.x[t] * c[state * kTile + t]);
        if (tile.resets >> t & 1) later = 0;
      }
      carry[place.OfPiece(state)] = later;
    }
  }
  if (!place.exists) return;
  float* const mine = sums + place.piece * 2 * shape.channels + place.channel;
  mine[0] = steps;
  mine[shape.channels] = cut ? 1.0f : 0.0f;
}

// Returns the sum of a tile's values over the warp's lanes: element lane / 2 in each lane.
HL_DEVICE float SumOverWarp(float (&x)[kTile]) {
  static_assert(kTile == 16);
  SumHalves<8, 16, 2>(x);
  return x[0] + __shfl_xor_sync(kFullWarp, x[0], 1);
}

// Gradients of a tile's tokens in the thread's channel, summed over the states: those of the step
// in the exponents (multiplied by log2(e)), and those of step x.
struct TileGrads {
  float dy[kTile], dstep[kTile] = {}, dinput[kTile] = {};
};

// Processes one state of the tile, forward from the kept state and then in reverse. Adds to dstep
// and dinput, and computes the tokens' db and dc of this channel.
struct StateTile {
  float db[kTile], dc[kTile], later, da;
};
HL_DEVICE void ReverseState(const Tile& tile, float a, const float* b, const float* c, float h,
                            TileGrads& of, StateTile& one) {
  const float before_tile = h;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {  // db: e^{step a}, dc: the state after the token
    if (tile.resets >> t & 1) h = 0;
    one.db[t] = Exp2Approx(tile.step[t] * a);
    h = one.db[t] * h + tile.x[t] * b[t];
    one.dc[t] = h;
  }
#pragma unroll
  for (int t = kTile - 1; t >= 0; --t) {
    const float dh = one.later + of.dy[t] * c[t];
    one.dc[t] *= of.dy[t];
    of.dinput[t] += dh * b[t];
    one.later = one.db[t] * dh;
    one.db[t] = dh * tile.x[t];
    const bool resets = (tile.resets >> t & 1) != 0;
    const float before = t > 0 ? one.dc[t > 0 ? t - 1 : 0] : before_tile;
    const float dlog = resets ? 0.0f : one.later * before;
    of.dstep[t] += dlog * a;
    one.da += dlog * tile.step[t];
    if (resets) one.later = 0;
  }
}

// Stores the block's db and dc of the tile's tokens, given the sums of its warps
// [2][warps][N][tile]. All threads of the block must take part.
template <typename T>
HL_DEVICE void StoreTokenSums(const Place<T>& place, int64_t begin, const float* sums,
                              float* tokens) {
  const ScanShape<T, float>& shape = place.shape;
  const int states = static_cast<int>(shape.states);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * states; i += kThreads) {
    const int t = i / states, state = i - t * states;
    if (begin + t >= place.end) continue;
    float db = 0, dc = 0;
    for (int w = 0; w < kWarps; ++w) {
      db += sums[(w * states + state) * kTile + t];
      dc += sums[((kWarps + w) * states + state) * kTile + t];
    }
    const int64_t all = shape.batch * shape.seq_len * states;
    const int64_t token = place.row * shape.seq_len + begin + t;
    float* const of_token = tokens + 2 * place.group * all + token * states + state;
    of_token[0] = db;
    of_token[all] = dc;
  }
}

// Stores dx and ddelta of the tile's tokens, and returns their contribution to the gradient of the
// bias.
template <typename T>
HL_DEVICE void StoreInputGradients(const Place<T>& place, int64_t begin, const Tile& tile,
                                   const TileGrads& of, float skip,
                                   const ScanGrads<T, float>& grads, float& dbias) {
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    if (begin + t >= place.end) continue;
    const int64_t at = place.At(begin + t);
    const float all = of.dstep[t] * (1 / kLog2E) + of.dinput[t] * FromStorage(place.shape.x[at]);
    const float ddelta = all * rows::Sigmoid(Delta(place, begin + t));
    dbias += ddelta;
    grads.dx[at] = rows::Narrow<T>(of.dinput[t] * tile.step[t] + skip * of.dy[t]);
    grads.ddelta[at] = rows::Narrow<T>(ddelta);
  }
}

// `entry`: whether `carry` [pieces, N, I] holds the adjoints of the states after the segments.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScanBackwardKernel(ScanShape<T, float> shape, ScanGrads<T, float> grads,
                       cuda::ScanSegments segments, bool entry, float* carry,
                       ScanGradPartials partials) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  const int states = static_cast<int>(shape.states);
  float* const b = carver.Take<float>(kTile * states);
  float* const c = carver.Take<float>(kTile * states);
  float* const sums = carver.Take<float>(2 * kWarps * kTile * states);  // [2][warps][N][tile]
  const Place<T> place(shape, segments);
  const float skip = place.exists ? shape.skip[place.channel] : 0.0f;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float dskip = 0, dbias = 0;
  float* const mine =
      partials.weights + place.piece * (states + 2) * shape.channels + place.channel;
  const int64_t tiles = (place.end - place.begin + kTile - 1) / kTile;
  for (int64_t tile_index = tiles - 1; tile_index >= 0; --tile_index) {
    const int64_t begin = place.begin + tile_index * kTile;
    const bool first = tile_index == tiles - 1;
    __syncthreads();
    LoadShared(place, shape.b, begin, b);
    LoadShared(place, shape.c, begin, c);
    __syncthreads();
    Tile tile;
    LoadTile(place, begin, tile);
    TileGrads of;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const bool exists = place.exists && begin + t < place.end;
      of.dy[t] = exists ? FromStorage(grads.dy[place.At(begin + t)]) : 0.0f;
      dskip += of.dy[t] * tile.x[t];
      tile.x[t] *= tile.step[t];
    }
    for (int state = 0; state < states; ++state) {
      StateTile one;
      one.later = one.da = 0;
      float h = 0;
      if (place.exists) {
        h = grads.kept[place.OfKept(begin, state)];
        if (!first || entry) {
          one.later = carry[place.OfPiece(state)];
        } else if (grads.dfinal != nullptr) {
          one.later = grads.dfinal[place.OfState(state)];
        }
        if (!first) one.da = mine[state * shape.channels];
      }
      const float a = place.A(state);
      ReverseState(tile, a, b + state * kTile, c + state * kTile, h, of, one);
      if (place.exists) {
        carry[place.OfPiece(state)] = one.later;
        // The gradient of p is a times that of a.
        const bool of_p = shape.negative_exp && tile_index == 0;
        mine[state * shape.channels] = of_p ? one.da * (a * (1 / kLog2E)) : one.da;
        if (tile_index == 0 && place.segment == 0 && grads.dinitial != nullptr)
          grads.dinitial[place.OfState(state)] = one.later;
      }
      const float db = SumOverWarp(one.db), dc = SumOverWarp(one.dc);
      if (lane % 2 == 0) {
        sums[(warp * states + state) * kTile + lane / 2] = db;
        sums[((kWarps + warp) * states + state) * kTile + lane / 2] = dc;
      }
    }
    __syncthreads();
    StoreTokenSums(place, begin, sums, partials.tokens);
    if (place.exists) StoreInputGradients(place, begin, tile, of, skip, grads, dbias);
  }
  if (!place.exists) return;
  mine[states * shape.channels] = dskip;
  mine[(states + 1) * shape.channels] = dbias;
}

// Adds up the contributions of the blocks of channels to db and dc, in order. A thread has one
// state of one token of either.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScanSumTokensKernel(ScanShape<T, float> shape, ScanGrads<T, float> grads, int64_t groups,
                        const float* tokens) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t all = shape.batch * shape.seq_len * shape.states;
  if (item >= 2 * all) return;
  float sum = 0;
  for (int64_t group = 0; group < groups; ++group) sum += tokens[2 * group * all + item];
  const bool of_b = item < all;
  const int64_t i = of_b ? item : item - all, token = i / shape.states;
  T* const to = of_b ? grads.db : grads.dc;
  to[token * grads.token_stride + (i - token * shape.states)] = rows::Narrow<T>(sum);
}

int64_t GroupsOf(int64_t channels) { return (channels + kThreads - 1) / kThreads; }
// Returns how many blocks of channels contribute to db and dc.
int64_t GradGroups(const cuda::ScanSizes& sizes) {
  return cuda::ScanRouteOf(sizes) == cuda::ScanRoute::kLanes ? lanes::GroupsOf(sizes.channels)
                                                             : GroupsOf(sizes.channels);
}

template <typename T>
void CheckStates(const ScanShape<T, float>& shape) {
  HL_CHECK(shape.states >= 1 && shape.states <= kScanMaxStates, "selective scan of ", shape.states,
           " states. Use 1 to ", kScanMaxStates, ".");
}

// Launch shape over pieces and groups of channels, with `arrays` arrays [N, tile] in shared memory.
template <typename T>
LaunchShape PiecesOf(const ScanShape<T, float>& shape, const cuda::ScanSegments& segments,
                     int64_t arrays, const char* name) {
  const int64_t blocks = shape.batch * segments.count * GroupsOf(shape.channels);
  return {dim3(GridBlocks(blocks, name)), dim3(kThreads),
          static_cast<int>(arrays * kTile * shape.states * static_cast<int64_t>(sizeof(float))),
          name};
}

template <typename T>
void Join(const ScanShape<T, float>& shape, const cuda::ScanSegments& segments, const float* sums,
          const float* from, bool reverse, float* values, cudaStream_t stream) {
  const int64_t items = shape.batch * shape.channels * shape.states;
  const char* const name = "selective scan, joined segments";
  Launch({dim3(GridBlocks((items + kThreads - 1) / kThreads, name)), dim3(kThreads), 0, name},
         stream, ScanJoinKernel,
         Joined{shape.a, shape.negative_exp, sums, from, shape.batch, shape.channels, shape.states,
                segments, reverse},
         values);
}

template <typename T>
cuda::ScanSizes SizesOf(const ScanShape<T, float>& shape) {
  return {shape.batch, shape.seq_len, shape.channels, shape.states, shape.route};
}

// Returns the launch shape of the kernels in selective_scan_lanes.cuh.
template <typename T>
LaunchShape LanesOf(const ScanShape<T, float>& shape, int bytes, const char* name) {
  HL_CHECK(shape.states == lanes::kN, "selective scan of ", shape.states,
           " states in registers. Use ", lanes::kN, ", or the route kSegments.");
  const int64_t blocks = shape.batch * lanes::GroupsOf(shape.channels);
  return {dim3(GridBlocks(blocks, name)), dim3(lanes::kThreads), bytes, name};
}

template <typename T>
void BackwardOfSegments(const ScanShape<T, float>& shape, const ScanGrads<T, float>& grads,
                        const cuda::ScanSegments& segments, float* carry, float* sums,
                        const ScanGradPartials& partials, cudaStream_t stream) {
  if (segments.count > 1) {
    Launch(PiecesOf(shape, segments, 1, "selective scan's gradient, adjoints of segments"), stream,
           ScanAdjointKernel<T>, shape, grads.dy, segments, carry, sums);
    Join(shape, segments, sums, grads.dfinal, /*reverse=*/true, carry, stream);
  }
  Launch(PiecesOf(shape, segments, 2 + 2 * kWarps, "selective scan's gradient"), stream,
         ScanBackwardKernel<T>, shape, grads, segments, segments.count > 1, carry, partials);
}

}  // namespace

namespace cuda {

ScanSegments ScanSegmentsOf(int64_t batch, int64_t seq_len, int64_t channels) {
  const int64_t wanted =
      std::max<int64_t>(1, kThreadsWanted / std::max<int64_t>(1, batch * channels));
  const int64_t even = (seq_len + wanted - 1) / wanted;
  const int64_t tokens = std::max(kMinTokens, (even + kTile - 1) / kTile * kTile);
  return {std::max<int64_t>(1, (seq_len + tokens - 1) / tokens), tokens};
}
ScanRoute ScanRouteOf(const ScanSizes& sizes) {
  if (sizes.route != ScanRoute::kAuto) return sizes.route;
  constexpr int64_t kMost = std::numeric_limits<int>::max();  // the kernels count in 32 bits
  const bool fits = sizes.states == lanes::kN && sizes.seq_len < kMost && sizes.channels < kMost;
  return fits && sizes.batch * sizes.channels * lanes::kLanes >= kLaneThreadsWanted
             ? ScanRoute::kLanes
             : ScanRoute::kSegments;
}
int64_t ScanForwardWorkspaceFloats(const ScanSizes& sizes) {
  if (ScanRouteOf(sizes) == ScanRoute::kLanes) return 0;
  const int64_t pieces =
      sizes.batch * ScanSegmentsOf(sizes.batch, sizes.seq_len, sizes.channels).count;
  return pieces * sizes.channels * (sizes.states + 2);
}
int64_t ScanBackwardWorkspaceFloats(const ScanSizes& sizes) {
  const int64_t of_tokens = 2 * GradGroups(sizes) * sizes.batch * sizes.seq_len * sizes.states;
  if (ScanRouteOf(sizes) == ScanRoute::kLanes)
    return sizes.batch * sizes.channels * (sizes.states + 2) + of_tokens;
  const int64_t pieces =
      sizes.batch * ScanSegmentsOf(sizes.batch, sizes.seq_len, sizes.channels).count;
  return pieces * sizes.channels * (2 * sizes.states + 4) + of_tokens;
}

template <typename T>
void ScanForward(const ScanShape<T, float>& shape, const ScanResults<T, float>& results,
                 float* workspace, cudaStream_t stream) {
  CheckStates(shape);
  if (shape.batch * shape.seq_len * shape.channels == 0) return;
  if (cuda::ScanRouteOf(SizesOf(shape)) == cuda::ScanRoute::kLanes) {
    Launch(LanesOf(shape, lanes::kForwardBytes, "selective scan in lanes"), stream,
           lanes::ForwardKernel<T>, shape, results);
    return;
  }
  const cuda::ScanSegments segments =
      cuda::ScanSegmentsOf(shape.batch, shape.seq_len, shape.channels);
  const int64_t states = shape.batch * segments.count * shape.states * shape.channels;
  float *const carry = workspace, *const sums = workspace + states;
  if (segments.count == 1) {
    Launch(PiecesOf(shape, segments, 2, "selective scan"), stream,
           ScanForwardKernel<T, false, false>, shape, results, segments, carry, sums);
    return;
  }
  Launch(PiecesOf(shape, segments, 2, "selective scan, states of segments"), stream,
         ScanForwardKernel<T, true, false>, shape, ScanResults<T, float>{}, segments, carry, sums);
  Join(shape, segments, sums, shape.initial, /*reverse=*/false, carry, stream);
  Launch(PiecesOf(shape, segments, 2, "selective scan"), stream, ScanForwardKernel<T, false, true>,
         shape, results, segments, carry, sums);
}

template <typename T>
void ScanBackward(const ScanShape<T, float>& shape, const ScanGrads<T, float>& grads,
                  const cuda::ScanWeightGrads& weights, float* workspace, cudaStream_t stream) {
  CheckStates(shape);
  const cuda::ScanSizes sizes = SizesOf(shape);
  const bool empty = shape.batch * shape.seq_len * shape.channels == 0;
  const bool in_lanes = cuda::ScanRouteOf(sizes) == cuda::ScanRoute::kLanes;
  const cuda::ScanSegments segments =
      cuda::ScanSegmentsOf(shape.batch, shape.seq_len, shape.channels);
  const int64_t pieces = empty ? 0 : shape.batch * (in_lanes ? 1 : segments.count),
                groups = empty ? 0 : GradGroups(sizes);
  const int64_t states = pieces * shape.states * shape.channels,
                tokens = shape.batch * shape.seq_len * shape.states;
  float* next = workspace;
  const auto take = [&](int64_t count) {
    float* const taken = next;
    next += count;
    return taken;
  };
  const ScanGradPartials partials = {take(states + 2 * pieces * shape.channels),
                                     take(2 * groups * tokens)};
  if (!empty && in_lanes) {
    Launch(LanesOf(shape, lanes::kBackwardBytes, "selective scan's gradient in lanes"), stream,
           lanes::BackwardKernel<T>, shape, grads, partials);
  } else if (!empty) {
    float *const carry = take(states), *const sums = take(2 * pieces * shape.channels);
    BackwardOfSegments(shape, grads, segments, carry, sums, partials, stream);
  }
  cuda::SumPlaces of_weights;
  of_weights.places[0] = {weights.da, shape.states * shape.channels, weights.a_added, shape.states};
  of_weights.places[1] = {weights.dskip, shape.channels, weights.skip_added};
  of_weights.places[2] = {weights.ddelta_bias, shape.channels, weights.bias_added};
  cuda::SumPartials(partials.weights, pieces, of_weights, stream);
  if (tokens == 0) return;
  const char* const name = "selective scan, gradients of tokens";
  Launch({dim3(GridBlocks((2 * tokens + kThreads - 1) / kThreads, name)), dim3(kThreads), 0, name},
         stream, ScanSumTokensKernel<T>, shape, grads, groups, partials.tokens);
}

#define HL_SCAN(T)                                                                            \
  template void ScanForward(const ScanShape<T, float>&, const ScanResults<T, float>&, float*, \
                            cudaStream_t);                                                    \
  template void ScanBackward(const ScanShape<T, float>&, const ScanGrads<T, float>&,          \
                             const ScanWeightGrads&, float*, cudaStream_t);
HL_SCAN(float)
HL_SCAN(Bf16)
#undef HL_SCAN

}  // namespace cuda
}  // namespace halflife::kernels
