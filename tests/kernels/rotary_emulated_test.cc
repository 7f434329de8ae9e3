// The CUDA kernel of the rotary encoding, emulated, against its formula in fp64.
#include "kernels/rotary/args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Case {
  int64_t num_tokens, num_heads, half;
  int shift = 0;  // elements that every array is off its alignment
};
constexpr int64_t kTableRows = 7;

// Halves of less than a pack, whole packs and an odd end; more than a block.
constexpr Case kCases[] = {{0, 2, 8},   {5, 3, 1},  {9, 2, 6},    {9, 2, 8},
                           {33, 3, 32}, {4, 1, 33}, {9, 2, 8, 1}, {20, 16, 64}};

template <typename T>
using RotaryKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(RotaryKernel, test::Storages);

// A sum of two products, each of at most the largest element: two roundings of 2^-24.
TYPED_TEST(RotaryKernel, EqualsTheFormulaInFp64) {
  using T = TypeParam;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.num_tokens << " x " << c.num_heads << " x 2 x " << c.half
                                    << ", shift " << c.shift);
    const int64_t size = c.num_tokens * c.num_heads * 2 * c.half;
    const Array<T> x(Random(size, 1), c.shift);
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
      Array<T> out(size, c.shift);
      cuda::Rotate(RotaryTokens<T>{.x = x.data(),
                                   .cos = cos.data(),
                                   .sin = sin.data(),
                                   .rows = rows.data(),
                                   .out = out.data(),
                                   .num_tokens = c.num_tokens,
                                   .num_heads = c.num_heads,
                                   .half = c.half,
                                   .direction = direction},
                   nullptr);
      const Values in = x.values();
      Values want(size);
      for (int64_t head = 0; head < c.num_tokens * c.num_heads; ++head) {
        for (int64_t j = 0; j < c.half; ++j) {
          const int64_t place = rows[head / c.num_heads] * c.half + j;
          const int64_t first = head * 2 * c.half + j, second = first + c.half;
          const double s = direction * sines[place];
          want[first] = in[first] * cosines[place] - in[second] * s;
          want[second] = in[second] * cosines[place] + in[first] * s;
        }
      }
      test::ExpectClose<T>("out", out.values(), want, 2 * 0x1p-23);
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
