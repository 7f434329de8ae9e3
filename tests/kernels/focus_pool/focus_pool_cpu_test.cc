// The CPU kernels of focus pooling on plain arrays equal the definition. Numbers are those of the
// required properties.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/focus_pool/focus_pool_problem.h"

namespace halflife::kernels {
namespace {

using test::FocusCase;
using test::FocusOutput;
using test::FocusProblem;
using test::Largest;
using test::MakeFocusProblem;
using test::Values;

struct Kernels {
  template <typename T>
  void forward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results) const {
    cpu::FocusPoolForward(shape, results, 0, shape.num_runs * shape.num_heads);
  }
  template <typename T>
  void backward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                const FocusPoolGrads<T>& grads) const {
    cpu::FocusPoolBackward(shape, results, grads, 0, shape.num_runs * shape.num_heads);
  }
};
template <typename T>
FocusOutput Pool(const FocusProblem& p) {
  return test::RunFocus<T>(p, Kernels(), std::nan(""));
}

// Covers lengths, windows, widths and spreads around all chunk boundaries, in rotation.
std::vector<FocusCase> Cases() {
  std::vector<FocusCase> cases;
  const std::vector<int64_t> dims = {1, 32, 64, 128, 7, 2, 96};
  const std::vector<double> spreads = {1, 10, 80};
  size_t turn = 0;
  for (const int64_t seq_len : {1, 2, 7, 64, 65, 130, 1000, 2048}) {
    for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{7},
                                 int64_t{12}, int64_t{13}, int64_t{32}, int64_t{64}, int64_t{65},
                                 int64_t{100}, int64_t{128}, seq_len, 5 * seq_len, int64_t{0}}) {
      // The oracle's time is quadratic in the length.
      const int64_t dim = seq_len * (window == 0 ? seq_len : window) > 500000 ? 8 : dims[turn % 7];
      cases.push_back({.seq_len = seq_len,
                       .window = window,
                       .dim = dim,
                       .spread = spreads[turn % 3],
                       .eps = turn % 4 == 3 ? 1e-5 : 0});
      ++turn;
    }
  }
  return cases;
}
// Covers documents, initial states, masked tokens, and several rows and heads.
std::vector<FocusCase> StateCases() {
  std::vector<FocusCase> cases;
  for (const int64_t seq_len : {1, 3, 66, 230})
    for (const int64_t window : {0, 1, 2, 5, 12, 17, 64, 65, 150, 300})
      for (const bool documents : {false, true})
        for (const double masked : {0.0, 0.3, 0.9})
          cases.push_back({.seq_len = seq_len,
                           .window = window,
                           .dim = 9,
                           .batch = 3,
                           .num_heads = 2,
                           .spread = 5,
                           .eps = masked == 0.3 ? 1e-2 : 0,
                           .documents = documents,
                           .state = true,
                           .masked = masked});
  return cases;
}

template <typename T>
class FocusPool : public testing::Test {};
using Storages = testing::Types<float, Bf16, double>;
TYPED_TEST_SUITE(FocusPool, Storages);

// Numbers 1 and 9: forward, backward, row maxima and sums equal the definition.
TYPED_TEST(FocusPool, IsTheDefinition) {
  for (const FocusCase& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const FocusProblem p = MakeFocusProblem<TypeParam>(c);
    test::ExpectFocusClose<TypeParam>(p, Pool<TypeParam>(p), test::Oracle(p));
    if (this->HasFailure()) return;
  }
}

// Also number 8: masked tokens, and windows that contain nothing else.
TYPED_TEST(FocusPool, IsTheDefinitionWithDocumentsAndStates) {
  for (const FocusCase& c : StateCases()) {
    SCOPED_TRACE(Name(c));
    const FocusProblem p = MakeFocusProblem<TypeParam>(c);
    test::ExpectFocusClose<TypeParam>(p, Pool<TypeParam>(p), test::Oracle(p));
    if (this->HasFailure()) return;
  }
}

// Number 9: sums have two levels, so 65536 tokens are as accurate as a thousand. The kernels in
// fp64 replace the oracle, whose time is quadratic in the length.
TEST(FocusPoolLength, ErrorsDoNotGrow) {
  for (const int64_t window : {0, 30000}) {
    const FocusProblem p = MakeFocusProblem<float>({.seq_len = 65536, .window = window, .dim = 4});
    const FocusOutput got = Pool<float>(p), want = Pool<double>(p);
    const double allowed = 2e-6 * Largest(p.u);
    for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], allowed) << i;
    for (size_t i = 0; i < got.row_sum.size(); ++i)
      ASSERT_NEAR(got.row_sum[i], want.row_sum[i], 2e-6 * want.row_sum[i]) << i;
  }
}

