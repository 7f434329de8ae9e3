// The emulated CUDA kernels of token shift equal the definition in fp64.
#include <limits>
#include <memory>

#include "kernels/rows/token_shift_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr int64_t kBatch = 2;
// A few roundings of 2^-24. The gradients of mixes sum a few hundred tokens.
constexpr double kFp32 = 2e-6;

struct Case {
  int64_t seq_len, dim;
  int num_mixes = 3;
  bool tail = true, documents = true;
  int shift = 0;  // Elements by which every array is misaligned.
};

std::string Name(const Case& c) {
  return "T " + std::to_string(c.seq_len) + ", D " + std::to_string(c.dim) + ", " +
         std::to_string(c.num_mixes) + " mixes" + (c.tail ? ", tail" : "") +
         (c.documents ? ", documents" : "") + ", shift " + std::to_string(c.shift);
}

// Lengths around runs of 16 and 32 tokens; channels in whole and partial packs, and more than the
// threads of a block process.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t seq_len : {1, 5, 16, 32, 33, 70})
    for (const bool documents : {false, true})
      for (const bool tail : {false, true}) cases.push_back({seq_len, 11, 3, tail, documents});
  for (const int num_mixes : {1, 2}) cases.push_back({40, 16, num_mixes});
  for (const int shift : {0, 1}) cases.push_back({70, 16, 3, true, true, shift});
  cases.push_back({3, 1100});
  return cases;
}

struct Starts {
  explicit Starts(const Case& c) : starts(new bool[kBatch * c.seq_len]()) {
    if (c.seq_len == 0) return;
    starts[0] = true;  // Hides the tail.
    for (int64_t t = 3; t < c.seq_len; t += 11) starts[c.seq_len + t] = true;
    for (int64_t t = 31; t < std::min<int64_t>(c.seq_len, 34); ++t) starts[t] = true;
  }
  std::unique_ptr<bool[]> starts;
};

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(Random(kBatch * c.seq_len * c.dim, 1), c.shift),
        tail(Random(kBatch * c.dim, 2), c.shift),
        starts(c) {
    for (int i = 0; i < c.num_mixes; ++i) {
      mixes.emplace_back(Random(c.dim, 3 + i), c.shift);
      douts.emplace_back(Random(kBatch * c.seq_len * c.dim, 7 + i), c.shift);
    }
  }
  Array<T> x, tail;
  std::vector<Array<float>> mixes;
  std::vector<Array<T>> douts;
  Starts starts;
};

// Returns whether the mix's gradient is added to the output.
constexpr bool Adds(int i) { return i == 1; }

template <typename T>
struct Results {
  std::vector<Array<T>> outs;
  Array<T> dx, dtail;
  std::vector<Array<float>> dmixes;
};

template <typename T>
Results<T> Run(const Case& c, const Problem<T>& p) {
  const int64_t size = kBatch * c.seq_len * c.dim;
  Results<T> r = {{}, Array<T>(size, c.shift), Array<T>(kBatch * c.dim, c.shift), {}};
  TokenShiftShape<T> shape;
  TokenShiftResults<T> results;
  TokenShiftGrads<T> grads;
  shape.x = p.x.data();
  shape.tail = c.tail ? p.tail.data() : nullptr;
  shape.starts = c.documents ? p.starts.starts.get() : nullptr;
  shape.num_mixes = c.num_mixes;
  shape.batch = kBatch, shape.seq_len = c.seq_len, shape.dim = c.dim;
  for (int i = 0; i < c.num_mixes; ++i) {
    r.outs.emplace_back(size, c.shift);
    r.dmixes.emplace_back(Values(c.dim, 7.0), c.shift);
  }
  for (int i = 0; i < c.num_mixes; ++i) {
    shape.mixes[i] = p.mixes[i].data();
    results.out[i] = r.outs[i].data();
    grads.dout[i] = p.douts[i].data();
    grads.dmixes[i] = r.dmixes[i].data();
    grads.added[i] = Adds(i);
  }
  grads.dx = r.dx.data();
  grads.dtail = c.tail ? r.dtail.data() : nullptr;
  cuda::TokenShiftForward(shape, results, nullptr);
  Array<float> partials(
      Values(cuda::TokenShiftPartials(shape) * c.num_mixes * c.dim, std::nan("")));
  cuda::TokenShiftBackward(shape, grads, partials.data(), nullptr);
  return r;
}

