#include <algorithm>
#include <bit>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/convolution/short_conv_args.h"

namespace halflife::kernels::cpu {
namespace {

// Returns the inputs of token `token` of row `row`, counted from the slice's start. Negative tokens
// are those of the tail.
template <typename T>
HL_INLINE const T* InputsAt(const ConvShape<T>& shape, int64_t row, int64_t token) {
  if (token >= 0) return shape.x + (row * shape.seq_len + token) * shape.x_stride;
  return shape.tail + (row * (shape.taps - 1) + shape.taps - 1 + token) * shape.dim;
}

// Calls run.operator()<count>() for a count of 1 to 8, because loops over a constant number of taps
// are unrolled.
template <typename Run>
HL_INLINE void WithCount(int64_t count, const Run& run) {
  switch (count) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 3:
      return run.template operator()<3>();
    case 4:
      return run.template operator()<4>();
    case 5:
      return run.template operator()<5>();
    case 6:
      return run.template operator()<6>();
    case 7:
      return run.template operator()<7>();
    default:
      return run.template operator()<8>();
  }
}

// Calls run.operator()<silu>(), so that the loops over channels have no branches.
template <typename Run>
HL_INLINE void WithActivation(bool silu, const Run& run) {
  silu ? run.template operator()<true>() : run.template operator()<false>();
}

// The taps of one token that reads kCount tokens, the last of which is itself: the inputs and
// weights of the taps, and the bias that the sum starts with.
template <typename T, int kCount>
struct Taps {
  HL_INLINE Taps(const ConvShape<T>& shape, int64_t row, int64_t token) {
    for (int i = 0; i < kCount; ++i) {
      input[i] = InputsAt(shape, row, token - (kCount - 1) + i);
      weight[i] = shape.weight + (shape.taps - kCount + i) * shape.dim;
    }
    // Without a bias, a mask turns a weight into 0. Separate loops would double the compile time.
    const bool has_bias = shape.bias != nullptr;
    bias = has_bias ? shape.bias : shape.weight;
    bias_mask = has_bias ? ~uint32_t{0} : 0;
  }
  HL_INLINE float Sum(int64_t channel) const {
    float sum = std::bit_cast<float>(std::bit_cast<uint32_t>(bias[channel]) & bias_mask);
    for (int i = 0; i < kCount; ++i) sum += weight[i][channel] * Widen(input[i][channel]);
    return sum;
  }
  const T* input[kCount];
  const float* weight[kCount];
  const float* bias;
  uint32_t bias_mask;
};

template <bool kSilu, typename T, int kCount>
HL_INLINE void ForwardToken(const ConvShape<T>& shape, int64_t row, int64_t token,
                            T* __restrict out) {
  const Taps<T, kCount> taps(shape, row, token);
#pragma omp simd
  for (int64_t c = 0; c < shape.dim; ++c) {
    const float sum = taps.Sum(c);
    out[c] = Narrow<T>(kSilu ? sum * Sigmoid(sum) : sum);
  }
}

template <bool kSilu, typename T>
HL_INLINE void ForwardLoop(const ConvShape<T>& shape, int64_t block, T* out) {
  const int64_t blocks_per_row = ConvBlocksPerRow(shape.seq_len);
  const int64_t row = block / blocks_per_row;
  const int64_t begin = block % blocks_per_row * kConvTokensPerBlock;
  const int64_t end = std::min(shape.seq_len, begin + kConvTokensPerBlock);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t place = row * shape.seq_len + token;
    WithCount(shape.reach[place] + 1, [&]<int kCount>() HL_LAMBDA_INLINE {
      ForwardToken<kSilu, T, kCount>(shape, row, token, out + place * shape.dim);
    });
  }
}

// Computes ds = dout silu'(sum), or dout, and adds ds times the tap's input to dweight[tap].
template <bool kSilu, typename T, int kCount>
HL_INLINE void SumGradient(const ConvShape<T>& shape, int64_t row, int64_t token,
                           const T* __restrict dout, float* __restrict ds,
                           float* __restrict dweight) {
  const Taps<T, kCount> taps(shape, row, token);
  float* __restrict dw = dweight + (shape.taps - kCount) * shape.dim;
  const int64_t dim = shape.dim;
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) {
    float gradient = Widen(dout[c]);
    if constexpr (kSilu) {
      const float sum = taps.Sum(c), sigmoid = Sigmoid(sum);
      gradient *= sigmoid * (1.0f + sum * (1.0f - sigmoid));
    }
    ds[c] = gradient;
    for (int i = 0; i < kCount; ++i) dw[i * dim + c] += gradient * Widen(taps.input[i][c]);
  }
}

