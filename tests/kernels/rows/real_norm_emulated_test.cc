// The emulated CUDA kernels of RealNorm equal the formula in fp64.
#include "kernels/rows/real_norm_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kEps = 0.5f;    // Bounds how far the terms of dx cancel in rows of two channels.
constexpr double kFp32 = 3e-6;  // About ten roundings of 2^-24.

struct Case {
  int64_t num_rows, dim;
  int shift = 0;          // Elements by which every array is misaligned.
  bool constant = false;  // The last row is constant.
};

// Less than a pack, thread groups of each size, whole blocks, and more than a pack per thread;
// multiples of a pack and others.
std::vector<Case> Cases() {
  return {{1, 2},   {3, 7},      {37, 16},          {20, 36},  {9, 100},  {5, 256},
          {5, 301}, {33, 64, 1}, {33, 64, 0, true}, {3, 4500}, {3, 4501}, {0, 32}};
}

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Of(c), c.shift), dout(Random(c.num_rows * c.dim, 2), c.shift) {}
  static Values Of(const Case& c) {
    Values x = Random(c.num_rows * c.dim, 1);
    if (c.constant) std::fill(x.end() - c.dim, x.end(), 3.0);
    return x;
  }
  Array<T> x;
  Array<float> dout;
};

template <typename T>
struct Results {
  explicit Results(const Case& c)
      : out(c.num_rows * c.dim, c.shift),
        factor(c.num_rows),
        slope(c.num_rows),
        dx(c.num_rows * c.dim, c.shift) {}
  Array<float> out, factor, slope;
  Array<T> dx;
};

template <typename T>
Results<T> Run(const Case& c, const Problem<T>& p) {
  Results<T> r(c);
  cuda::RealNormForward(RealNormRows<T>{.x = p.x.data(),
                                        .out = r.out.data(),
                                        .factor = r.factor.data(),
                                        .slope = r.slope.data(),
                                        .num_rows = c.num_rows,
                                        .dim = c.dim,
                                        .eps = kEps},
                        nullptr);
  cuda::RealNormBackward(RealNormGradRows<T>{.out = r.out.data(),
                                             .factor = r.factor.data(),
                                             .slope = r.slope.data(),
                                             .dout = p.dout.data(),
                                             .dx = r.dx.data(),
                                             .num_rows = c.num_rows,
                                             .dim = c.dim},
                         nullptr);
  return r;
}

struct Wanted {
  Values out, dx;
};
Wanted Formula(const Case& c, const Values& x, const Values& dout) {
  Wanted want = {Values(x.size()), Values(x.size())};
  const auto n = static_cast<double>(c.dim);
  for (int64_t begin = 0; begin < c.num_rows * c.dim; begin += c.dim) {
    double mean = 0, squares = 0, sum = 0, dot = 0;
    for (int64_t i = begin; i < begin + c.dim; ++i) mean += x[i] / n;
    for (int64_t i = begin; i < begin + c.dim; ++i) {
      squares += (x[i] - mean) * (x[i] - mean);
      sum += dout[i] / n, dot += dout[i] * (x[i] - mean);
    }
    const double s = std::sqrt(squares / (n - 1)), turn = s > 0 ? dot / ((n - 1) * s) : 0;
    for (int64_t i = begin; i < begin + c.dim; ++i) {
      want.out[i] = (x[i] - mean) / (s + kEps);
      want.dx[i] = (dout[i] - sum - (x[i] - mean) / (s + kEps) * turn) / (s + kEps);
    }
  }
  return want;
}

template <typename T>
using RealNormKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(RealNormKernel, test::Storages);

TYPED_TEST(RealNormKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.dim << ", shift " << c.shift);
    const Problem<TypeParam> p(c);
    const Results<TypeParam> got = Run(c, p);
    const Wanted want = Formula(c, p.x.values(), p.dout.values());
    test::ExpectClose<float>("out", got.out.values(), want.out, kFp32);
    test::ExpectClose<TypeParam>("dx", got.dx.values(), want.dx, kFp32);
  }
}

TYPED_TEST(RealNormKernel, TwoRunsGiveTheSameBits) {
  const Case c = {200, 40};
  const Problem<TypeParam> p(c);
  const Results<TypeParam> first = Run(c, p), second = Run(c, p);
  EXPECT_EQ(first.out.values(), second.out.values());
  EXPECT_EQ(first.dx.values(), second.dx.values());
}

}  // namespace
}  // namespace halflife::kernels