// Number 2.
TEST(FocusPoolWindow, AsLongAsTheRowIsTheWholeInBits) {
  for (const int64_t seq_len : {13, 64, 65, 300}) {
    const FocusProblem whole = MakeFocusProblem<float>({.seq_len = seq_len, .window = 0});
    const FocusOutput want = Pool<float>(whole);
    for (const int64_t window : {seq_len, 5 * seq_len}) {
      FocusProblem p = whole;
      p.c.window = window;
      const FocusOutput got = Pool<float>(p);
      EXPECT_EQ(got.out, want.out) << window;
      EXPECT_EQ(got.du, want.du) << window;
      EXPECT_EQ(got.dlog_weight, want.dlog_weight) << window;
    }
  }
}
TEST(FocusPoolWindow, OneTokenIsItself) {
  const FocusProblem p = MakeFocusProblem<float>({.seq_len = 70, .window = 1, .spread = 80});
  EXPECT_EQ(Pool<float>(p).out, p.u);
}

// Number 4, in bits: later tokens and tokens that have left the window have no influence, and their
// gradients are exactly 0.
TEST(FocusPoolWindow, SeesOnlyItsTokens) {
  constexpr int64_t kSeqLen = 200, kDim = 5;
  for (const int64_t window : {0, 1, 3, 12, 13, 40, 64, 70, 128}) {
    SCOPED_TRACE(window);
    const FocusProblem p =
        MakeFocusProblem<float>({.seq_len = kSeqLen, .window = window, .dim = kDim, .spread = 10});
    const FocusOutput want = Pool<float>(p);
    for (const int64_t token : {0, 63, 64, 100, 199}) {
      FocusProblem moved = p;
      moved.log_weight[token] += 80;  // It would dominate every sum.
      for (int64_t i = 0; i < kDim; ++i) moved.u[token * kDim + i] = std::nanf("");
      const FocusOutput got = Pool<float>(moved);
      for (int64_t t = 0; t < kSeqLen; ++t) {
        const bool hears = t >= token && (window == 0 || t < token + window);
        for (int64_t i = t * kDim; i < (t + 1) * kDim; ++i) {
          ASSERT_EQ(std::isnan(got.out[i]), hears) << "token " << token << " by " << t;
          if (!hears) {
            ASSERT_EQ(got.out[i], want.out[i]) << "token " << token << " by " << t;
          }
        }
      }
      FocusProblem one = p;
      std::fill(one.dout.begin(), one.dout.end(), 0.0);
      for (int64_t i = 0; i < kDim; ++i) one.dout[token * kDim + i] = 1;
      const FocusOutput gradients = Pool<float>(one);
      for (int64_t t = 0; t < kSeqLen; ++t) {
        const bool heard = t <= token && (window == 0 || token < t + window);
        if (!heard) {
          ASSERT_EQ(gradients.dlog_weight[t], 0) << t << " of " << token;
        }
        for (int64_t i = t * kDim; i < (t + 1) * kDim; ++i)
          if (!heard) {
            ASSERT_EQ(gradients.du[i], 0) << t << " of " << token;
          }
      }
    }
  }
}

// A NaN log weight is not treated as a small one, even before masked tokens.
TEST(FocusPoolWindow, PropagatesNanLogWeights) {
  constexpr int64_t kSeqLen = 200, kToken = 70;
  for (const int64_t window : {0, 3, 40, 64, 128}) {
    FocusProblem p = MakeFocusProblem<float>({.seq_len = kSeqLen, .window = window, .dim = 1});
    std::fill(p.log_weight.begin() + kToken, p.log_weight.end(), test::kMasked);
    p.log_weight[kToken] = std::nan("");
    const FocusOutput got = Pool<float>(p);
    for (int64_t t = 0; t < kSeqLen; ++t) {
      const bool hears = t >= kToken && (window == 0 || t < kToken + window);
      ASSERT_EQ(std::isnan(got.out[t]), hears) << "window " << window << ", token " << t;
      ASSERT_EQ(std::isnan(got.row_sum[t]), hears) << "window " << window << ", token " << t;
    }
  }
}

// Number 6: without eps a constant cancels, except for the rounding of log weights. At 1000 they
// are multiples of 2^-14, half of which changes a weight by 3e-5 of itself.
TEST(FocusPoolRange, ConstantsCancel) {
  for (const double offset : {1000.0, -1000.0}) {
    for (const int64_t window : {0, 6, 64}) {
      const FocusProblem p = MakeFocusProblem<float>({.seq_len = 150, .window = window});
      FocusProblem moved = p;
      for (double& x : moved.log_weight) x += offset;
      const Values want = Pool<float>(p).out, got = Pool<float>(moved).out;
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-4);
    }
  }
}
TEST(FocusPoolRange, HugeLogWeightsStayFinite) {
  for (const double spread : {80.0, 1e4}) {
    for (const int64_t window : {0, 6, 40, 64}) {
      for (const double eps : {0.0, 1e-5}) {
        const FocusCase c = {
            .seq_len = 200, .window = window, .spread = spread, .eps = eps, .masked = 0.2};
        const FocusOutput got = Pool<float>(MakeFocusProblem<float>(c));
        for (const Values* values : {&got.out, &got.du, &got.dlog_weight})
          for (const double x : *values) ASSERT_TRUE(std::isfinite(x)) << Name(c);
      }
    }
  }
}
// One token with weight e^80 dominates while it is in the window and has no influence afterwards.
TEST(FocusPoolRange, HeavyTokensLeaveNothingBehind) {
  constexpr int64_t kDim = 4, kHeavy = 70;
  for (const int64_t window : {6, 40, 64}) {
    FocusProblem p = MakeFocusProblem<float>({.seq_len = 300, .window = window, .dim = kDim});
    const Values want = Pool<float>(p).out;
    p.log_weight[kHeavy] = 80;
    const Values got = Pool<float>(p).out;
    for (int64_t t = 0; t < 300; ++t) {
      const bool inside = t >= kHeavy && t < kHeavy + window;
      for (int64_t i = 0; i < kDim; ++i) {
        const double expected = inside ? p.u[kHeavy * kDim + i] : want[t * kDim + i];
        ASSERT_EQ(got[t * kDim + i], expected) << t;
      }
    }
  }
}

