// The emulated CUDA kernels of the long convolution equal its definition in fp64, and the CPU's
// loops where they share code.
#include "kernels/convolution/fft_conv_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::ExpectClose;
using test::Random;
using test::Values;

constexpr double kFirst = -0.03, kStep = 0.002;  // Of the window.

struct Case {
  int64_t batch, seq_len, dim;
  bool gated = true, skip = true;
  bool added = false;  // Gradients are added to the outputs.
  int64_t beside = 0;  // Columns of the input matrix that the convolution does not use.

  int64_t length() const { return FftConvLength(seq_len); }
  int64_t width() const { return (gated ? 3 : 1) * dim; }
  int64_t stride() const { return width() + beside; }
};

std::string Name(const Case& c) {
  return "B " + std::to_string(c.batch) + ", T " + std::to_string(c.seq_len) + ", D " +
         std::to_string(c.dim) + (c.gated ? ", gated" : "") + (c.skip ? ", skip" : "") +
         (c.added ? ", added" : "") + ", rows " + std::to_string(c.stride()) + " apart";
}

// Lengths at and around powers of two and four; channels that fill blocks of 8 and that do not;
// smaller blocks, as for long rows; rows that are distributed over blocks, one and two per block.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t seq_len : {1, 2, 3, 4, 8, 17, 40})
    for (const bool gated : {false, true}) cases.push_back({2, seq_len, 11, gated});
  for (const bool gated : {false, true}) {
    for (const bool skip : {false, true}) cases.push_back({1, 20, 8, gated, skip, /*added=*/true});
    cases.push_back({3, 20, 5, gated, true, false, /*beside=*/3});
  }
  cases.push_back({66, 3, 2});
  cases.push_back({1, 1, 1});  // Transforms of 8 bytes.
#ifndef HL_EMULATED_TSAN       // Takes a minute with TSan, and its threads only repeat these cases.
  cases.push_back({1, 1030, 5});
  cases.push_back({2, 2050, 3, /*gated=*/false});
#endif
  return cases;
}

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : inputs(Random(c.batch * c.seq_len * c.stride(), 1)),
        dy(Random(c.batch * c.seq_len * c.dim, 2)),
        filter(Random(c.seq_len * c.dim, 3)),
        skip(Random(c.dim, 4)),
        tables(FftConvTables(c.length())) {}
  FftConvArgs<T> Args(const Case& c) const {
    FftConvArgs<T> args = {.filter = {.filter = filter.data(),
                                      .skip = c.skip ? skip.data() : nullptr,
                                      .window_first = static_cast<float>(kFirst),
                                      .window_step = static_cast<float>(kStep),
                                      .tables = tables.data(),
                                      .seq_len = c.seq_len,
                                      .dim = c.dim,
                                      .length = c.length()},
                           .x = inputs.data(),
                           .stride = c.stride(),
                           .batch = c.batch};
    if (c.gated) args.x_gate = args.x, args.y_gate = args.x + c.dim, args.x += 2 * c.dim;
    return args;
  }
  Array<T> inputs, dy;
  Array<float> filter, skip;
  std::vector<fft::Complex> tables;
};

template <typename T>
struct Results {
  explicit Results(const Case& c)
      : y(c.batch * c.seq_len * c.dim),
        dinputs(Values(c.batch * c.seq_len * c.stride(), 7.0)),
        dfilter(Values(c.seq_len * c.dim, c.added ? 0.5 : std::nan(""))),
        dskip(Values(c.dim, c.added ? 0.5 : std::nan(""))) {}
  FftConvGrads<T> Grads(const Case& c, const Problem<T>& p) {
    FftConvGrads<T> grads = {.dy = p.dy.data(),
                             .dx = dinputs.data(),
                             .stride = c.stride(),
                             .learned = {.dfilter = dfilter.data(),
                                         .dskip = c.skip ? dskip.data() : nullptr,
                                         .filter_added = c.added,
                                         .skip_added = c.added}};
    if (c.gated) grads.dg = grads.dx, grads.dz = grads.dx + c.dim, grads.dx += 2 * c.dim;
    return grads;
  }
  Array<T> y, dinputs;
  Array<float> dfilter, dskip;
};

template <typename T>
Results<T> OnDevice(const Case& c, const Problem<T>& p) {
  Results<T> r(c);
  const FftConvArgs<T> args = p.Args(c);
  const auto workspace = [&](bool backward) {
    const int64_t bytes = cuda::FftConvWorkspaceBytes(args.filter, c.batch, backward);
    EXPECT_EQ(bytes % 4, 0);
    return Array<float>(Values(bytes / 4, std::nan("")));
  };
  Array<float> forward = workspace(false), backward = workspace(true);
  cuda::FftConvForward(args, r.y.data(), forward.data(), nullptr);
  cuda::FftConvBackward(args, r.Grads(c, p), backward.data(), nullptr);
  return r;
}

template <typename T>
Results<T> OnCpu(const Case& c, const Problem<T>& p) {
  Results<T> r(c);
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> scratch(cpu::FftConvScratchBytes(c.length(), true) / sizeof(Line));
  for (int64_t group = 0; group < cpu::FftConvGroups(c.dim); ++group) {
    cpu::FftConvForward(p.Args(c), group, r.y.data(), scratch[0].values);
    cpu::FftConvBackward(p.Args(c), r.Grads(c, p), group, scratch[0].values);
  }
  return r;
}

