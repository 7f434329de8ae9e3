// The kernels that scale growing decays down equal the formulas in fp64, on the CPU and as emulated
// CUDA kernels.
#include <limits>

#include "kernels/rows/decay_growth_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Case {
  int64_t batch, seq_len, heads, decay_heads, width;
};
// Fewer and more tokens than a block has threads, heads that share a decay, widths around that of a
// warp, more constants than threads.
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1}, {2, 37, 6, 3, 40}, {3, 200, 4, 4, 1}, {1, 300, 9, 9, 64}, {2, 5, 12, 2, 33}};

// Every other row starts a document at a third of its length. The last sequence has no tokens.
struct Problem {
  explicit Problem(const Case& c)
      : log_decay(Random(c.decay_heads * c.width, 1, 0.02)),
        lowered(c.decay_heads * c.width),
        key_factor(c.batch * c.seq_len * c.heads),
        final_log_scale((c.batch + 1) * c.heads, -1.0) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t t = 0; t < c.seq_len; ++t)
        begin.push_back(b % 2 == 1 && t >= c.seq_len / 3 ? c.seq_len / 3 : 0);
      last.push_back((b + 1) * c.seq_len - 1);
    }
    last.push_back(c.batch * c.seq_len + c.batch);
    args = {.log_decay = log_decay.data(),
            .begin = begin.data(),
            .last = last.data(),
            .lowered = lowered.data(),
            .key_factor = key_factor.data(),
            .final_log_scale = final_log_scale.data(),
            .batch = c.batch,
            .seq_len = c.seq_len,
            .heads = c.heads,
            .decay_heads = c.decay_heads,
            .width = c.width,
            .sequences = c.batch + 1};
  }

  Array<float> log_decay, lowered, key_factor;
  std::vector<double> final_log_scale;
  std::vector<int64_t> begin, last;
  DecayGrowthArgs args;
};

void RunOnCpu(const DecayGrowthArgs& args) {
  std::vector<double> growth(args.heads);
  std::vector<float> factors(args.seq_len * args.heads);
  cpu::DecayGrowth(args, growth.data(), factors.data());
}
void RunEmulated(const DecayGrowthArgs& args) { cuda::DecayGrowth(args, nullptr); }

using Runner = void (*)(const DecayGrowthArgs&);
class DecayGrowthKernel : public testing::TestWithParam<Runner> {};
INSTANTIATE_TEST_SUITE_P(OnBoth, DecayGrowthKernel, testing::Values(RunOnCpu, RunEmulated),
                         [](const auto& at) { return at.index == 0 ? "cpu" : "cuda"; });

// A subtraction and an exponential of 2^-24. Scales in fp64 are exact products.
TEST_P(DecayGrowthKernel, IsTheFormula) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.batch << " x " << c.seq_len << ", heads " << c.heads
                                    << " of " << c.decay_heads << " x " << c.width);
    Problem p(c);
    GetParam()(p.args);
    const Values g = p.log_decay.values();
    Values mu, lowered, factor;
    for (int64_t h = 0; h < c.decay_heads; ++h) {
      mu.push_back(0);
      for (int64_t i = 0; i < c.width; ++i) mu.back() = std::max(mu.back(), g[h * c.width + i]);
      for (int64_t i = 0; i < c.width; ++i) lowered.push_back(g[h * c.width + i] - mu.back());
    }
    const auto growth = [&](int64_t head) { return mu[head * c.decay_heads / c.heads]; };
    for (int64_t n = 0; n < c.batch * c.seq_len; ++n)
      for (int64_t head = 0; head < c.heads; ++head)
        factor.push_back(std::exp(-static_cast<double>(n % c.seq_len - p.begin[n]) * growth(head)));
    test::ExpectClose<float>("lowered", p.lowered.values(), lowered, 1e-7);
    test::ExpectClose<float>("key_factor", p.key_factor.values(), factor, 1e-7);
    for (int64_t n = 0; n <= c.batch; ++n) {
      const bool any = n < c.batch;
      const int64_t steps = any ? c.seq_len - 1 - p.begin[p.last[n]] : 0;
      for (int64_t head = 0; head < c.heads; ++head)
        EXPECT_EQ(p.final_log_scale[n * c.heads + head], static_cast<double>(steps) * growth(head));
    }
  }
}

// A NaN decay must not be treated as one that does not grow.
TEST_P(DecayGrowthKernel, NanReachesOnlyItsHead) {
  for (const int64_t place : {0, 50, 63}) {
    Problem p({1, 3, 2, 2, 64});
    p.log_decay.data()[place] = std::numeric_limits<float>::quiet_NaN();
    GetParam()(p.args);
    const Values lowered = p.lowered.values(), factor = p.key_factor.values();
    for (int64_t i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(lowered[i]), i < 64) << i;
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(factor[i]), i % 2 == 0) << i;
    EXPECT_TRUE(std::isnan(p.final_log_scale[0]));
    EXPECT_FALSE(std::isnan(p.final_log_scale[1]));
  }
}

}  // namespace
}  // namespace halflife::kernels
