#include <algorithm>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/token_shift_args.h"

namespace halflife::kernels::cpu {
namespace {

// Tokens [begin, end) of one row.
struct Span {
  template <typename T>
  Span(const TokenShiftShape<T>& shape, int64_t block) {
    const int64_t blocks_per_row = TokenShiftBlocksPerRow(shape.seq_len);
    row = block / blocks_per_row;
    begin = block % blocks_per_row * kTokenShiftTokensPerBlock;
    end = std::min(shape.seq_len, begin + kTokenShiftTokensPerBlock);
  }
  int64_t row, begin, end;
};

// Returns true if there is a token before this one.
template <typename T>
HL_INLINE bool Follows(const TokenShiftShape<T>& shape, int64_t row, int64_t token) {
  if (shape.starts != nullptr && shape.starts[row * shape.seq_len + token]) return false;
  return token > 0 || shape.tail != nullptr;
}

template <typename T>
HL_INLINE const T* TokenBefore(const TokenShiftShape<T>& shape, int64_t row, int64_t token,
                               const T* zeros) {
  if (!Follows(shape, row, token)) return zeros;
  return token > 0 ? shape.x + (row * shape.seq_len + token - 1) * shape.dim
                   : shape.tail + row * shape.dim;
}

template <typename T>
HL_INLINE void MixToken(const T* __restrict x, const T* __restrict before,
                        const float* __restrict mix, T* __restrict out, int64_t dim) {
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c)
    out[c] = Narrow<T>((1.0f - mix[c]) * Widen(before[c]) + mix[c] * Widen(x[c]));
}

template <typename T>
HL_INLINE void ForwardLoop(const TokenShiftShape<T>& shape, const TokenShiftResults<T>& results,
                           int64_t block, const T* zeros) {
  const Span span(shape, block);
  for (int64_t token = span.begin; token < span.end; ++token) {
    const int64_t at = (span.row * shape.seq_len + token) * shape.dim;
    const T* const before = TokenBefore(shape, span.row, token, zeros);
    for (int i = 0; i < shape.num_mixes; ++i)
      MixToken(shape.x + at, before, shape.mixes[i], results.out[i] + at, shape.dim);
  }
}

// The rows of one token for one mix, including the gradient of the next token, which reads this
// one.
template <typename T>
struct GradRows {
  const T *x, *before, *dout, *dnext;
};

// Sets or adds to dx, and adds the token's contribution to dmix.
template <bool kFirst, typename T>
HL_INLINE void MixGradient(const GradRows<T>& rows, const float* __restrict mix,
                           float* __restrict dx, float* __restrict dmix, int64_t dim) {
  const T* __restrict x = rows.x;
  const T* __restrict before = rows.before;
  const T* __restrict dout = rows.dout;
  const T* __restrict dnext = rows.dnext;
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) {
    const float d = Widen(dout[c]), sum = mix[c] * d + (1.0f - mix[c]) * Widen(dnext[c]);
    dx[c] = kFirst ? sum : dx[c] + sum;
    dmix[c] += d * (Widen(x[c]) - Widen(before[c]));
  }
}

template <typename T>
HL_INLINE void NarrowRow(const float* __restrict from, T* __restrict to, int64_t dim) {
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) to[c] = Narrow<T>(from[c]);
}

// Computes the gradient of the token before a slice from that of the slice's first token.
template <typename T>
HL_INLINE void TailGradient(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                            int64_t row, T* __restrict dtail) {
  if (!Follows(shape, row, 0)) {
    std::fill(dtail, dtail + shape.dim, T{});
    return;
  }
  for (int64_t c = 0; c < shape.dim; ++c) {
    float sum = 0;
    for (int i = 0; i < shape.num_mixes; ++i)
      sum += (1.0f - shape.mixes[i][c]) * Widen(grads.dout[i][row * shape.seq_len * shape.dim + c]);
    dtail[c] = Narrow<T>(sum);
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                            int64_t block, const T* zeros, float* dmixes, float* scratch) {
  const Span span(shape, block);
  const int64_t dim = shape.dim;
  for (int64_t token = span.begin; token < span.end; ++token) {
    const int64_t at = (span.row * shape.seq_len + token) * dim;
    const bool read = token + 1 < shape.seq_len && Follows(shape, span.row, token + 1);
    for (int i = 0; i < shape.num_mixes; ++i) {
      const GradRows<T> rows = {shape.x + at, TokenBefore(shape, span.row, token, zeros),
                                grads.dout[i] + at, read ? grads.dout[i] + at + dim : zeros};
      if (i == 0) {
        MixGradient<true>(rows, shape.mixes[i], scratch, dmixes, dim);
      } else {
        MixGradient<false>(rows, shape.mixes[i], scratch, dmixes + i * dim, dim);
      }
    }
    NarrowRow(scratch, grads.dx + at, dim);
  }
  if (span.begin == 0 && grads.dtail != nullptr)
    TailGradient(shape, grads, span.row, grads.dtail + span.row * dim);
}

}  // namespace

template <typename T>
void TokenShiftForward(const TokenShiftShape<T>& shape, const TokenShiftResults<T>& results,
                       int64_t block, const T* zeros) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(shape, results, block, zeros); });
}
template <typename T>
void TokenShiftBackward(const TokenShiftShape<T>& shape, const TokenShiftGrads<T>& grads,
                        int64_t block, const T* zeros, float* dmixes, float* scratch) {
  RunVectorised(
      [&]() HL_LAMBDA_INLINE { BackwardLoop(shape, grads, block, zeros, dmixes, scratch); });
}

template void TokenShiftForward(const TokenShiftShape<float>&, const TokenShiftResults<float>&,
                                int64_t, const float*);
template void TokenShiftForward(const TokenShiftShape<Bf16>&, const TokenShiftResults<Bf16>&,
                                int64_t, const Bf16*);
template void TokenShiftBackward(const TokenShiftShape<float>&, const TokenShiftGrads<float>&,
                                 int64_t, const float*, float*, float*);
template void TokenShiftBackward(const TokenShiftShape<Bf16>&, const TokenShiftGrads<Bf16>&,
                                 int64_t, const Bf16*, float*, float*);

}  // namespace halflife::kernels::cpu