// Computes dx of a token that kCount tokens read, the first of them `skip` steps after it: the sum
// of weight ds over them.
template <typename T, int kCount>
HL_INLINE void InputGradient(const float* __restrict weight, const float* __restrict ds,
                             int64_t dim, T* __restrict dx) {
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) {
    float sum = 0;
    for (int i = 0; i < kCount; ++i) sum += weight[c - i * dim] * ds[i * dim + c];
    dx[c] = Narrow<T>(sum);
  }
}

// Adds the rows of x [count, dim] to sum.
HL_INLINE void AddRows(const float* __restrict x, int64_t count, int64_t dim,
                       float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) {
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) sum[c] += x[i * dim + c];
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const ConvShape<T>& shape, const ConvGrads<T>& grads, int64_t block,
                            float* dweight, float* scratch) {
  const int64_t dim = shape.dim, taps = shape.taps, seq_len = shape.seq_len;
  const int64_t blocks_per_row = ConvBlocksPerRow(shape.seq_len);
  const int64_t row = block / blocks_per_row;
  const int64_t begin = block % blocks_per_row * kConvTokensPerBlock;
  const int64_t end = std::min(seq_len, begin + kConvTokensPerBlock);
  const int64_t halo_end = std::min(seq_len, end + taps - 1);
  const uint8_t* reach = shape.reach + row * seq_len;
  const T* dout = grads.dout + row * seq_len * dim;
  // The weight gradients of the next block's tokens belong to that block and are discarded here.
  // Separate loops without them would add a third to the compile time.
  float* const discarded = scratch + (kConvTokensPerBlock + kConvMaxTaps) * dim;
  WithActivation(shape.silu, [&]<bool kSilu>() HL_LAMBDA_INLINE {
    for (int64_t token = begin; token < halo_end; ++token) {
      float* ds = scratch + (token - begin) * dim;
      WithCount(reach[token] + 1, [&]<int kCount>() HL_LAMBDA_INLINE {
        SumGradient<kSilu, T, kCount>(shape, row, token, dout + token * dim, ds,
                                      token < end ? dweight : discarded);
      });
    }
  });
  if (shape.bias != nullptr) AddRows(scratch, end - begin, dim, dweight + taps * dim);
  // The readers of `token` are consecutive. They begin at `first`, which is the token itself or the
  // slice's first token, and end before the first token whose reach is too short.
  const auto gradient = [&](int64_t token, T* dx) HL_LAMBDA_INLINE {
    const int64_t first = std::max<int64_t>(token, 0);
    int64_t last = first;
    while (last < std::min(seq_len, token + taps) && last - reach[last] <= token) ++last;
    if (last == first) {
      std::fill(dx, dx + dim, T{});
      return;
    }
    const float* weight = shape.weight + (taps - 1 - (first - token)) * dim;
    WithCount(last - first, [&]<int kCount>() HL_LAMBDA_INLINE {
      InputGradient<T, kCount>(weight, scratch + (first - begin) * dim, dim, dx);
    });
  };
  for (int64_t token = begin; token < end; ++token)
    gradient(token, grads.dx + (row * seq_len + token) * grads.dx_stride);
  if (begin > 0 || grads.dtail == nullptr) return;
  for (int64_t i = 0; i < taps - 1; ++i)
    gradient(i - (taps - 1), grads.dtail + (row * (taps - 1) + i) * dim);
}

}  // namespace

void FillReach(const ConvReach& args) {
  const int64_t most = args.taps - 1;
  for (int64_t row = 0; row < args.batch; ++row) {
    const int64_t begin = row * args.seq_len;
    const bool cut = !args.has_tail || (args.documents != nullptr && args.starts[begin]);
    int64_t count = cut ? 0 : most;
    for (int64_t place = begin; place < begin + args.seq_len; ++place) {
      if (place > begin) count = std::min(most, count + 1);
      const bool starts = place > begin && args.documents != nullptr &&
                          args.documents[place] != args.documents[place - 1];
      if (starts) count = 0;
      args.reach[place] = static_cast<uint8_t>(count);
    }
  }
}

template <typename T>
void ConvForward(const ConvShape<T>& shape, int64_t block, T* out) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    WithActivation(shape.silu,
                   [&]<bool kSilu>() HL_LAMBDA_INLINE { ForwardLoop<kSilu>(shape, block, out); });
  });
}
template <typename T>
void ConvBackward(const ConvShape<T>& shape, const ConvGrads<T>& grads, int64_t block,
                  float* dweight, float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(shape, grads, block, dweight, scratch); });
}

template void ConvForward(const ConvShape<float>&, int64_t, float*);
template void ConvForward(const ConvShape<Bf16>&, int64_t, Bf16*);
template void ConvBackward(const ConvShape<float>&, const ConvGrads<float>&, int64_t, float*,
                           float*);
template void ConvBackward(const ConvShape<Bf16>&, const ConvGrads<Bf16>&, int64_t, float*, float*);

}  // namespace halflife::kernels::cpu
