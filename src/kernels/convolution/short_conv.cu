#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/sum_partials.h"
#include "kernels/convolution/short_conv_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 128;
constexpr int64_t kForwardRun = 16;  // tokens that a thread processes in the forward

// Channels per thread: fewer with more taps, which need more registers.
template <typename T, int kTaps>
constexpr int kWidth = kTaps <= 4 ? kPack<T> : 4;

// The work of a thread: `width` channels from `channel` on, tokens [begin, end) of `row`.
struct Place {
  int64_t row, begin, end, channel, run;
  int count;  // number of its channels that exist
  bool exists;
};
template <typename T>
HL_DEVICE Place PlaceOf(const ConvShape<T>& shape, int64_t tokens, int width) {
  const int64_t groups = (shape.dim + width - 1) / width;
  const int64_t runs_per_row = (shape.seq_len + tokens - 1) / tokens;
  const int64_t item = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  Place place;
  place.run = item / groups;
  place.channel = (item - place.run * groups) * width;
  place.row = place.run / runs_per_row;
  place.begin = (place.run - place.row * runs_per_row) * tokens;
  place.end = min(shape.seq_len, place.begin + tokens);
  place.count = static_cast<int>(min(shape.dim - place.channel, static_cast<int64_t>(width)));
  place.exists = place.row < shape.batch;
  return place;
}

// Index i of the first dimension is the token i tokens back.
template <int kTaps, int kW>
struct Taps {
  float x[kTaps][kW];
  float weight[kTaps][kW];
  float bias[kW];  // not used without a bias
};

// Loads the inputs of token `token` of the thread's row. Negative tokens are those of the tail;
// without a tail they are zero.
template <typename T, int kW>
HL_DEVICE void LoadToken(const ConvShape<T>& shape, const Place& place, int64_t token, bool aligned,
                         float (&x)[kW]) {
  const int64_t most = shape.taps - 1;
  if (token >= 0) {
    Load(shape.x + (place.row * shape.seq_len + token) * shape.x_stride + place.channel,
         place.count, aligned, x);
  } else {
    const bool exists = shape.tail != nullptr && token >= -most;
    const int64_t at = (place.row * most + most + token) * shape.dim + place.channel;
    Load(exists ? shape.tail + at : shape.x, exists ? place.count : 0, aligned, x);
  }
}

// Loads the weights, the bias, and the inputs that the token before the run reads.
template <bool kBias, typename T, int kTaps, int kW>
HL_DEVICE void Begin(const ConvShape<T>& shape, const Place& place, bool aligned,
                     Taps<kTaps, kW>& taps) {
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    const float* const weight = shape.weight + place.channel * shape.taps + shape.taps - 1 - i;
#pragma unroll
    for (int c = 0; c < kW; ++c) {
      const bool exists = i < shape.taps && c < place.count;
      taps.weight[i][c] = exists ? weight[c * shape.taps] : 0.0f;
    }
    if (i + 1 < kTaps) LoadToken(shape, place, place.begin - 1 - i, aligned, taps.x[i]);
  }
  if constexpr (kBias) LoadFloats(shape.bias + place.channel, place.count, aligned, taps.bias);
}

// Return how many tokens back a token reads: FirstReach() for the first token of a run, by looking
// back; the other function for the following tokens, from the previous token's reach.
template <typename T>
HL_DEVICE int FirstReach(const ConvShape<T>& shape, int64_t row, int64_t token) {
  const int64_t* const documents = shape.documents;
  const int64_t begin = row * shape.seq_len, place = begin + token;
  const bool cut = shape.tail == nullptr || (documents != nullptr && shape.starts[begin]);
  int reach = 0;
  while (reach < shape.taps - 1) {
    const int64_t earlier = token - reach - 1;
    if (earlier < 0 && cut) break;
    if (earlier >= 0 && documents != nullptr && documents[begin + earlier] != documents[place])
      break;
    ++reach;
  }
  return reach;
}
template <typename T>
HL_DEVICE int NextReach(const ConvShape<T>& shape, int64_t row, int64_t token, int before) {
  const int64_t place = row * shape.seq_len + token;
  const int64_t* const documents = shape.documents;
  if (documents != nullptr && documents[place] != documents[place - 1]) return 0;
  return min(before + 1, static_cast<int>(shape.taps) - 1);
}

template <int kTaps, int kW>
HL_DEVICE void Shift(float (&x)[kTaps][kW]) {
#pragma unroll
  for (int i = kTaps - 1; i > 0; --i)
#pragma unroll
    for (int c = 0; c < kW; ++c) x[i][c] = x[i - 1][c];
}

// Skips taps beyond the reach instead of multiplying them by 0, so that a NaN of another document
// does not spread.
template <bool kBias, int kTaps, int kW>
HL_DEVICE void Sum(const Taps<kTaps, kW>& taps, int reach, float (&sum)[kW]) {
#pragma unroll
  for (int c = 0; c < kW; ++c) {
    sum[c] = taps.weight[0][c] * taps.x[0][c];
    if constexpr (kBias) sum[c] += taps.bias[c];
  }
#pragma unroll
  for (int i = 1; i < kTaps; ++i) {
    if (i > reach) continue;
#pragma unroll
    for (int c = 0; c < kW; ++c) sum[c] += taps.weight[i][c] * taps.x[i][c];
  }
}

