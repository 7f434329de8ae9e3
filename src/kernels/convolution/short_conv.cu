#include <algorithm>
#include <type_traits>

#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/host_device.h"
#include "kernels/common/sum_partials.h"
#include "kernels/convolution/short_conv_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kThreads = 128;
constexpr int64_t kForwardRun = 16;  // tokens that a thread processes in the forward

// Tokens whose loads are in flight in the backward. Four would spill with more taps.
template <int kTaps>
constexpr int kAhead = kTaps <= 4 ? 4 : 2;

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

// For each part, whether its rows allow 16-byte accesses.
struct AlignedConvs {
  HL_EVERYWHERE bool Has(unsigned part) const { return (bits >> part & 1u) != 0; }
  unsigned bits = 0;
};

// Returns the part of the block. Not by a variable index, which would place the array in local
// memory. What all parts share is read from the first. A single part stays in constant memory: this
// saves about 20 registers.
template <bool kSeveral, typename Parts>
HL_DEVICE auto PartOfBlock(const Parts& args) {
  auto part = args.parts[0];
#pragma unroll
  for (int i = 1; kSeveral && i < kConvParts; ++i) {
    if (static_cast<int>(blockIdx.y) != i) continue;
    const auto shared = part.shape;
    part = args.parts[i];
    part.shape.batch = shared.batch, part.shape.seq_len = shared.seq_len;
    part.shape.taps = shared.taps;
    part.shape.documents = shared.documents, part.shape.starts = shared.starts;
  }
  return part;
}

// Grid: blocks of work x parts.
template <typename T, int kTaps, bool kBias, bool kSeveral>
__global__ void __launch_bounds__(kThreads)
    ConvForwardKernel(ConvParts<T> args, AlignedConvs schedule) {
  constexpr int kW = kWidth<T, kTaps>;
  const auto [shape, out] = PartOfBlock<kSeveral>(args);
  const bool aligned = schedule.Has(kSeveral ? blockIdx.y : 0);
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

// A thread's elements of a token as they are in memory: the load need not have arrived.
template <typename T, int kW>
struct RawToken {
  uint32_t words[kW * sizeof(T) / 4];
};
template <typename T, int kW>
HL_DEVICE void LoadRaw(const T* from, int count, bool aligned, RawToken<T, kW>& raw) {
  if constexpr (kW == kPack<T>) {
    if (aligned && count >= kW) {
      const uint4 packed = *reinterpret_cast<const uint4*>(from);
      raw.words[0] = packed.x, raw.words[1] = packed.y;
      raw.words[2] = packed.z, raw.words[3] = packed.w;
      return;
    }
  }
  constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kW; ++i) {
    const float x = i < count ? FromStorage(from[i]) : 0.0f;
    const uint32_t bits = __float_as_uint(x) >> (32 - 8 * sizeof(T));
    if (i % kInWord == 0) raw.words[i / kInWord] = 0;
    raw.words[i / kInWord] |= bits << (i % kInWord * 16);
  }
}
template <typename T, int kW>
HL_DEVICE void Unpack(const RawToken<T, kW>& raw, float (&x)[kW]) {
#pragma unroll
  for (int i = 0; i < kW; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = __uint_as_float(raw.words[i]);
    } else {
      x[i] = i % 2 == 0 ? UnpackLo(raw.words[i / 2]) : UnpackHi(raw.words[i / 2]);
    }
  }
}

