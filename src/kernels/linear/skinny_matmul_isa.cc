// SkinnyMatmul's kernel, for AVX2 and AVX-512 only.
#include "kernels/linear/linear_products.h"

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/math.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/common/cpu/microkernel.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {
namespace {

constexpr int64_t kDepthStep = kLanes<float>;

// Loads the first `count` elements at x, followed by zeros.
HL_INLINE Vec<float> LoadWide(const float* x, int64_t count) {
  Vec<float> y = {};
  __builtin_memcpy(&y, x, sizeof(float) * count);
  return y;
}
HL_INLINE Vec<float> LoadWide(const Bf16* x, int64_t count) {
  typedef uint16_t Halves __attribute__((vector_size(HL_SIMD_BYTES / 2)));
  typedef uint32_t Words __attribute__((vector_size(HL_SIMD_BYTES)));
  Halves halves = {};
  __builtin_memcpy(&halves, x, sizeof(Bf16) * count);
  return (Vec<float>)(__builtin_convertvector(halves, Words) << 16);
}

// kRows x kColumns elements of the product. Each is a dot product with its own vector of sums.
// kPrefetch: prefetches the weight's rows of the next tile, which follow those of this one.
template <int kRows, int kColumns, bool kPrefetch, typename T>
HL_INLINE void DotTile(const SkinnyMatmulArgs<T>& args, int64_t row, int64_t column) {
  const int64_t depth = args.depth;
  const float* const a = args.a + row * depth;
  const T* const weight = args.weight + column * depth;
  Vec<float> sums[kRows][kColumns] = {};
  int64_t k = 0;
  const auto add = [&](int64_t count) HL_INLINE_LAMBDA {
    Vec<float> right[kColumns];
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) right[n] = LoadWide(weight + n * depth + k, count);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec<float> left = LoadWide(a + r * depth + k, count);
#pragma GCC unroll 8
      for (int n = 0; n < kColumns; ++n) sums[r][n] += left * right[n];
    }
  };
  for (; k + kDepthStep <= depth; k += kDepthStep) {
    if constexpr (kPrefetch) {  // The address may be behind the weight: that has no effect.
#pragma GCC unroll 8
      for (int n = 0; n < kColumns; ++n) __builtin_prefetch(weight + (kColumns + n) * depth + k);
    }
    add(kDepthStep);
  }
  if (k < depth) add(depth - k);
  float* const out = args.out + row * args.columns + column;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < kColumns; ++n) out[r * args.columns + n] = Sum<float>(sums[r][n]);
}

// Computes columns [begin, end) of kRows rows.
template <int kRows, int kColumns, bool kPrefetch, typename T>
void DotRows(const SkinnyMatmulArgs<T>& args, int64_t row, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + kColumns <= end; column += kColumns)
    DotTile<kRows, kColumns, kPrefetch>(args, row, column);
  for (; column < end; ++column) DotTile<kRows, 1, kPrefetch>(args, row, column);
}
// Multiplies groups of kRows rows and returns the first remaining row. The first group prefetches
// the block of the weight.
template <int kRows, int kColumns, typename T>
int64_t DotRowsFrom(const SkinnyMatmulArgs<T>& args, int64_t row, int64_t begin, int64_t end) {
  for (; row + kRows <= args.rows; row += kRows)
    row == 0 ? DotRows<kRows, kColumns, true>(args, row, begin, end)
             : DotRows<kRows, kColumns, false>(args, row, begin, end);
  return row;
}

// The tiles of 4 rows fill the registers: 24 sums of 32 registers, or 12 of 16. More rows and fewer
// columns are much slower, because rows that are a multiple of 1 KiB apart share few sets of the L1
// cache.
template <typename T>
void DotBlock(const SkinnyMatmulArgs<T>& args, int64_t begin, int64_t end) {
  constexpr int kColumnsOf4 = HL_SIMD_BYTES == 64 ? 6 : 3, kColumnsOf2 = kColumnsOf4 + 2;
  int64_t row = DotRowsFrom<4, kColumnsOf4>(args, 0, begin, end);
  row = DotRowsFrom<2, kColumnsOf2>(args, row, begin, end);
  DotRowsFrom<1, 8>(args, row, begin, end);
}

// A block of the weight stays in the L2 cache while all rows are multiplied with it.
constexpr int64_t kBlockElements = 48 * 1024;

template <typename T>
void MultiplyBlocks(const SkinnyMatmulArgs<T>& args) {
  const int64_t fitting = kBlockElements / args.depth / 24 * 24;
  const int64_t block = fitting > 24 ? fitting : 24;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < args.columns; begin += block)
    DotBlock(args, begin, begin + block < args.columns ? begin + block : args.columns);
}

}  // namespace

void SkinnyMatmul(const SkinnyMatmulArgs<float>& args) { MultiplyBlocks(args); }
void SkinnyMatmul(const SkinnyMatmulArgs<Bf16>& args) { MultiplyBlocks(args); }

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