template <typename T, int kTaps, bool kBias>
__global__ void __launch_bounds__(kThreads)
    ConvForwardKernel(ConvShape<T> shape, bool aligned, T* out) {
  constexpr int kW = kWidth<T, kTaps>;
  const Place place = PlaceOf(shape, kForwardRun, kW);
  if (!place.exists) return;
  Taps<kTaps, kW> taps;
  Begin<kBias>(shape, place, aligned, taps);
  int reach = 0;
  for (int64_t token = place.begin; token < place.end; ++token) {
    const int64_t at = place.row * shape.seq_len + token;
    reach = token == place.begin ? FirstReach(shape, place.row, token)
                                 : NextReach(shape, place.row, token, reach);
    Shift(taps.x);
    LoadToken(shape, place, token, aligned, taps.x[0]);
    float sum[kW];
    Sum<kBias>(taps, reach, sum);
    if (shape.silu) {
#pragma unroll
      for (int c = 0; c < kW; ++c) sum[c] *= Sigmoid(sum[c]);
    }
    Store(out + at * shape.dim + place.channel, place.count, aligned, sum);
  }
}

// Stores dx of token `token`, or dtail if the token is before the slice.
template <typename T, int kW>
HL_DEVICE void StoreInputGradient(const ConvShape<T>& shape, const ConvGrads<T>& grads,
                                  const Place& place, int64_t token, bool aligned,
                                  const float (&dx)[kW]) {
  const int64_t most = shape.taps - 1;
  if (token >= place.begin) {
    if (token < place.end)
      Store(grads.dx + (place.row * shape.seq_len + token) * grads.dx_stride + place.channel,
            place.count, aligned, dx);
  } else if (place.begin == 0 && grads.dtail != nullptr && token >= -most) {
    Store(grads.dtail + (place.row * most + most + token) * shape.dim + place.channel, place.count,
          aligned, dx);
  }
}

// Computes ds of a token from its dout.
template <bool kBias, typename T, int kTaps, int kW>
HL_DEVICE void SumGradient(const ConvShape<T>& shape, const Taps<kTaps, kW>& taps, int reach,
                           float (&ds)[kW]) {
  if (!shape.silu) return;
  float sum[kW];
  Sum<kBias>(taps, reach, sum);
#pragma unroll
  for (int c = 0; c < kW; ++c) {
    const float sigmoid = Sigmoid(sum[c]);
    ds[c] *= sigmoid * (1.0f + sum[c] * (1.0f - sigmoid));
  }
}

// A thread processes its tokens and the later ones that read them. `dx` holds the sums of the last
// kTaps tokens; the oldest is complete once the thread is kTaps - 1 tokens further.
template <typename T, int kTaps, bool kBias>
__global__ void __launch_bounds__(kThreads)
    ConvBackwardKernel(ConvShape<T> shape, ConvGrads<T> grads, bool aligned, float* partials) {
  constexpr int kW = kWidth<T, kTaps>;
  const Place place = PlaceOf(shape, cuda::kConvGradRun, kW);
  if (!place.exists) return;
  Taps<kTaps, kW> taps;
  Begin<kBias>(shape, place, aligned, taps);
  float dx[kTaps][kW] = {}, dweight[kTaps][kW] = {};
  [[maybe_unused]] float dbias[kW] = {};
  int reach = 0;
  for (int64_t token = place.begin; token < place.end + kTaps - 1; ++token) {
    Shift(dx);
#pragma unroll
    for (int c = 0; c < kW; ++c) dx[0][c] = 0;
    if (token < shape.seq_len) {
      const int64_t at = place.row * shape.seq_len + token;
      reach = token == place.begin ? FirstReach(shape, place.row, token)
                                   : NextReach(shape, place.row, token, reach);
      Shift(taps.x);
      LoadToken(shape, place, token, aligned, taps.x[0]);
      float ds[kW];
      Load(grads.dout + at * shape.dim + place.channel, place.count, aligned, ds);
      SumGradient<kBias>(shape, taps, reach, ds);
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        if (i > reach) continue;
#pragma unroll
        for (int c = 0; c < kW; ++c) dx[i][c] += taps.weight[i][c] * ds[c];
        if (token >= place.end) continue;  // belongs to another run
#pragma unroll
        for (int c = 0; c < kW; ++c) dweight[i][c] += ds[c] * taps.x[i][c];
      }
      if constexpr (kBias) {
        const bool own = token < place.end;
#pragma unroll
        for (int c = 0; c < kW; ++c) dbias[c] += own ? ds[c] : 0.0f;
      }
    }
    StoreInputGradient(shape, grads, place, token - (kTaps - 1), aligned, dx[kTaps - 1]);
  }
  const int64_t rows = shape.taps + (kBias ? 1 : 0);
  float* const mine = partials + place.run * rows * shape.dim + place.channel;
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (i < shape.taps) {
#pragma unroll
      for (int c = 0; c < kW; ++c)
        if (c < place.count) mine[(shape.taps - 1 - i) * shape.dim + c] = dweight[i][c];
    }
  }
  if constexpr (kBias) {
#pragma unroll
    for (int c = 0; c < kW; ++c)
      if (c < place.count) mine[shape.taps * shape.dim + c] = dbias[c];
  }
}

