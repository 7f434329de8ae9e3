#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/scans/wkv4/wkv4_args.h"
#include "kernels/scans/wkv4/wkv4_recurrence.h"

namespace halflife::kernels {
namespace {

using namespace wkv;
using rows::FromStorage;

constexpr int kThreads = 128;
constexpr int kTile = kWkvTokensPerState;
// Threads that keep a large GPU busy. Joining segments of fewer tokens would take as long as
// scanning them.
constexpr int64_t kThreadsWanted = 1 << 17, kMinTokens = 8 * kTile;
// Planes of a segment's own state: p, q, o, and whether a document starts.
constexpr int kStatePlanes = 4;
constexpr int kAdjointPlanes = 5;  // a, b, r, c, and whether a document starts

struct Math {
  HL_DEVICE static float Exp(float x) { return expf(x); }
  HL_DEVICE static float Of(double x) { return static_cast<float>(x); }
};

// `given` holds log decays, or p of -e^p.
HL_DEVICE float LogDecayOf(const float* given, bool negative_exp, int64_t channel) {
  return negative_exp ? -expf(given[channel]) : given[channel];
}

// A thread's channel of one segment of one row.
template <typename T>
struct Place {
  HL_DEVICE Place(const WkvShape<T, float>& of, const cuda::WkvSegments& segments) : shape(of) {
    const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
    piece = item / shape.dim;
    channel = item - piece * shape.dim;
    row = piece / segments.count;
    segment = piece - row * segments.count;
    begin = segment * segments.tokens;
    end = min(shape.seq_len, begin + segments.tokens);
    exists = row < shape.batch;
    last = segment == segments.count - 1;
  }
  HL_DEVICE int64_t At(int64_t token) const {
    return (row * shape.seq_len + token) * shape.dim + channel;
  }
  HL_DEVICE int64_t OfState() const { return row * shape.dim + channel; }
  HL_DEVICE bool Starts(int64_t token) const {
    return shape.starts != nullptr && shape.starts[row * shape.seq_len + token];
  }
  HL_DEVICE float K(int64_t token) const { return FromStorage(shape.k[At(token)]); }
  HL_DEVICE float V(int64_t token) const { return FromStorage(shape.v[At(token)]); }
  HL_DEVICE float LogDecay() const {
    return LogDecayOf(shape.log_decay, shape.negative_exp, channel);
  }
  // Returns the offset in [B, tiles, 3, D].
  HL_DEVICE int64_t OfKept(int64_t token) const {
    const int64_t tiles = (shape.seq_len + kTile - 1) / kTile;
    return (row * tiles + token / kTile) * 3 * shape.dim + channel;
  }
  // Returns the offset in a workspace [B, segments, planes, D].
  HL_DEVICE int64_t OfPiece(int planes) const { return piece * planes * shape.dim + channel; }

