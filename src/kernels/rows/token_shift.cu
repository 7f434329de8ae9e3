#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/token_shift_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

static_assert(kTokenMixes <= cuda::kSumPlaces);

constexpr int kThreads = 128;
constexpr int64_t kForwardRun = 16;  // tokens that a thread processes in the forward

// The work of a thread: a pack of channels from `channel` on, tokens [begin, end) of `row`.
template <typename T>
struct Place {
  HL_DEVICE Place(const TokenShiftShape<T>& shape, int64_t tokens) {
    const int64_t groups = (shape.dim + kPack<T> - 1) / kPack<T>;
    const int64_t runs_per_row = (shape.seq_len + tokens - 1) / tokens;
    const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
    run = item / groups;
    channel = (item - run * groups) * kPack<T>;
    row = run / runs_per_row;
    begin = (run - row * runs_per_row) * tokens;
    end = min(shape.seq_len, begin + tokens);
    count = static_cast<int>(min(shape.dim - channel, int64_t{kPack<T>}));
    exists = row < shape.batch;
  }
  HL_DEVICE int64_t At(const TokenShiftShape<T>& shape, int64_t token) const {
    return (row * shape.seq_len + token) * shape.dim + channel;
  }
  int64_t row, begin, end, channel, run;
  int count;  // number of its channels that exist
  bool exists;
};

template <typename T>
using Mixes = float[kTokenMixes][kPack<T>];

template <typename T>
HL_DEVICE void LoadMixes(const TokenShiftShape<T>& shape, const Place<T>& place, bool aligned,
                         Mixes<T>& mixes) {
#pragma unroll
  for (int i = 0; i < kTokenMixes; ++i) {
    const bool exists = i < shape.num_mixes;
    LoadFloats(exists ? shape.mixes[i] + place.channel : nullptr, exists ? place.count : 0, aligned,
               mixes[i]);
  }
}

// Returns true if there is a token before this one.
template <typename T>
HL_DEVICE bool Follows(const TokenShiftShape<T>& shape, int64_t row, int64_t token) {
  if (shape.starts != nullptr && shape.starts[row * shape.seq_len + token]) return false;
  return token > 0 || shape.tail != nullptr;
}

// Loads the channels of the token before the first of a run; zeros if there is none.
template <typename T>
HL_DEVICE void LoadBefore(const TokenShiftShape<T>& shape, const Place<T>& place, bool aligned,
                          float (&x)[kPack<T>]) {
  const bool exists = place.begin > 0 || shape.tail != nullptr;
  const T* const from = place.begin > 0 ? shape.x + place.At(shape, place.begin - 1)
                                        : shape.tail + place.row * shape.dim + place.channel;
  Load(exists ? from : shape.x, exists ? place.count : 0, aligned, x);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    TokenShiftForwardKernel(TokenShiftShape<T> shape, TokenShiftResults<T> results, bool aligned) {
  constexpr int kW = kPack<T>;
  const Place<T> place(shape, kForwardRun);
  if (!place.exists) return;
  Mixes<T> mixes;
  LoadMixes(shape, place, aligned, mixes);
  float before[kW], x[kW], y[kW];
  LoadBefore(shape, place, aligned, before);
  for (int64_t token = place.begin; token < place.end; ++token) {
    const int64_t at = place.At(shape, token);
    const bool follows = Follows(shape, place.row, token);
    Load(shape.x + at, place.count, aligned, x);
#pragma unroll
    for (int i = 0; i < kTokenMixes; ++i) {
      if (i >= shape.num_mixes) continue;
#pragma unroll
      for (int c = 0; c < kW; ++c)
        y[c] = (1.0f - mixes[i][c]) * (follows ? before[c] : 0.0f) + mixes[i][c] * x[c];
      Store(results.out[i] + at, place.count, aligned, y);
    }
#pragma unroll
    for (int c = 0; c < kW; ++c) before[c] = x[c];
  }
}

// A thread processes its tokens and the one after them, which reads the last of them. dx of a token
// is complete once the next token has been read. partials is [runs, num_mixes, D].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TokenShiftBackwardKernel(TokenShiftShape<T> shape, TokenShiftGrads<T> grads, bool aligned,
                             float* partials) {
  constexpr int kW = kPack<T>;
  const Place<T> place(shape, cuda::kTokenShiftGradRun);
  if (!place.exists) return;
  Mixes<T> mixes, dmixes = {};
  LoadMixes(shape, place, aligned, mixes);
  // The part of the previous token's dx that comes from its own outputs.
  float before[kW], own[kW] = {};
  LoadBefore(shape, place, aligned, before);
  for (int64_t token = place.begin; token <= place.end; ++token) {
    const bool exists = token < shape.seq_len, within = token < place.end;
    const int64_t at = place.At(shape, token);
    const bool follows = exists && Follows(shape, place.row, token);
    float x[kW], next[kW] = {};
    Load(shape.x + (within ? at : 0), within ? place.count : 0, aligned, x);
#pragma unroll
    for (int i = 0; i < kTokenMixes; ++i) {
      if (i >= shape.num_mixes || !exists) continue;
      float d[kW];
      Load(grads.dout[i] + at, place.count, aligned, d);
#pragma unroll
      for (int c = 0; c < kW; ++c) {
        if (follows) own[c] += (1.0f - mixes[i][c]) * d[c];
        next[c] += mixes[i][c] * d[c];
        if (within) dmixes[i][c] += d[c] * (x[c] - (follows ? before[c] : 0.0f));
      }
    }
    if (token > place.begin) {
      Store(grads.dx + at - shape.dim, place.count, aligned, own);
    } else if (token == 0 && grads.dtail != nullptr) {
      Store(grads.dtail + place.row * shape.dim + place.channel, place.count, aligned, own);
    }
#pragma unroll
    for (int c = 0; c < kW; ++c) own[c] = next[c], before[c] = x[c];
  }
  float* const mine = partials + place.run * shape.num_mixes * shape.dim + place.channel;
#pragma unroll
  for (int i = 0; i < kTokenMixes; ++i)
    if (i < shape.num_mixes) StoreFloats(mine + i * shape.dim, place.count, aligned, dmixes[i]);
}