// Returns for each of the `count` tokens from `begin` on whether it starts a document: bit i is
// token begin + i. Bit 0 is not set. Token begin + count - 1 must exist.
template <typename T>
HL_DEVICE uint64_t CutsOfRun(const ConvShape<T>& shape, int64_t row, int64_t begin, int count) {
  uint64_t cuts = 0;
  if (shape.documents == nullptr) return cuts;
  const int64_t* const documents = shape.documents + row * shape.seq_len + begin;
#pragma unroll 4
  for (int i = 1; i < count; ++i)
    cuts |= static_cast<uint64_t>(documents[i] != documents[i - 1]) << i;
  return cuts;
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

// Stores a run's sums for the gradients of the weights and the bias.
template <bool kBias, bool kSeveral, typename T, int kTaps, int kW>
HL_DEVICE void StoreRunSums(const ConvGradParts<T>& args, const ConvShape<T>& shape,
                            const Place& place, const float (&dweight)[kTaps][kW],
                            [[maybe_unused]] const float (&dbias)[kW], float* partials) {
  const int64_t rows = shape.taps + (kBias ? 1 : 0);
  int64_t before = 0, channels = kSeveral ? 0 : shape.dim;  // of the earlier parts, and of all
  for (int i = 0; kSeveral && i < args.num_parts; ++i) {
    before += i < static_cast<int>(blockIdx.y) ? args.parts[i].shape.dim : 0;
    channels += args.parts[i].shape.dim;
  }
  float* const mine = partials + rows * (place.run * channels + before) + place.channel;
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

// A thread processes its tokens and the later ones that read them. `dx` holds the sums of the last
// kTaps tokens; the oldest is complete once the thread is kTaps - 1 tokens further. x and dout are
// loaded kAhead tokens before they are used. Grid: blocks of work x parts. partials is [runs, sum
// over parts of gradient rows x D].
template <typename T, int kTaps, bool kBias, bool kSeveral>
__global__ void __launch_bounds__(kThreads)
    ConvBackwardKernel(ConvGradParts<T> args, AlignedConvs schedule, float* partials) {
  constexpr int kW = kWidth<T, kTaps>;
  const auto [shape, grads, weights] = PartOfBlock<kSeveral>(args);
  const bool aligned = schedule.Has(kSeveral ? blockIdx.y : 0);
  const Place place = PlaceOf(shape, cuda::kConvGradRun, kW);
  if (!place.exists) return;
  Taps<kTaps, kW> taps;
  Begin<kBias>(shape, place, aligned, taps);
  float dx[kTaps][kW] = {}, dweight[kTaps][kW] = {};
  [[maybe_unused]] float dbias[kW] = {};
  // Token numbers below count from the begin of the run.
  const auto of_run = static_cast<int>(place.end - place.begin), last = of_run + kTaps - 1,
             existing = static_cast<int>(min(place.end + kTaps - 1, shape.seq_len) - place.begin);
  const int64_t first = place.row * shape.seq_len + place.begin;
  static_assert(cuda::kConvGradRun + kTaps - 1 <= 64, "one bit per token of a run");
  const uint64_t cuts = CutsOfRun(shape, place.row, place.begin, existing);
  RawToken<T, kW> x[kAhead<kTaps>], dout[kAhead<kTaps>];
  const T* const x_of_run = shape.x + first * shape.x_stride + place.channel;
  const T* const dout_of_run = grads.dout + first * shape.dim + place.channel;
  const int64_t x_stride = shape.x_stride, dim = shape.dim;
  const auto load = [&](int token, RawToken<T, kW>& of_x, RawToken<T, kW>& of_dout) {
    if (token >= existing) return;
    LoadRaw(x_of_run + token * x_stride, place.count, aligned, of_x);
    LoadRaw(dout_of_run + token * dim, place.count, aligned, of_dout);
  };
#pragma unroll
  for (int i = 0; i < kAhead<kTaps>; ++i) load(i, x[i], dout[i]);
  int reach = FirstReach(shape, place.row, place.begin);
  for (int group = 0; group < last; group += kAhead<kTaps>) {
#pragma unroll
    for (int slot = 0; slot < kAhead<kTaps>; ++slot) {
      const int token = group + slot;
      if (token >= last) break;
      Shift(dx);
#pragma unroll
      for (int c = 0; c < kW; ++c) dx[0][c] = 0;
      if (token < existing) {
        if (token > 0)
          reach = (cuts >> token & 1) != 0 ? 0 : min(reach + 1, static_cast<int>(shape.taps) - 1);
        Shift(taps.x);
        Unpack(x[slot], taps.x[0]);
        float ds[kW];
        Unpack(dout[slot], ds);
        load(token + kAhead<kTaps>, x[slot], dout[slot]);
        SumGradient<kBias>(shape, taps, reach, ds);
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
          if (i > reach) continue;
#pragma unroll
          for (int c = 0; c < kW; ++c) dx[i][c] += taps.weight[i][c] * ds[c];
          if (token >= of_run) continue;  // belongs to another run
#pragma unroll
          for (int c = 0; c < kW; ++c) dweight[i][c] += ds[c] * taps.x[i][c];
        }
        if constexpr (kBias) {
          const bool own = token < of_run;
#pragma unroll
          for (int c = 0; c < kW; ++c) dbias[c] += own ? ds[c] : 0.0f;
        }
      }
      StoreInputGradient(shape, grads, place, place.begin + token - (kTaps - 1), aligned,
                         dx[kTaps - 1]);
    }
  }
  StoreRunSums<kBias, kSeveral>(args, shape, place, dweight, dbias, partials);
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

// Calls run(taps, bias, several) with the maximum taps, whether there is a bias and whether there
// are several parts, as constants.
template <typename Parts, typename Run>
void ForTaps(const Parts& args, const Run& run) {
  HL_CHECK(args.num_parts >= 1 && args.num_parts <= kConvParts, args.num_parts,
           " short convolutions in one launch. Use 1 to ", kConvParts, ".");
  for (int i = 0; i < args.num_parts; ++i) CheckTaps(args.parts[i].shape);
  const bool few = args.parts[0].shape.taps <= 4, bias = args.parts[0].shape.bias != nullptr;
  const auto with_taps = [&](auto has_bias, auto several) {
    few ? run(std::integral_constant<int, 4>(), has_bias, several)
        : run(std::integral_constant<int, 8>(), has_bias, several);
  };
  if (args.num_parts > 1) {
    HL_CHECK(!bias, "several short convolutions with a bias. Launch them one by one.");
    with_taps(std::false_type(), std::true_type());
  } else if (bias) {
    with_taps(std::true_type(), std::false_type());
  } else {
    with_taps(std::false_type(), std::false_type());
  }
}

// Returns the largest number of threads that a part needs.
template <typename T, typename Parts>
int64_t MostItems(const Parts& args, int64_t tokens, int width) {
  int64_t most = 0;
  for (int i = 0; i < args.num_parts; ++i)
    most = std::max(most, ItemsOf<T>(args.parts[i].shape, tokens, width));
  return most;
}

}  // namespace

namespace cuda {

template <typename T>
void ConvForward(const ConvParts<T>& args, cudaStream_t stream) {
  AlignedConvs schedule;
  for (int i = 0; i < args.num_parts; ++i) {
    const ConvShape<T>& shape = args.parts[i].shape;
    if (shape.x_stride % kPack<T> == 0 &&
        Aligned16<T>(shape.dim, shape.x, shape.tail, shape.bias, args.parts[i].out))
      schedule.bits |= 1u << i;
  }
  ForTaps(args, [&](auto taps, auto bias, auto several) {
    const int64_t items = MostItems<T>(args, kForwardRun, kWidth<T, decltype(taps)::value>);
    if (items == 0) return;
    Launch({dim3(BlocksOf(items), static_cast<unsigned>(args.num_parts)), dim3(kThreads), 0,
            "short convolution"},
           stream,
           ConvForwardKernel<T, decltype(taps)::value, decltype(bias)::value,
                             decltype(several)::value>,
           args, schedule);
  });
}

template <typename T>
void ConvBackward(const ConvGradParts<T>& args, float* workspace, cudaStream_t stream) {
  AlignedConvs schedule;
  cuda::SumPlaces sums;
  int64_t columns = 0;
  for (int i = 0; i < args.num_parts; ++i) {
    const auto& [shape, grads, weights] = args.parts[i];
    if (shape.x_stride % kPack<T> == 0 && grads.dx_stride % kPack<T> == 0 &&
        Aligned16<T>(shape.dim, shape.x, shape.tail, shape.bias, grads.dout, grads.dx, grads.dtail))
      schedule.bits |= 1u << i;
    SumPlace<float>* const places = sums.places + 2 * i;
    places[0] = {weights.dweight, shape.taps * shape.dim, weights.weight_added, shape.taps};
    if (shape.bias != nullptr) places[1] = {weights.dbias, shape.dim, weights.bias_added};
    columns += shape.gradient_rows() * shape.dim;
  }
  ForTaps(args, [&](auto taps, auto bias, auto several) {
    const int64_t items = MostItems<T>(args, cuda::kConvGradRun, kWidth<T, decltype(taps)::value>);
    if (items == 0) return;
    Launch({dim3(BlocksOf(items), static_cast<unsigned>(args.num_parts)), dim3(kThreads), 0,
            "short convolution's gradient"},
           stream,
           ConvBackwardKernel<T, decltype(taps)::value, decltype(bias)::value,
                              decltype(several)::value>,
           args, schedule, workspace);
  });
  if (columns > 0)
    cuda::SumPartials(workspace, cuda::ConvWorkspaceFloats(args) / columns, sums, stream);
}

template void ConvForward(const ConvParts<float>&, cudaStream_t);
template void ConvForward(const ConvParts<Bf16>&, cudaStream_t);
template void ConvBackward(const ConvGradParts<float>&, float*, cudaStream_t);
template void ConvBackward(const ConvGradParts<Bf16>&, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