unsigned BlocksOf(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

// Returns the number of threads for runs of `tokens` tokens and `width` channels.
template <typename T>
int64_t ItemsOf(const ConvShape<T>& shape, int64_t tokens, int width) {
  return shape.batch * ((shape.seq_len + tokens - 1) / tokens) * ((shape.dim + width - 1) / width);
}

template <typename T>
void CheckTaps(const ConvShape<T>& shape) {
  HL_CHECK(shape.taps >= 1 && shape.taps <= kConvMaxTaps, "short convolution of ", shape.taps,
           " taps. Use 1 to ", kConvMaxTaps, ".");
}

template <typename T, int kTaps, bool kBias>
void RunForward(const ConvShape<T>& shape, T* out, cudaStream_t stream) {
  const int64_t items = ItemsOf(shape, kForwardRun, kWidth<T, kTaps>);
  const bool aligned = shape.x_stride % kPack<T> == 0 &&
                       Aligned16<T>(shape.dim, shape.x, shape.tail, shape.bias, out);
  if (items > 0)
    Launch({dim3(BlocksOf(items)), dim3(kThreads), 0, "short convolution"}, stream,
           ConvForwardKernel<T, kTaps, kBias>, shape, aligned, out);
}
template <typename T>
void Forward(const ConvShape<T>& shape, T* out, cudaStream_t stream) {
  CheckTaps(shape);
  if (shape.bias == nullptr) {
    shape.taps <= 4 ? RunForward<T, 4, false>(shape, out, stream)
                    : RunForward<T, 8, false>(shape, out, stream);
  } else {
    shape.taps <= 4 ? RunForward<T, 4, true>(shape, out, stream)
                    : RunForward<T, 8, true>(shape, out, stream);
  }
}

template <typename T, int kTaps, bool kBias>
void RunBackward(const ConvShape<T>& shape, const ConvGrads<T>& grads, float* workspace,
                 cudaStream_t stream) {
  const int64_t items = ItemsOf(shape, cuda::kConvGradRun, kWidth<T, kTaps>);
  const bool aligned =
      shape.x_stride % kPack<T> == 0 && grads.dx_stride % kPack<T> == 0 &&
      Aligned16<T>(shape.dim, shape.x, shape.tail, shape.bias, grads.dout, grads.dx, grads.dtail);
  if (items > 0)
    Launch({dim3(BlocksOf(items)), dim3(kThreads), 0, "short convolution's gradient"}, stream,
           ConvBackwardKernel<T, kTaps, kBias>, shape, grads, aligned, workspace);
}
template <typename T>
void Backward(const ConvShape<T>& shape, const ConvGrads<T>& grads, const ConvWeightGrads& weights,
              float* workspace, cudaStream_t stream) {
  CheckTaps(shape);
  if (shape.bias == nullptr) {
    shape.taps <= 4 ? RunBackward<T, 4, false>(shape, grads, workspace, stream)
                    : RunBackward<T, 8, false>(shape, grads, workspace, stream);
  } else {
    shape.taps <= 4 ? RunBackward<T, 4, true>(shape, grads, workspace, stream)
                    : RunBackward<T, 8, true>(shape, grads, workspace, stream);
  }
  const int64_t size = shape.gradient_rows() * shape.dim;
  if (size == 0) return;
  cuda::SumPlaces sums;
  sums.places[0] = {weights.dweight, shape.taps * shape.dim, weights.weight_added, shape.taps};
  if (shape.bias != nullptr) sums.places[1] = {weights.dbias, shape.dim, weights.bias_added};
  cuda::SumPartials(workspace, cuda::ConvWorkspaceFloats(shape) / size, sums, stream);
}

}  // namespace

namespace cuda {

void ConvForward(const ConvShape<float>& shape, float* out, cudaStream_t stream) {
  Forward(shape, out, stream);
}
void ConvForward(const ConvShape<Bf16>& shape, Bf16* out, cudaStream_t stream) {
  Forward(shape, out, stream);
}
void ConvBackward(const ConvShape<float>& shape, const ConvGrads<float>& grads,
                  const ConvWeightGrads& weights, float* workspace, cudaStream_t stream) {
  Backward(shape, grads, weights, workspace, stream);
}
void ConvBackward(const ConvShape<Bf16>& shape, const ConvGrads<Bf16>& grads,
                  const ConvWeightGrads& weights, float* workspace, cudaStream_t stream) {
  Backward(shape, grads, weights, workspace, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