// Launch shape with one thread per run of `tokens` tokens and pack of channels.
template <typename T>
LaunchShape LaunchOf(const TokenShiftShape<T>& shape, int64_t tokens, const char* name) {
  const int64_t items = shape.batch * ((shape.seq_len + tokens - 1) / tokens) *
                        ((shape.dim + kPack<T> - 1) / kPack<T>);
  return {dim3(GridBlocks((items + kThreads - 1) / kThreads, name)), dim3(kThreads), 0, name};
}
template <typename T>
bool IsEmpty(const TokenShiftShape<T>& shape) {
  return shape.batch * shape.seq_len * shape.dim == 0;
}
template <typename T>
bool IsAligned(const TokenShiftShape<T>& shape) {
  return Aligned16<T>(shape.dim, shape.x, shape.tail, shape.mixes[0], shape.mixes[1],
                      shape.mixes[2]);
}

}  // namespace

namespace cuda {

template <typename T>
void TokenShiftForward(const TokenShiftShape<T>& shape, const TokenShiftResults<T>& results,
                       cudaStream_t stream) {
  if (IsEmpty(shape)) return;
  const bool aligned =
      IsAligned(shape) && Aligned16<T>(shape.dim, results.out[0], results.out[1], results.out[2]);
  Launch(LaunchOf(shape, kForwardRun, "token shift"), stream, TokenShiftForwardKernel<T>, shape,
         results, aligned);
}

template <typename T>
void TokenShiftBackward(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                        float* partials, cudaStream_t stream) {
  const bool aligned =
      IsAligned(shape) && Aligned16<T>(shape.dim, grads.dout[0], grads.dout[1], grads.dout[2],
                                       grads.dx, grads.dtail, partials);
  if (!IsEmpty(shape))
    Launch(LaunchOf(shape, cuda::kTokenShiftGradRun, "token shift's gradient"), stream,
           TokenShiftBackwardKernel<T>, shape, grads, aligned, partials);
  cuda::SumPlaces sums;
  for (int i = 0; i < shape.num_mixes; ++i)
    sums.places[i] = {grads.dmixes[i], shape.dim, grads.added[i]};
  cuda::SumPartials(partials, cuda::TokenShiftPartials(shape), sums, stream);
}

template void TokenShiftForward(const TokenShiftShape<float>&, const TokenShiftResults<float>&,
                                cudaStream_t);
template void TokenShiftForward(const TokenShiftShape<Bf16>&, const TokenShiftResults<Bf16>&,
                                cudaStream_t);
template void TokenShiftBackward(const TokenShiftShape<float>&, const TokenShiftGrads<float>&,
                                 float*, cudaStream_t);
template void TokenShiftBackward(const TokenShiftShape<Bf16>&, const TokenShiftGrads<Bf16>&, float*,
                                 cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
