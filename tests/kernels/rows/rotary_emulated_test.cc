// The emulated CUDA kernel of rotary embeddings equals the formula in fp64.
#include "kernels/rows/rotary_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Case {
  int64_t num_tokens, num_heads, half;
  int64_t num_other_heads = 0;  // Heads of a second tensor that is rotated in the same pass.
  int shift = 0;                // Elements by which every array is misaligned.
  int64_t gap = 0;              // Elements between the heads of a token and those of the next.
};
constexpr int64_t kTableRows = 7;

// Halves of less than a pack, whole packs and an odd end; more than a block; gaps between tokens of
// whole and partial packs.
constexpr Case kCases[] = {{0, 2, 8},           {5, 3, 1},         {9, 2, 6, 1},    {9, 2, 8, 2},
                           {33, 3, 32, 0},      {4, 1, 33, 2},     {9, 2, 8, 1, 1}, {20, 16, 64, 4},
                           {9, 2, 8, 1, 0, 16}, {9, 2, 8, 1, 0, 3}};

template <typename T>
using RotaryKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(RotaryKernel, test::Storages);

// The inputs and outputs for one tensor of a case.
template <typename T>
struct Heads {
  Heads(const Case& c, int64_t heads, uint64_t seed)
      : num_heads(heads),
        stride(heads * 2 * c.half + c.gap),
        x(Random(c.num_tokens * stride, seed), c.shift),
        out(c.num_tokens * heads * 2 * c.half, c.shift) {}
  RotaryHeads<T> args() {
    return {.x = x.data(), .x_stride = stride, .out = out.data(), .num_heads = num_heads};
  }
  void ExpectTurned(const Case& c, const std::vector<int64_t>& rows, const Values& cosines,
                    const Values& sines, float direction) const {
    const Values in = x.values();
    Values want(c.num_tokens * num_heads * 2 * c.half);
    for (int64_t token = 0; token < c.num_tokens; ++token) {
      for (int64_t i = 0; i < num_heads * c.half; ++i) {
        const int64_t within = i / c.half * 2 * c.half + i % c.half;
        const int64_t from = token * stride + within, place = rows[token] * c.half + i % c.half;
        const int64_t to = token * num_heads * 2 * c.half + within;
        const double s = direction * sines[place];
        want[to] = in[from] * cosines[place] - in[from + c.half] * s;
        want[to + c.half] = in[from + c.half] * cosines[place] + in[from] * s;
      }
    }
    test::ExpectClose<T>("out", out.values(), want, 2 * 0x1p-23);
  }

  int64_t num_heads, stride;
  Array<T> x, out;
};

// A sum of two products, each of at most the largest element: two roundings of 2^-24.
TYPED_TEST(RotaryKernel, EqualsTheFormulaInFp64) {
  using T = TypeParam;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message()
                 << c.num_tokens << " x " << c.num_heads << " + " << c.num_other_heads << " x 2 x "
                 << c.half << ", shift " << c.shift << ", gap " << c.gap);
    const Values angles = Random(kTableRows * c.half, 2, 3.0);
    Values cosines, sines;
    for (size_t i = 0; i < angles.size(); ++i) {
      const double scale = i % 3 == 0 ? 1 : std::exp(-0.3 * static_cast<double>(i % 5));  // xPos
      cosines.push_back(scale * std::cos(angles[i]));
      sines.push_back(scale * std::sin(angles[i]));
    }
    const Array<float> cos(cosines, c.shift), sin(sines, c.shift);
    cosines = cos.values(), sines = sin.values();
    std::vector<int64_t> rows(c.num_tokens);
    for (int64_t t = 0; t < c.num_tokens; ++t) rows[t] = (3 * t + 1) % kTableRows;
    for (const float direction : {1.0f, -1.0f}) {
      Heads<T> q(c, c.num_heads, 1), k(c, c.num_other_heads, 4);
      cuda::Rotate(RotaryTokens<T>{.heads = {q.args(), k.args()},
                                   .cos = cos.data(),
                                   .sin = sin.data(),
                                   .rows = rows.data(),
                                   .num_tokens = c.num_tokens,
                                   .half = c.half,
                                   .direction = direction},
                   nullptr);
      q.ExpectTurned(c, rows, cosines, sines, direction);
      k.ExpectTurned(c, rows, cosines, sines, direction);
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