// Number 8: padding after or before the tokens changes nothing, even if masked values are NaN.
TEST(FocusPoolMask, PaddingHasNoEffect) {
  constexpr int64_t kSeqLen = 90, kDim = 4;
  for (const int64_t window : {0, 5, 40}) {
    for (const int64_t pad : {1, 40, 100}) {
      for (const bool left : {false, true}) {
        SCOPED_TRACE(Concat("window ", window, ", pad ", pad, left ? ", left" : ", right"));
        const FocusProblem p =
            MakeFocusProblem<double>({.seq_len = kSeqLen, .window = window, .dim = kDim});
        FocusProblem padded = p;
        padded.c.seq_len += pad;
        padded.runs = test::RunsOf(padded.c);
        const int64_t place = left ? 0 : kSeqLen;
        const auto insert = [&](Values& values, int64_t width, double x) {
          values.insert(values.begin() + place * width, pad * width, x);
        };
        insert(padded.log_weight, 1, test::kMasked);
        insert(padded.u, kDim, std::nan(""));
        insert(padded.dout, kDim, left ? 1.0 : 0.0);  // Such rows have no loss.
        const FocusOutput want = Pool<double>(p), got = Pool<double>(padded);
        const int64_t moved = left ? pad : 0;
        for (int64_t i = 0; i < kSeqLen * kDim; ++i) {
          ASSERT_NEAR(got.out[i + moved * kDim], want.out[i], 1e-13);
          ASSERT_NEAR(got.du[i + moved * kDim], want.du[i], 1e-13);
        }
        for (int64_t t = 0; t < kSeqLen; ++t)
          ASSERT_NEAR(got.dlog_weight[t + moved], want.dlog_weight[t], 1e-12);
        for (int64_t t = place; t < place + pad; ++t) {
          ASSERT_EQ(got.dlog_weight[t], 0);
          for (int64_t i = t * kDim; i < (t + 1) * kDim; ++i) {
            ASSERT_EQ(got.du[i], 0);
            if (left) {
              ASSERT_EQ(got.out[i], 0);
            }
          }
        }
      }
    }
  }
}

// Number 3: a row in parts with a carried state or tail equals the whole. With one token at a time
// this is the recurrent form.
TEST(FocusPoolState, PartsAreTheWhole) {
  constexpr int64_t kSeqLen = 140, kDim = 4;
  for (const int64_t window : {0, 1, 2, 12, 30, 64, 90}) {
    const FocusProblem whole =
        MakeFocusProblem<float>({.seq_len = kSeqLen, .window = window, .dim = kDim, .spread = 4});
    const Values want = Pool<float>(whole).out;
    for (const int64_t part : {1, 33, 64, 100}) {
      SCOPED_TRACE(Concat("window ", window, ", parts of ", part));
      FocusProblem p = whole;
      p.c.state = true;
      if (window == 0) p.log_scale = p.mass = p.dmass = Values(1), p.sum = p.dsum = Values(kDim);
      if (window > 1) {
        p.tail_log_weight = Values(window - 1, test::kMasked);
        p.tail_u = Values((window - 1) * kDim);
      }
      for (int64_t begin = 0; begin < kSeqLen; begin += part) {
        const int64_t length = std::min(part, kSeqLen - begin);
        p.c.seq_len = length;
        p.runs = test::RunsOf(p.c);
        const auto cut = [&](const Values& from, int64_t width) {
          return Values(from.begin() + begin * width, from.begin() + (begin + length) * width);
        };
        p.log_weight = cut(whole.log_weight, 1), p.u = cut(whole.u, kDim);
        p.dout = cut(whole.dout, kDim);
        const FocusOutput got = Pool<float>(p);
        for (int64_t i = 0; i < length * kDim; ++i)
          ASSERT_NEAR(got.out[i], want[begin * kDim + i], 1e-6 * Largest(whole.u)) << begin;
        if (window == 0) p.log_scale = got.log_scale, p.mass = got.mass, p.sum = got.sum;
        const auto shift = [&](Values& tail, const Values& next) {
          const size_t size = tail.size();
          tail.insert(tail.end(), next.begin(), next.end());
          tail.erase(tail.begin(), tail.end() - static_cast<int64_t>(size));
        };
        shift(p.tail_log_weight, p.log_weight), shift(p.tail_u, p.u);
      }
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
