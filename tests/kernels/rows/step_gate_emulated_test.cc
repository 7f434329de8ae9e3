// The emulated CUDA kernels of step gates equal the formula in fp64.
#include <algorithm>
#include <limits>

#include "kernels/rows/step_gate_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

struct Case {
  int64_t num_rows, dim, stride;  // stride of x and dx
  float least = 0, most = kNoLimit;
};

// Less than a block of heads and more, rows of a wider matrix, fewer rows than a block, more than
// the partial sums cover at once, and none.
constexpr Case kCases[] = {{1, 1, 1},   {9, 7, 7},         {33, 32, 50, 0.1f, 2.0f},
                           {5, 33, 33}, {40, 101, 120},    {1500, 8, 8},
                           {0, 32, 32}, {37, 64, 64, 0.3f}};

template <typename T>
using StepGateKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(StepGateKernel, test::Storages);

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Random(c.num_rows * c.stride, 1, 3.0)),
        bias(Random(c.dim, 2)),
        a_log(Random(c.dim, 3)),
        dstep(Random(c.num_rows * c.dim, 4)),
        dlog_decay(Random(c.num_rows * c.dim, 5)),
        step(c.num_rows * c.dim),
        log_decay(c.num_rows * c.dim),
        dbias(Values(c.dim, 7.0)),
        da_log(Values(c.dim, 2.0)),
        dx(Values(c.num_rows * c.stride, 9.0)) {}

  // Overwrites dbias and adds to da_log.
  void Run(const Case& c) {
    const StepGateForm form = {
        .bias = bias.data(), .a_log = a_log.data(), .least = c.least, .most = c.most};
    cuda::StepGateForward(StepGateRows<T>{.x = x.data(),
                                          .step = step.data(),
                                          .log_decay = log_decay.data(),
                                          .form = form,
                                          .num_rows = c.num_rows,
                                          .dim = c.dim,
                                          .x_stride = c.stride},
                          nullptr);
    Array<float> partials(Values(cuda::NumStepGatePartials(c.num_rows) * 2 * c.dim, 1e9));
    cuda::StepGateBackward(StepGateGradRows<T>{.x = x.data(),
                                               .dstep = dstep.data(),
                                               .dlog_decay = dlog_decay.data(),
                                               .dx = dx.data(),
                                               .form = form,
                                               .num_rows = c.num_rows,
                                               .dim = c.dim,
                                               .x_stride = c.stride,
                                               .dx_stride = c.stride},
                           {.dbias = dbias.data(), .da_log = da_log.data(), .da_log_added = true},
                           partials.data(), nullptr);
  }

  Array<T> x;
  Array<float> bias, a_log, dstep, dlog_decay, step, log_decay, dbias, da_log;
  Array<T> dx;
};

// 2^-24 of values up to 100, with about five roundings. The sums have terms of either sign.
TYPED_TEST(StepGateKernel, EqualsTheFormulaInFp64) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.dim << " in rows of " << c.stride
                                    << ", limits " << c.least << " and " << c.most);
    Problem<TypeParam> p(c);
    p.Run(c);
    const Values x = p.x.values(), bias = p.bias.values(), a_log = p.a_log.values();
    const Values dstep = p.dstep.values(), dlog = p.dlog_decay.values();
    Values step, log_decay, dx(c.num_rows * c.stride, 9.0), dbias(c.dim, 0.0), da_log(c.dim, 2.0);
    for (int64_t i = 0; i < c.num_rows * c.dim; ++i) {
      const int64_t head = i % c.dim, at = i / c.dim * c.stride + head;
      const double z = x[at] + bias[head], a = -std::exp(a_log[head]);
      const double free = std::log1p(std::exp(z));
      step.push_back(std::min(std::max(free, double{c.least}), static_cast<double>(c.most)));
      log_decay.push_back(a * step.back());
      const bool limited = free < c.least || free > c.most;
      dx[at] = limited ? 0 : (dstep[i] + a * dlog[i]) / (1 + std::exp(-z));
      dbias[head] += dx[at];
      da_log[head] += dlog[i] * log_decay.back();
    }
    test::ExpectClose<float>("step", p.step.values(), step, 1e-6);
    test::ExpectClose<float>("log_decay", p.log_decay.values(), log_decay, 1e-6);
    test::ExpectClose<TypeParam>("dx", p.dx.values(), dx, 1e-6);
    test::ExpectClose<float>("dbias", p.dbias.values(), dbias, 3e-6);
    test::ExpectClose<float>("da_log", p.da_log.values(), da_log, 3e-6);
  }
}

// Very large logits give steps without NaN. A NaN stays NaN, also with limits.
TYPED_TEST(StepGateKernel, FarLogitsAndNan) {
  for (const float most : {kNoLimit, 50.0f}) {
    const Case c = {1, 3, 3, 0, most};
    Problem<TypeParam> p(c);
    p.x = Array<TypeParam>(Values{-200, 200, std::numeric_limits<double>::quiet_NaN()});
    p.bias = Array<float>(Values{0, 0, 0});
    p.Run(c);
    const Values step = p.step.values(), dx = p.dx.values();
    EXPECT_EQ(step[0], 0);
    EXPECT_EQ(step[1], std::min(200.0f, most));
    EXPECT_TRUE(std::isnan(step[2]));
    EXPECT_EQ(dx[0], 0);
    EXPECT_EQ(dx[1] == 0, most != kNoLimit);
    EXPECT_TRUE(std::isnan(dx[2]));
  }
}

}  // namespace
}  // namespace halflife::kernels