  const WkvShape<T, float>& shape;
  int64_t piece, row, segment, channel, begin, end;
  bool exists, last;
};

// Loads a memory stored as planes of D channels.
HL_DEVICE Memory<float> LoadMemory(const float* at, int64_t dim) {
  return {at[0], at[dim], at[2 * dim]};
}
HL_DEVICE void StoreMemory(const Memory<float>& memory, int64_t dim, float* at) {
  at[0] = memory.p, at[dim] = memory.q, at[2 * dim] = memory.o;
}
HL_DEVICE Adjoint<float> LoadAdjoint(const float* at, int64_t dim) {
  return {at[0], at[dim], at[2 * dim], at[3 * dim]};
}
HL_DEVICE void StoreAdjoint(const Adjoint<float>& adjoint, int64_t dim, float* at) {
  at[0] = adjoint.a, at[dim] = adjoint.b, at[2 * dim] = adjoint.r, at[3 * dim] = adjoint.c;
}
HL_DEVICE Memory<float> InitialOf(const WkvState<const float>& initial, int64_t at) {
  if (initial.numerator == nullptr) return {};
  return {initial.numerator[at], initial.denominator[at], initial.log_scale[at]};
}

// Computes each segment's state from an empty state.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    WkvSegmentStateKernel(WkvShape<T, float> shape, cuda::WkvSegments segments, float* own) {
  const Place<T> place(shape, segments);
  if (!place.exists || place.last) return;
  const auto decay = MakeDecay<Math>(place.LogDecay());
  Memory<float> memory = {};
  bool cut = false;
  for (int64_t token = place.begin; token < place.end; ++token) {
    if (place.Starts(token)) memory = {}, cut = true;
    memory = Advance<Math>(decay, place.K(token), place.V(token), memory);
  }
  float* const mine = own + place.OfPiece(kStatePlanes);
  StoreMemory(memory, shape.dim, mine);
  mine[3 * shape.dim] = cut ? 1.0f : 0.0f;
}

// Replaces own states by the states before the segments. A thread has one channel of a row.
__global__ void __launch_bounds__(kThreads)
    WkvJoinStatesKernel(WkvState<const float> initial, const float* log_decay, bool negative_exp,
                        int64_t batch, int64_t dim, cuda::WkvSegments segments, float* states) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (item >= batch * dim) return;
  const int64_t row = item / dim, channel = item - row * dim;
  const float decay =
      LogDecayOf(log_decay, negative_exp, channel) * static_cast<float>(segments.tokens);
  Memory<float> memory = InitialOf(initial, item);
  for (int64_t segment = 0; segment < segments.count; ++segment) {
    float* const at = states + (row * segments.count + segment) * kStatePlanes * dim + channel;
    const bool last = segment == segments.count - 1;  // the last segment has no own state
    const Memory<float> own = last ? Memory<float>{} : LoadMemory(at, dim);
    const bool cut = !last && at[3 * dim] != 0;
    StoreMemory(memory, dim, at);
    memory = cut ? own : Join<Math>(memory, decay, own);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    WkvForwardKernel(WkvShape<T, float> shape, WkvResults<T, float> results,
                     cuda::WkvSegments segments, const float* entry) {
  const Place<T> place(shape, segments);
  if (!place.exists) return;
  const auto decay = MakeDecay<Math>(place.LogDecay());
  const float bonus = shape.bonus[place.channel];
  Memory<float> memory = entry == nullptr
                             ? InitialOf(shape.initial, place.OfState())
                             : LoadMemory(entry + place.OfPiece(kStatePlanes), shape.dim);
  for (int64_t token = place.begin; token < place.end; ++token) {
    if (place.Starts(token)) memory = {};
    if (results.kept != nullptr && token % kTile == 0)
      StoreMemory(memory, shape.dim, results.kept + place.OfKept(token));
    const float k = place.K(token), v = place.V(token);
    results.out[place.At(token)] = rows::Narrow<T>(Read<Math>(bonus, k, v, memory).out);
    memory = Advance<Math>(decay, k, v, memory);
  }
  if (!place.last || results.final.numerator == nullptr) return;
  const int64_t at = place.OfState();
  results.final.numerator[at] = memory.p;
  results.final.denominator[at] = memory.q;
  results.final.log_scale[at] = memory.o;
}

// The states before each of a tile's tokens, for each thread.
using History = float[kTile][3][kThreads];

template <typename T>
HL_DEVICE void StatesOfTile(const Place<T>& place, const float* kept, const Decay<float>& decay,
                            int64_t begin, int64_t end, History& history) {
  Memory<float> memory = LoadMemory(kept + place.OfKept(begin), place.shape.dim);
  for (int64_t token = begin; token < end; ++token) {
    if (token > begin && place.Starts(token)) memory = {};
    StoreMemory(memory, kThreads, &history[token - begin][0][threadIdx.x]);
    if (token + 1 < end) memory = Advance<Math>(decay, place.K(token), place.V(token), memory);
  }
}

// kOwn: computes dL/d(state before each segment) due to outputs of that segment. Otherwise computes
// all gradients; `entry` holds the adjoints of the states after the segments, null if a row is one
// segment.
template <typename T, bool kOwn>
__global__ void __launch_bounds__(kThreads)
    WkvBackwardKernel(WkvShape<T, float> shape, WkvGrads<T, float> grads,
                      cuda::WkvSegments segments, const float* entry, float* own, float* partials) {
  HL_SHARED(history, History);
  const Place<T> place(shape, segments);
  if (!place.exists || (kOwn && place.segment == 0)) return;
  const float log_decay = place.LogDecay(), bonus = shape.bonus[place.channel];
  const auto decay = MakeDecay<Math>(log_decay);
  Adjoint<float> adjoint = {};
  bool cut = false;
  float dlog_decay = 0, dbonus = 0;
  if (!kOwn && entry != nullptr) {
    adjoint = LoadAdjoint(entry + place.OfPiece(kAdjointPlanes), shape.dim);
  } else if (!kOwn && grads.dfinal.numerator != nullptr) {
    const int64_t at = place.OfState();
    adjoint = {grads.dfinal.numerator[at], grads.dfinal.denominator[at], 1.0f,
               -grads.final.log_scale[at]};
  }
  const int64_t tiles = (place.end - place.begin + kTile - 1) / kTile;
  for (int64_t tile = tiles - 1; tile >= 0; --tile) {
    const int64_t begin = place.begin + tile * kTile, end = min(place.end, begin + kTile);
    StatesOfTile(place, grads.kept, decay, begin, end, history);
    for (int64_t token = end - 1; token >= begin; --token) {
      const int64_t at = place.At(token);
      const Memory<float> before = LoadMemory(&history[token - begin][0][threadIdx.x], kThreads);
      const float k = place.K(token), v = place.V(token), dout = FromStorage(grads.dout[at]);
      const Output<float> read = Read<Math>(bonus, k, v, before);
      if (!kOwn) {
        const auto own_grads = GradsOf<Math>(log_decay, k, v, dout, before, read, adjoint);
        grads.dk[at] = rows::Narrow<T>(own_grads.dk);
        grads.dv[at] = rows::Narrow<T>(own_grads.dv);
        dlog_decay += own_grads.dlog_decay;
        dbonus += own_grads.dbonus;
      }
      adjoint = Retreat<Math>(decay, dout, read, adjoint);
      if (place.Starts(token)) adjoint = {}, cut = true;
    }
  }
  if (kOwn) {
    float* const mine = own + place.OfPiece(kAdjointPlanes);
    StoreAdjoint(adjoint, shape.dim, mine);
    mine[4 * shape.dim] = cut ? 1.0f : 0.0f;
    return;
  }
  float* const mine = partials + place.piece * 2 * shape.dim + place.channel;
  mine[0] = shape.negative_exp ? dlog_decay * log_decay : dlog_decay;
  mine[shape.dim] = dbonus;
  if (place.segment != 0 || grads.dinitial.numerator == nullptr) return;
  const int64_t at = place.OfState();
  const float weight = expf(ScaleOf<Math>(adjoint) + ScaleOf<Math>(InitialOf(shape.initial, at)));
  grads.dinitial.numerator[at] = weight * adjoint.a;
  grads.dinitial.denominator[at] = weight * adjoint.b;
}

// Replaces own adjoints by those of the states after the segments.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    WkvJoinAdjointsKernel(WkvShape<T, float> shape, WkvGrads<T, float> grads,
                          cuda::WkvSegments segments, float* adjoints) {
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const int64_t dim = shape.dim;
  if (item >= shape.batch * dim) return;
  const int64_t row = item / dim, channel = item - row * dim;
  const float log_decay = LogDecayOf(shape.log_decay, shape.negative_exp, channel);
  Adjoint<float> adjoint = {};
  if (grads.dfinal.numerator != nullptr)
    adjoint = {grads.dfinal.numerator[item], grads.dfinal.denominator[item], 1.0f,
               -grads.final.log_scale[item]};
  for (int64_t segment = segments.count - 1; segment >= 0; --segment) {
    float* const at = adjoints + (row * segments.count + segment) * kAdjointPlanes * dim + channel;
    const bool first = segment == 0;  // the first segment has no own adjoint
    const Adjoint<float> own = first ? Adjoint<float>{} : LoadAdjoint(at, dim);
    const bool cut = !first && at[4 * dim] != 0;
    const int64_t tokens = min(shape.seq_len - segment * segments.tokens, segments.tokens);
    const float decay = log_decay * static_cast<float>(tokens);
    StoreAdjoint(adjoint, dim, at);
    adjoint = cut ? own : Join<Math>(adjoint, decay, own);
  }
}

template <typename T>
bool IsEmpty(const WkvShape<T, float>& shape) {
  return shape.batch * shape.dim == 0;
}
LaunchShape LaunchOf(int64_t items, const char* name) {
  return {dim3(GridBlocks((items + kThreads - 1) / kThreads, name)), dim3(kThreads), 0, name};
}

}  // namespace

