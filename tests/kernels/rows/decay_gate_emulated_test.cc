// The emulated CUDA kernels of decay gates equal the formula in fp64.
#include <algorithm>
#include <limits>

#include "kernels/rows/decay_gate_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Case {
  int64_t num_rows, dim;
  float floor = kNone;
  int shift = 0;  // Elements by which every array is misaligned.
};

// Less than a pack, odd ends, whole blocks of columns and more; fewer rows than a block, more than
// the partial sums cover at once, and none.
constexpr Case kCases[] = {
    {1, 1},    {9, 7},  {33, 16},          {5, 256}, {40, 301}, {33, 64, -0.1f}, {9, 64, kNone, 1},
    {1500, 8}, {0, 32}, {37, 1000, -0.05f}};

template <typename T>
using DecayGateKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(DecayGateKernel, test::Storages);

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Random(c.num_rows * c.dim, 1, 4.0), c.shift),
        bias(Random(c.dim, 2), c.shift),
        dlog_decay(Random(c.num_rows * c.dim, 3), c.shift),
        log_decay(c.num_rows * c.dim, c.shift),
        dbias(Values(c.dim, 7.0)),
        dx(c.num_rows * c.dim, c.shift) {}

  void Run(const Case& c, float scale) {
    const DecayGateForm form = {.bias = bias.data(), .scale = scale, .floor = c.floor};
    cuda::DecayGateForward(DecayGateRows<T>{.x = x.data(),
                                            .log_decay = log_decay.data(),
                                            .form = form,
                                            .num_rows = c.num_rows,
                                            .dim = c.dim},
                           nullptr);
    Array<float> partials(Values(cuda::NumGatePartials(c.num_rows) * c.dim, 1e9));
    cuda::DecayGateBackward(DecayGateGradRows<T>{.x = x.data(),
                                                 .dlog_decay = dlog_decay.data(),
                                                 .dx = dx.data(),
                                                 .form = form,
                                                 .num_rows = c.num_rows,
                                                 .dim = c.dim},
                            dbias.data(), partials.data(), nullptr);
  }

  Array<T> x;
  Array<float> bias, dlog_decay, log_decay, dbias;
  Array<T> dx;
};

// 2^-24 of logarithms up to 20, with about five roundings. dbias sums all rows, with terms of
// either sign.
TYPED_TEST(DecayGateKernel, EqualsTheFormulaInFp64) {
  constexpr float kScale = 1.0f / 16;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message()
                 << c.num_rows << " x " << c.dim << ", shift " << c.shift << ", floor " << c.floor);
    Problem<TypeParam> p(c);
    p.Run(c, kScale);
    const Values x = p.x.values(), bias = p.bias.values(), dy = p.dlog_decay.values();
    Values log_decay, dx, dbias(c.dim, 0.0);
    for (int64_t i = 0; i < c.num_rows * c.dim; ++i) {
      const double z = x[i] + bias[i % c.dim], y = -kScale * std::log1p(std::exp(-z));
      const double slope = y < c.floor ? 0 : kScale / (1 + std::exp(z));
      log_decay.push_back(std::max(y, static_cast<double>(c.floor)));
      dx.push_back(dy[i] * slope);
      dbias[i % c.dim] += dx.back();
    }
    test::ExpectClose<float>("log_decay", p.log_decay.values(), log_decay, 1e-6);
    test::ExpectClose<TypeParam>("dx", p.dx.values(), dx, 1e-6);
    test::ExpectClose<float>("dbias", p.dbias.values(), dbias, 3e-6);
  }
}

// Very large logits fully open or close the gate without NaN. A NaN stays NaN, also with a lower
// bound.
TYPED_TEST(DecayGateKernel, FarLogitsAndNan) {
  for (const float floor : {kNone, -50.0f}) {
    const Case c = {1, 3, floor};
    Problem<TypeParam> p(c);
    p.x = Array<TypeParam>(Values{-200, 200, std::numeric_limits<double>::quiet_NaN()});
    p.bias = Array<float>(Values{0, 0, 0});
    p.dlog_decay = Array<float>(Values{1, 1, 1});
    p.Run(c, 1.0f);
    const Values y = p.log_decay.values(), dx = p.dx.values();
    EXPECT_EQ(y[0], std::max(-200.0f, floor));
    EXPECT_EQ(y[1], 0);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(dx[0], floor == kNone ? 1 : 0);
    EXPECT_EQ(dx[1], 0);
    EXPECT_TRUE(std::isnan(dx[2]));
  }
}

}  // namespace
}  // namespace halflife::kernels
