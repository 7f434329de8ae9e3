// The weight gradient's kernel, for AVX2 and AVX-512 only.
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

// 24 accumulators out of 32 registers, or 12 out of 16. With fewer rows, a product would read more
// operands.
using GradientTile = TileOf<float, HL_SIMD_BYTES == 64 ? 12 : 6, 2>;
constexpr int64_t kStrip = GradientTile::kRows;
// Tokens of a block: a strip of dY and a panel of X together use 22 KiB of the L1 cache.
constexpr int kTokens = 128;
// Maximum size of a part of dW: with its operands 0.9 MB, for an L2 cache of 1 to 2 MiB.
constexpr int64_t kMaxPartRows = 480, kMaxPartColumns = 256;

constexpr int64_t Min(int64_t x, int64_t y) { return x < y ? x : y; }
constexpr int64_t Max(int64_t x, int64_t y) { return x > y ? x : y; }
constexpr int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t RoundUp(int64_t x, int64_t multiple) { return CeilDiv(x, multiple) * multiple; }

// dW divided into parts of about equal size, each computed by one thread.
struct Parts {
  int64_t rows, columns;  // size of a part, in whole strips and panels
  int64_t across, count;

  // Makes at most at_most_down x at_most_across parts; rounding up to whole strips and panels may
  // need fewer.
  Parts(const WeightGradientArgs& args, int64_t at_most_down, int64_t at_most_across)
      : rows(RoundUp(CeilDiv(args.out_features, at_most_down), kStrip)),
        columns(RoundUp(CeilDiv(args.in_features, at_most_across), kPanel)),
        across(CeilDiv(args.in_features, columns)),
        count(CeilDiv(args.out_features, rows) * across) {}
  // Returns the multiply-adds per token and thread. Packing one element takes the time of 13.
  int64_t Cost(int64_t num_threads) const {
    return CeilDiv(count, num_threads) * (rows * columns + 13 * (rows + columns));
  }
  int num_threads() const { return static_cast<int>(Min(count, omp_get_max_threads())); }
  int64_t workspace_floats() const { return kTokens * (rows + columns) + rows * columns; }
};

// Returns the cheapest division for the available threads: for each number of parts across, as many
// parts down as give no thread a second part.
Parts CutForThreads(const WeightGradientArgs& args) {
  const int64_t num_threads = omp_get_max_threads();
  const int64_t min_down = CeilDiv(args.out_features, kMaxPartRows),
                min_across = CeilDiv(args.in_features, kMaxPartColumns),
                max_across = Max(min_across, Min(num_threads, CeilDiv(args.in_features, kPanel)));
  Parts best(args, min_down, min_across);
  for (int64_t across = min_across; across <= max_across; ++across) {
    const Parts parts(args, Max(min_down, num_threads / across), across);
    if (parts.Cost(num_threads) < best.Cost(num_threads)) best = parts;
  }
  return best;
}

void Copy(const float* from, int64_t count, float* to) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Columns [first, first + width) of one operand.
struct Columns {
  const float* data;
  int64_t stride, first, width;

  const float* Row(int64_t token) const { return data + token * stride + first; }
  void FetchAhead(RowsAhead& ahead, int64_t token, int count) const {
    ahead.Add(reinterpret_cast<const std::byte*>(Row(token)), stride * 4, count, width * 4);
  }
  // Packs to [width / kWidth, kTokens, kWidth]. Elements beyond `width` are not written; they only
  // contribute to sums that are discarded.
  template <int kWidth>
  void Pack(int64_t token, int count, float* to) const {
    for (int64_t column = 0; column < width; column += kWidth, to += kTokens * kWidth) {
      const float* from = Row(token) + column;
      if (width - column >= kWidth) {
        for (int t = 0; t < count; ++t)
          __builtin_memcpy(to + t * kWidth, from + t * stride, kWidth * sizeof(float));
      } else {
        for (int t = 0; t < count; ++t) Copy(from + t * stride, width - column, to + t * kWidth);
      }
    }
  }
};

// Computes the part of dW that begins at (row, column).
void WeightGradientPart(const WeightGradientArgs& args, const Parts& parts, int64_t row,
                        int64_t column, float* workspace) {
  const Columns dy = {args.dy, args.out_features, row, Min(parts.rows, args.out_features - row)};
  const Columns x = {args.x, args.in_features, column,
                     Min(parts.columns, args.in_features - column)};
  float* const strips = workspace;
  float* const panels = strips + kTokens * parts.rows;
  float* const sums = panels + kTokens * parts.columns;  // [panels, rows, kPanel]
  RowsAhead ahead;
  for (int64_t token = 0; token < args.num_tokens; token += kTokens) {
    const int count = static_cast<int>(Min(kTokens, args.num_tokens - token));
    const int next = static_cast<int>(Min(kTokens, args.num_tokens - token - count));
    dy.Pack<kStrip>(token, count, strips);
    x.Pack<kPanel>(token, count, panels);
    ahead.Begin(count * CeilDiv(dy.width, kStrip) * CeilDiv(x.width, GradientTile::kColumns));
    if (next > 0) {
      dy.FetchAhead(ahead, token + count, next);
      x.FetchAhead(ahead, token + count, next);
    }
    for (int64_t c = 0; c < x.width; c += GradientTile::kColumns)
      for (int64_t r = 0; r < dy.width; r += kStrip) {
        GradientTile tile(ahead);
        tile.Clear();
        const int64_t panel = c / kPanel * kPanel, offset = c % kPanel;
        tile.MultiplyAddStrip(strips + r * kTokens, panels + panel * kTokens + offset, count);
        float* const base = sums + panel * parts.rows + r * kPanel + offset;
        tile.ForEach([&](Vec<float>& sum, int i, int j) HL_INLINE_LAMBDA {
          float* const to = base + i * kPanel + j;
          At(to) = token == 0 ? sum : At(to) + sum;
        });
      }
  }
  for (int64_t c = 0; c < x.width; c += kPanel)
    for (int64_t r = 0; r < dy.width; ++r)
      Copy(sums + c * parts.rows + r * kPanel, Min(kPanel, x.width - c),
           args.dweight + (row + r) * args.in_features + column + c);
}

}  // namespace

int64_t WeightGradientWorkspaceFloats(const WeightGradientArgs& args) {
  const Parts parts = CutForThreads(args);
  return parts.num_threads() * parts.workspace_floats();
}

void WeightGradient(const WeightGradientArgs& args) {
  const Parts parts = CutForThreads(args);
  const int64_t stride = parts.workspace_floats();
#pragma omp parallel for schedule(static) num_threads(parts.num_threads())
  for (int64_t i = 0; i < parts.count; ++i)
    WeightGradientPart(args, parts, i / parts.across * parts.rows, i % parts.across * parts.columns,
                       args.workspace + stride * omp_get_thread_num());
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