struct Wanted {
  std::vector<Values> outs, dmixes;
  Values dx, dtail;
};

template <typename T>
Wanted Definition(const Case& c, const Problem<T>& p) {
  const Values x = p.x.values(), tail = p.tail.values();
  Wanted want = {{}, {}, Values(x.size()), Values(tail.size())};
  for (int i = 0; i < c.num_mixes; ++i) {
    const Values mix = p.mixes[i].values(), dout = p.douts[i].values();
    Values out(x.size()), dmix(c.dim, Adds(i) ? 7.0 : 0.0);
    for (int64_t n = 0; n < static_cast<int64_t>(x.size()); ++n) {
      const int64_t channel = n % c.dim, row = n / c.dim / c.seq_len, token = n / c.dim % c.seq_len;
      const bool starts = c.documents && p.starts.starts[row * c.seq_len + token];
      const bool follows = !starts && (token > 0 || c.tail);
      const int64_t of_tail = row * c.dim + channel;
      const double before = !follows ? 0 : token > 0 ? x[n - c.dim] : tail[of_tail];
      out[n] = mix[channel] * x[n] + (1 - mix[channel]) * before;
      want.dx[n] += mix[channel] * dout[n];
      if (follows)
        (token > 0 ? want.dx[n - c.dim] : want.dtail[of_tail]) += (1 - mix[channel]) * dout[n];
      dmix[channel] += dout[n] * (x[n] - before);
    }
    want.outs.push_back(out), want.dmixes.push_back(dmix);
  }
  return want;
}

template <typename T>
using TokenShiftKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(TokenShiftKernel, test::Storages);

TYPED_TEST(TokenShiftKernel, EqualsTheDefinitionInFp64) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const Problem<TypeParam> p(c);
    const Results<TypeParam> got = Run(c, p);
    const Wanted want = Definition(c, p);
    for (int i = 0; i < c.num_mixes; ++i) {
      test::ExpectClose<TypeParam>("out", got.outs[i].values(), want.outs[i], kFp32);
      test::ExpectClose<float>("dmix", got.dmixes[i].values(), want.dmixes[i], kFp32);
    }
    test::ExpectClose<TypeParam>("dx", got.dx.values(), want.dx, kFp32);
    if (c.tail) test::ExpectClose<TypeParam>("dtail", got.dtail.values(), want.dtail, kFp32);
  }
}

TYPED_TEST(TokenShiftKernel, TwoRunsGiveTheSameBits) {
  const Case c = {70, 24};
  const Problem<TypeParam> p(c);
  const Results<TypeParam> first = Run(c, p), second = Run(c, p);
  EXPECT_EQ(first.dx.values(), second.dx.values());
  EXPECT_EQ(first.dmixes[2].values(), second.dmixes[2].values());
}

// A NaN stays within its document.
TYPED_TEST(TokenShiftKernel, NansDoNotCrossADocumentsStart) {
  const Case c = {20, 8};
  Problem<TypeParam> p(c);
  const auto nan = Narrow<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  p.x.data()[(c.seq_len + 13) * c.dim] = nan;  // Row 1 has document starts at 3 and 14.
  const Values out = Run(c, p).outs[0].values();
  EXPECT_TRUE(std::isnan(out[(c.seq_len + 13) * c.dim]));
  EXPECT_FALSE(std::isnan(out[(c.seq_len + 14) * c.dim]));
  Problem<TypeParam> q(c);
  q.douts[1].data()[(c.seq_len + 14) * c.dim] = nan;
  const Values dx = Run(c, q).dx.values();
  EXPECT_FALSE(std::isnan(dx[(c.seq_len + 13) * c.dim]));
  EXPECT_TRUE(std::isnan(dx[(c.seq_len + 14) * c.dim]));
}

TYPED_TEST(TokenShiftKernel, NoTokensGiveNoGradient) {
  const Case c = {0, 8};
  const Results<TypeParam> got = Run(c, Problem<TypeParam>(c));
  EXPECT_EQ(got.dmixes[0].values(), Values(8, 0.0));
  EXPECT_EQ(got.dmixes[1].values(), Values(8, 7.0));
}

}  // namespace
}  // namespace halflife::kernels
