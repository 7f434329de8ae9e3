// The emulated CUDA kernels of learned decays equal the formulas in fp64.
#include <limits>

#include "kernels/rows/learned_decay_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Results {
  Values p, dy, y, dp;
};
Results RunBoth(LearnedDecayArgs args, bool added) {
  const int64_t count = args.heads * args.width;
  const Array<float> p(Random(count, 1)), dy(Random(count, 2));
  Array<float> y(count), dp(Values(count, 7.0));
  args.p = p.data(), args.log_decay = y.data();
  cuda::LearnedDecayForward(args, nullptr);
  cuda::LearnedDecayBackward(
      {.forward = args, .dlog_decay = dy.data(), .dp = dp.data(), .added = added}, nullptr);
  return {p.values(), dy.values(), y.values(), dp.values()};
}

TEST(LearnedDecayKernel, NegativeExp) {
  for (const int64_t width : {0, 1, 255, 700}) {
    for (const bool added : {false, true}) {
      SCOPED_TRACE(width);
      const Results r = RunBoth({.heads = 1, .width = width}, added);
      Values y, dp;
      for (int64_t i = 0; i < width; ++i) {
        y.push_back(-std::exp(r.p[i]));
        dp.push_back(r.dy[i] * y.back() + (added ? 7 : 0));
      }
      test::ExpectClose<float>("log_decay", r.y, y, 1e-6);
      test::ExpectClose<float>("dp", r.dp, dp, 1e-6);
    }
  }
}

TEST(LearnedDecayKernel, HeadOffset) {
  for (const float most : {0.1f, std::numeric_limits<float>::infinity()}) {
    for (const bool added : {false, true}) {
      const Results r = RunBoth({.heads = 5,
                                 .width = 70,
                                 .form = LearnedDecayForm::kHeadOffset,
                                 .scale = 0.3f,
                                 .most = most},
                                added);
      Values y, dp;
      bool bounded = false;
      for (int64_t i = 0; i < 350; ++i) {
        const double free = -std::exp2(-5.0 / static_cast<double>(i / 70 + 1)) - 0.3 * r.p[i];
        bounded = bounded || free > most;
        y.push_back(std::min(free, static_cast<double>(most)));
        dp.push_back((free > most ? 0 : -0.3 * r.dy[i]) + (added ? 7 : 0));
      }
      EXPECT_EQ(bounded, std::isfinite(most));
      test::ExpectClose<float>("log_decay", r.y, y, 1e-6);
      test::ExpectClose<float>("dp", r.dp, dp, 1e-6);
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