// The formulas of fft_conv_args.h in fp64.
template <typename T>
struct Definition {
  Definition(const Case& c, const Problem<T>& p)
      : y(c.batch * c.seq_len * c.dim),
        dinputs(c.batch * c.seq_len * c.stride(), 7.0),
        dfilter(c.seq_len * c.dim, c.added ? 0.5 : 0.0),
        dskip(c.dim, c.added ? 0.5 : 0.0),
        inputs(p.inputs.values()),
        dy(p.dy.values()),
        filter(p.filter.values()),
        skip(p.skip.values()) {
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t channel = 0; channel < c.dim; ++channel) Add(c, b, channel);
  }

  void Add(const Case& c, int64_t b, int64_t channel) {
    const double own = c.skip ? skip[channel] : 0;
    const auto input = [&](int64_t t, int64_t branch) {
      return inputs[(b * c.seq_len + t) * c.stride() + branch * c.dim + channel];
    };
    const auto window = [&](int64_t t) {
      return std::exp(static_cast<double>(t) * (kFirst + static_cast<double>(channel) * kStep));
    };
    Values u(c.seq_len), ds(c.seq_len), h(c.seq_len);
    for (int64_t t = 0; t < c.seq_len; ++t) {
      u[t] = input(t, 0);
      if (c.gated) u[t] = Widen(Narrow<T>(static_cast<float>(u[t] * input(t, 2))));
      ds[t] = dy[(b * c.seq_len + t) * c.dim + channel] * (c.gated ? input(t, 1) : 1);
      h[t] = filter[t * c.dim + channel] * window(t);
    }
    for (int64_t t = 0; t < c.seq_len; ++t) {
      const int64_t at = (b * c.seq_len + t) * c.dim + channel;
      double s = own * u[t], du = own * ds[t], dfilter_t = 0;
      for (int64_t r = 0; r <= t; ++r) s += h[t - r] * u[r];
      for (int64_t r = t; r < c.seq_len; ++r) du += h[r - t] * ds[r], dfilter_t += ds[r] * u[r - t];
      y[at] = (c.gated ? input(t, 1) : 1) * s;
      double* const to = &dinputs[(b * c.seq_len + t) * c.stride() + channel];
      to[0] = c.gated ? du * input(t, 2) : du;
      if (c.gated) to[c.dim] = dy[at] * s, to[2 * c.dim] = du * input(t, 0);
      dfilter[t * c.dim + channel] += dfilter_t * window(t);
      dskip[channel] += u[t] * ds[t];
    }
  }
  Values y, dinputs, dfilter, dskip;

 private:
  Values inputs, dy, filter, skip;
};

// Relative to the largest value, for sums of hundreds of terms of order 1: about 2 log2(M)
// roundings of 2^-24, and a few more for sums over rows and tokens.
constexpr double kFp32 = 3e-6;

template <typename T, typename Want>
void ExpectSame(const Case& c, const Results<T>& got, const Want& want) {
  ExpectClose<T>("y", got.y.values(), want.y, kFp32);
  ExpectClose<T>("dinputs", got.dinputs.values(), want.dinputs, kFp32);
  ExpectClose<float>("dfilter", got.dfilter.values(), want.dfilter, kFp32);
  if (c.skip) ExpectClose<float>("dskip", got.dskip.values(), want.dskip, kFp32);
}

template <typename T>
class FftConvEmulated : public test::RowsTest<T> {};
TYPED_TEST_SUITE(FftConvEmulated, test::Storages);

TYPED_TEST(FftConvEmulated, IsTheDefinitionAsTheCpuIs) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const Problem<TypeParam> problem(c);
    const Definition<TypeParam> want(c, problem);
    ExpectSame(c, OnDevice(c, problem), want);
    ExpectSame(c, OnCpu(c, problem), want);
  }
}

// A filter and a skip whose gradients are not requested.
TYPED_TEST(FftConvEmulated, UnrequestedGradientsAreNotWritten) {
  const Case c = {2, 9, 5};
  const Problem<TypeParam> problem(c);
  Results<TypeParam> r(c);
  const FftConvArgs<TypeParam> args = problem.Args(c);
  Array<float> workspace(cuda::FftConvWorkspaceBytes(args.filter, c.batch, true) / 4);
  FftConvGrads<TypeParam> grads = r.Grads(c, problem);
  grads.learned.dfilter = nullptr;
  cuda::FftConvBackward(args, grads, workspace.data(), nullptr);
  for (const double x : r.dfilter.values()) EXPECT_TRUE(std::isnan(x));
  const Definition<TypeParam> want(c, problem);
  ExpectClose<TypeParam>("dinputs", r.dinputs.values(), want.dinputs, kFp32);
  ExpectClose<float>("dskip", r.dskip.values(), want.dskip, kFp32);
  grads.learned.dskip = nullptr;
  cuda::FftConvBackward(args, grads, workspace.data(), nullptr);
}

// Two transforms of 8 bytes per point.
TEST(FftConvFits, UpToEightThousandPointsOnAnyOfTheLargeDevices) {
  EXPECT_TRUE(cuda::FftConvFits(8192, 163 << 10));
  EXPECT_FALSE(cuda::FftConvFits(16384, 227 << 10));
  EXPECT_TRUE(cuda::FftConvFits(4096, 99 << 10));
  EXPECT_FALSE(cuda::FftConvFits(8192, 99 << 10));
}

}  // namespace
}  // namespace halflife::kernels
