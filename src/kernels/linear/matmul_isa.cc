// Matmul's kernel, for AVX2 and AVX-512 only.
#include "kernels/linear/linear_products.h"

#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/math.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/common/cpu/microkernel.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {
namespace {

// 24 accumulators out of 32 registers, or 12 out of 16.
using MatmulTile = TileOf<float, HL_SIMD_BYTES == 64 ? 12 : 6, 2>;
constexpr int64_t kRows = MatmulTile::kRows, kColumns = MatmulTile::kColumns;
// Sized so that a panel of B (16 KiB) stays in the L1 cache and a block of A (at most 240 KiB) in
// the L2 cache.
constexpr int64_t kDepth = HL_SIMD_BYTES == 64 ? 128 : 256, kBlockRows = 240;

constexpr int64_t Min(int64_t x, int64_t y) { return x < y ? x : y; }
constexpr int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Packs the columns from `column` on as a panel [depth, kColumns], with zeros after the last
// column.
void PackPanel(const MatmulRight& right, int64_t column, float* panel) {
  const int64_t width = Min(kColumns, right.columns - column);
  const int64_t by_depth = right.transposed ? 1 : right.columns,
                by_column = right.transposed ? right.depth : 1;
  for (int64_t k = 0; k < right.depth; ++k) {
    const float* const from = right.b + k * by_depth + column * by_column;
    for (int64_t j = 0; j < kColumns; ++j)
      panel[k * kColumns + j] = j < width ? from[j * by_column] : 0.0f;
  }
}

// Rows of A and of the result, at their strides.
struct Strip {
  const float* a;
  int64_t a_stride;
  float* out;
  int64_t out_stride;
};

HL_INLINE void MultiplyStrip(const Strip& strip, const float* panel, int depth, bool add) {
  RowsAhead nothing_ahead;
  MatmulTile tile(nothing_ahead);
  if (add) {
    tile.ForEach([&](Vec<float>& sum, int r, int j) HL_INLINE_LAMBDA {
      sum = LoadUnaligned(strip.out + r * strip.out_stride + j);
    });
  } else {
    tile.Clear();
  }
  tile.MultiplyAddRows(strip.a, strip.a_stride, panel, depth);
  tile.ForEach([&](Vec<float>& sum, int r, int j)
                   HL_INLINE_LAMBDA { StoreUnaligned(strip.out + r * strip.out_stride + j, sum); });
}

// Multiplies an incomplete strip at the end of the rows or columns, by copying it to and from a
// complete one.
void MultiplyEdge(const Strip& strip, int64_t rows, int64_t columns, const float* panel, int depth,
                  bool add) {
  float a[kRows * kDepth] = {}, out[kRows * kColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(a + r * kDepth, strip.a + r * strip.a_stride, sizeof(float) * depth);
    if (add)
      __builtin_memcpy(out + r * kColumns, strip.out + r * strip.out_stride,
                       sizeof(float) * columns);
  }
  MultiplyStrip({a, kDepth, out, kColumns}, panel, depth, add);
  for (int64_t r = 0; r < rows; ++r)
    __builtin_memcpy(strip.out + r * strip.out_stride, out + r * kColumns, sizeof(float) * columns);
}

void MultiplyBlock(const MatmulArgs& args, int64_t begin, int64_t end) {
  for (int64_t k = 0; k < args.depth; k += kDepth) {
    const int depth = static_cast<int>(Min(kDepth, args.depth - k));
    const bool add = args.add || k > 0;
    for (int64_t column = 0; column < args.columns; column += kColumns) {
      const float* const panel = args.panels + column * args.depth + k * kColumns;
      const int64_t width = Min(kColumns, args.columns - column);
      for (int64_t row = begin; row < end; row += kRows) {
        const Strip strip = {args.a + row * args.depth + k, args.depth,
                             args.out + row * args.columns + column, args.columns};
        if (end - row >= kRows && width == kColumns) {
          MultiplyStrip(strip, panel, depth, add);
        } else {
          MultiplyEdge(strip, Min(kRows, end - row), width, panel, depth, add);
        }
      }
    }
  }
}

}  // namespace

int64_t MatmulPanelFloats(const MatmulRight& right) {
  return CeilDiv(right.columns, kColumns) * kColumns * right.depth;
}

void PackMatmulRight(const MatmulRight& right, float* panels) {
#pragma omp parallel for schedule(static)
  for (int64_t column = 0; column < right.columns; column += kColumns)
    PackPanel(right, column, panels + column * right.depth);
}

void Matmul(const MatmulArgs& args) {
  // Uses as many blocks, of about equal size, as keep all threads busy.
  const int64_t threads = omp_get_max_threads();
  const int64_t blocks = CeilDiv(CeilDiv(args.rows, kBlockRows), threads) * threads;
  const int64_t block_rows = CeilDiv(CeilDiv(args.rows, blocks), kRows) * kRows;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < args.rows; begin += block_rows)
    MultiplyBlock(args, begin, Min(args.rows, begin + block_rows));
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