namespace cuda {

WkvSegments WkvSegmentsOf(int64_t batch, int64_t seq_len, int64_t dim) {
  const int64_t wanted = std::max<int64_t>(1, kThreadsWanted / std::max<int64_t>(1, batch * dim));
  const int64_t even = (seq_len + wanted - 1) / wanted;
  const int64_t tokens = std::max(kMinTokens, (even + kTile - 1) / kTile * kTile);
  return {std::max<int64_t>(1, (seq_len + tokens - 1) / tokens), tokens};
}
int64_t WkvWorkspaceFloats(int64_t batch, int64_t seq_len, int64_t dim) {
  return batch * dim * WkvSegmentsOf(batch, seq_len, dim).count * (kAdjointPlanes + 2);
}

template <typename T>
void WkvForward(const WkvShape<T, float>& shape, const WkvResults<T, float>& results,
                float* workspace, cudaStream_t stream) {
  if (IsEmpty(shape)) return;
  const cuda::WkvSegments segments = cuda::WkvSegmentsOf(shape.batch, shape.seq_len, shape.dim);
  const int64_t rows_of_channels = shape.batch * shape.dim,
                items = rows_of_channels * segments.count;
  const bool cut = segments.count > 1;
  if (cut) {
    Launch(LaunchOf(items, "wkv, states of segments"), stream, WkvSegmentStateKernel<T>, shape,
           segments, workspace);
    Launch(LaunchOf(rows_of_channels, "wkv, joined states"), stream, WkvJoinStatesKernel,
           shape.initial, shape.log_decay, shape.negative_exp, shape.batch, shape.dim, segments,
           workspace);
  }
  Launch(LaunchOf(items, "wkv"), stream, WkvForwardKernel<T>, shape, results, segments,
         cut ? workspace : nullptr);
}

template <typename T>
void WkvBackward(const WkvShape<T, float>& shape, const WkvGrads<T, float>& grads,
                 const WkvChannelGrads<float>& channels, float* workspace, cudaStream_t stream) {
  cuda::SumPlaces sums;
  sums.places[0] = {channels.dlog_decay, shape.dim, channels.decay_added};
  sums.places[1] = {channels.dbonus, shape.dim, channels.bonus_added};
  if (IsEmpty(shape)) {
    cuda::SumPartials(workspace, 0, sums, stream);
    return;
  }
  const cuda::WkvSegments segments = cuda::WkvSegmentsOf(shape.batch, shape.seq_len, shape.dim);
  const int64_t rows_of_channels = shape.batch * shape.dim,
                items = rows_of_channels * segments.count;
  const bool cut = segments.count > 1;
  float* const adjoints = workspace;
  float* const partials = workspace + kAdjointPlanes * items;
  if (cut) {
    Launch(LaunchOf(items, "wkv's gradient, adjoints of segments"), stream,
           WkvBackwardKernel<T, true>, shape, grads, segments, nullptr, adjoints, nullptr);
    Launch(LaunchOf(rows_of_channels, "wkv's gradient, joined adjoints"), stream,
           WkvJoinAdjointsKernel<T>, shape, grads, segments, adjoints);
  }
  Launch(LaunchOf(items, "wkv's gradient"), stream, WkvBackwardKernel<T, false>, shape, grads,
         segments, cut ? adjoints : nullptr, nullptr, partials);
  cuda::SumPartials(partials, shape.batch * segments.count, sums, stream);
}

#define HL_WKV(T)                                                                          \
  template void WkvForward(const WkvShape<T, float>&, const WkvResults<T, float>&, float*, \
                           cudaStream_t);                                                  \
  template void WkvBackward(const WkvShape<T, float>&, const WkvGrads<T, float>&,          \
                            const WkvChannelGrads<float>&, float*, cudaStream_t);
HL_WKV(float)
HL_WKV(Bf16)
#undef HL_WKV

}  // namespace cuda
}  // namespace halflife::kernels
